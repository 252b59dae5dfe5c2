"""Ask a server that `forerank serve` started.

from forerank import Client

client = Client("http://localhost:8000")
for hit in client.search("query.jpg", k=5):
    print(hit.similarity, hit.label, hit.path)
"""

import json
import os
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from forerank.errors import ForerankError, InputError
from forerank.search.index import Hit, Matches

PictureSource = str | Path | bytes


class ServerError(ForerankError):
    """The server did not answer, or refused; `status` is its HTTP status, 0 where there was no answer."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """A server of an index.

    Args:
        address: where it listens, for example "http://localhost:8000" or "https://shop.example/search".
        token: what the server asks for; by default FORERANK_TOKEN from the environment.
        seconds: how long an answer may take.
    """

    def __init__(self, address: str, *, token: str | None = None, seconds: float = 60) -> None:
        if not address.startswith(("http://", "https://")):
            raise InputError(f"the address of a server begins with http:// or https://, not {address!r}.")
        self.address, self.seconds = address.rstrip("/"), seconds
        self._token = token or os.environ.get("FORERANK_TOKEN")

    def search(
        self, query: PictureSource | int, k: int = 10, where: Sequence[str] = (), text: str = ""
    ) -> Matches:
        """The k nearest images, as `forerank.Index.search` gives them.

        Args:
            query: a file's path, the bytes of a picture, or the id of an indexed image.
            k: how many at most.
            where: conditions COLUMN=VALUE or label=VALUE that the images must meet.
            text: text in path or label.
        """
        words = {"k": k, "where": list(where), **({"text": text} if text else {})}
        if isinstance(query, int):
            answer = self._ask(f"/api/rows/{query}/search", words)
        else:
            answer = self._ask("/api/search", words, _bytes_of(query))
        names = ("rank", "id", "path", "similarity")
        hits = [
            Hit(**{name: hit[name] for name in names}, label=hit["label"] or "", columns=hit["columns"])
            for hit in answer["hits"]
        ]
        return Matches(tuple(hits), answer["threshold"])

    def add(
        self, picture: PictureSource, label: str = "", columns: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Add an image to the index; when this returns it is on the server's disk and found by searches.

        The server must have been started with --allow-adding. The answer has id, path, label and columns.
        """
        return self._ask("/api/images", {**(columns or {}), "label": label}, _bytes_of(picture))

    def about(self) -> dict[str, Any]:
        """What the index is: how many images, which model, which threshold."""
        return self._ask("/api/index")

    def healthy(self) -> bool:
        """Whether the server and its index answer; needs no token."""
        try:
            return bool(self._ask("/healthz")["status"] == "ok")
        except ServerError:
            return False

    def _ask(
        self, path: str, words: Mapping[str, Any] | None = None, body: bytes | None = None
    ) -> dict[str, Any]:
        query = "?" + urlencode(words, doseq=True) if words else ""
        request = Request(self.address + path + query, data=body)
        if body is not None:
            request.add_header("Content-Type", "application/octet-stream")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urlopen(request, timeout=self.seconds) as answer:
                told: dict[str, Any] = json.loads(answer.read())
                return told
        except HTTPError as error:
            raise ServerError(f"{self.address} refused: {_sentence(error)}", error.code) from None
        except (URLError, OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ServerError(f"{self.address} did not answer: {reason}", 0) from error


def _bytes_of(picture: PictureSource) -> bytes:
    if isinstance(picture, bytes):
        return picture
    try:
        return Path(picture).expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"{picture} cannot be read: {error.strerror}.") from error


def _sentence(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"status {error.code}"
