"""Pictures that strangers send: received within common bounds, and decoded where it can be ended."""

import asyncio
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image
from starlette.requests import ClientDisconnect, Request

from forerank.models.memory import give_back_memory

T = TypeVar("T")
MOST_FIELDS = 50  # of a form, and the longest of them in bytes
LONGEST_FIELD = 4000
LINGER_SECONDS = 3  # how long, and how many bytes, are still read from a client that was refused
LINGER_BYTES = 20_000_000
GIVE_BACK_BYTES = 50_000_000  # uploads that held less leave too little behind to be worth the time
DECODERS = 2  # at most this many full-size pictures are in memory at once


@dataclass(frozen=True)
class Limits:
    """What a request may cost, and what all uploads together may."""

    bytes: int = 20_000_000
    pixels: int = 50_000_000
    neighbours: int = 200
    page: int = 240
    bytes_together: int = 200_000_000  # of all pictures that are being received or wait to be decoded
    waiting: int = 64  # pictures that are received and wait for their answer
    body_seconds: float = 60  # from the first byte of a picture to the last
    decode_seconds: float = 10
    kept: int = 500  # uploads that are kept for addresses that name them
    kept_bytes: int = 200_000_000  # of all of them together
    kept_seconds: float = 86_400


class RefusedUpload(Exception):  # noqa: N818 - it is an answer, not a fault
    """Why a picture is not taken: an HTTP status, a sentence, and headers of the answer.

    `unread`: the client may still be sending. Many look for an answer only when they have sent everything,
    and a connection that is closed before takes the sentence with it: so `read_rest` comes before the answer.
    """

    def __init__(self, status: int, sentence: str, *, unread: bool = False, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.unread = status, sentence, unread
        self.headers = {"connection": "close"} | {name.replace("_", "-"): headers[name] for name in headers}


@dataclass(frozen=True)
class Form:
    """A picture and the fields that were sent with it."""

    picture: bytes
    fields: dict[str, str]


class Uploads:
    """Receives pictures; what they hold together is bounded. To be used from the event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = self._most_held = 0
        self._waiting = 0
        self.in_progress = 0  # for the operator

    @asynccontextmanager
    async def receive(self, request: Request) -> AsyncIterator[bytes]:
        """The picture in a request, whose body is its bytes or a form with one file."""
        async with self.receive_form(request) as form:
            yield form.picture

    @asynccontextmanager
    async def receive_form(self, request: Request) -> AsyncIterator[Form]:
        """The picture and the fields in a request; its body counts as held until the block ends."""
        async with self._receive_body(request) as body:
            kind = request.headers.get("content-type", "")
            if kind.lower().startswith("multipart/"):
                parse = partial(parse_form, kind, body)
                form = await asyncio.get_running_loop().run_in_executor(None, parse)
            else:
                form = Form(body, {})
            yield form

    @asynccontextmanager
    async def _receive_body(self, request: Request) -> AsyncIterator[bytes]:
        self._refuse_by_headers(request)
        self.in_progress += 1
        chunks: list[bytes] = []
        received = 0
        try:
            try:
                async with asyncio.timeout(self._limits.body_seconds):
                    async for chunk in request.stream():
                        chunks.append(chunk)
                        received += len(chunk)
                        self._held += len(chunk)
                        self._most_held = max(self._most_held, self._held)
                        if received > self._limits.bytes:
                            raise self._too_large()
                        if self._held > self._limits.bytes_together:
                            raise _busy(unread=True)
            except TimeoutError:
                sentence = f"the picture did not arrive within {self._limits.body_seconds:g} s"
                raise RefusedUpload(408, sentence) from None
            except ClientDisconnect:
                raise RefusedUpload(400, "the picture did not arrive: the client went away") from None
            if not received:
                raise RefusedUpload(400, "no picture was sent: the request has an empty body")
            if self._waiting >= self._limits.waiting:
                raise _busy()
            body = b"".join(chunks)
            chunks.clear()
            self._waiting += 1
            try:
                yield body
            finally:
                self._waiting -= 1
        finally:
            chunks.clear()  # the traceback of a refusal would keep them while the client is heard out
            self._held -= received
            self.in_progress -= 1
            self._give_back()

    def _give_back(self) -> None:
        """When nothing is held any more after much was, the memory goes back to the system."""
        if self._held == 0 and self._most_held > GIVE_BACK_BYTES:
            self._most_held = 0
            asyncio.get_running_loop().run_in_executor(None, give_back_memory)

    def _refuse_by_headers(self, request: Request) -> None:
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._limits.bytes:
            raise self._too_large()

    def _too_large(self) -> RefusedUpload:
        most = f"{self._limits.bytes / 1e6:g} MB"
        return RefusedUpload(413, f"the picture has more than {most}, the most that is taken", unread=True)


async def unless_gone(request: Request, executor: Executor, work: Callable[[], T]) -> T:
    """Do `work` in a thread of the executor, unless the client leaves before its turn has come."""
    submitted = executor.submit(work)
    done = asyncio.wrap_future(submitted)
    gone = asyncio.ensure_future(_gone(request))
    try:
        both: list[asyncio.Future[Any]] = [done, gone]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and submitted.cancel():  # work that has begun goes on, and is waited for
            raise RefusedUpload(400, "the client went away before its picture was looked at")
        return await done
    finally:
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def parse_form(kind: str, body: bytes) -> Form:
    """The one file and the fields of a form (multipart/form-data), whose content type is `kind`."""
    from python_multipart import create_form_parser
    from python_multipart.exceptions import FormParserError

    pictures: list[bytes] = []
    fields: dict[str, str] = {}

    def take_file(file: Any) -> None:
        file.file_object.seek(0)
        pictures.append(file.file_object.read())
        if len(pictures) > 1:
            raise RefusedUpload(400, "the form has more than one file: send one picture with each request")

    def take_field(field: Any) -> None:
        name, value = field.field_name or b"", field.value or b""
        if len(fields) >= MOST_FIELDS or len(name) + len(value) > LONGEST_FIELD:
            raise RefusedUpload(413, f"a form has at most {MOST_FIELDS} fields of {LONGEST_FIELD} bytes")
        try:
            fields[name.decode()] = value.decode()
        except UnicodeDecodeError:
            raise RefusedUpload(400, "the fields of a form are UTF-8") from None

    # The body is bounded already: a file stays in memory instead of going to a temporary file.
    config = {"MAX_MEMORY_FILE_SIZE": len(body) + 1}
    try:
        parser = create_form_parser(
            {"Content-Type": kind.encode("latin-1")}, take_field, take_file, config=config
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise RefusedUpload(400, f"this form cannot be read: {error}") from None
    if not pictures or not pictures[0]:
        raise RefusedUpload(400, "the form has no file: curl --form image=@query.jpg")
    return Form(pictures[0], fields)


def _busy(unread: bool = False) -> RefusedUpload:
    sentence = "too many pictures are being sent at the moment: try again in a minute"
    return RefusedUpload(503, sentence, unread=unread, retry_after="60")


async def read_rest(request: Request) -> None:
    """Read what a client still sends, for a few seconds and up to a bound, and keep nothing of it."""
    read = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(LINGER_SECONDS):
            async for chunk in request.stream():
                read += len(chunk)
                if read > LINGER_BYTES:
                    return


class Decoders:
    """Decodes pictures in processes of their own: one that takes too long can be ended, a thread cannot.

    A process is started when it is first needed. Call `decode` from at most `count` threads at once; others
    wait.
    """

    def __init__(self, limits: Limits, count: int = DECODERS) -> None:
        self._limits = limits
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(None)

    def decode(self, body: bytes, channels: int, shrink_to: int) -> Image.Image:
        """The picture in some bytes, upright; what it is called or claims to be does not matter.

        With the model's own `channels` and `shrink_to` it is decoded exactly as the index's images were, so
        that an indexed file finds itself.
        """
        process = self._idle.get()
        try:
            if process is None or process.poll() is not None:
                process = _start_decoder()
            too_slow = threading.Event()
            ending = threading.Timer(self._limits.decode_seconds, _end, (process, too_slow))
            ending.start()
            try:
                head, pixels = _ask(
                    process,
                    body,
                    {"channels": channels, "shrink_to": shrink_to, "max_pixels": self._limits.pixels},
                )
            except (OSError, ValueError):  # it was ended, or a codec took it down
                head, pixels = {}, b""
            finally:
                ending.cancel()
            if too_slow.is_set() or not head:
                process.kill()
                process.wait()
        finally:
            self._idle.put(process)
        if too_slow.is_set():
            head = {"refused": f"decoding it takes more than {self._limits.decode_seconds:g} s"}
        if "size" not in head:
            reason = head.get("refused", "the decoder could not cope with it")
            raise RefusedUpload(400, f"this is not a picture that can be read: {reason}")
        return Image.frombytes(head["mode"], tuple(head["size"]), pixels)

    def close(self) -> None:
        """End the processes that are idle."""
        while True:
            try:
                process = self._idle.get_nowait()
            except queue.Empty:
                return
            if process is not None:
                process.kill()
                process.wait()


def _start_decoder() -> subprocess.Popen[bytes]:
    import forerank

    place = str(Path(forerank.__file__).parents[1])
    paths = [place, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "forerank.web.decoder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdout is not None
    process.stdout.readline()  # "ready": starting does not count as decoding
    return process


def _end(process: subprocess.Popen[bytes], too_slow: threading.Event) -> None:
    too_slow.set()
    process.kill()


def _ask(
    process: subprocess.Popen[bytes], body: bytes, request: dict[str, int]
) -> tuple[dict[str, Any], bytes]:
    """Send a picture to a decoder and read its answer; one that was ended raises OSError or ValueError."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"bytes": len(body), **request}).encode() + b"\n")
    process.stdin.write(body)
    process.stdin.flush()
    head: dict[str, Any] = json.loads(process.stdout.readline())
    size = head.get("bytes", 0)
    answer = process.stdout.read(size)
    if len(answer) != size:
        raise ValueError("the answer is not whole")
    return head, answer
