"""A picture that somebody sent: read up to a limit, recognised by its content, decoded up to a limit."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from forerank.data import BadImageError, read_image
from forerank.data.preprocessing import Views

if TYPE_CHECKING:
    from starlette.requests import Request


@dataclass(frozen=True)
class Limits:
    """What a request may cost."""

    bytes: int = 20_000_000
    pixels: int = 50_000_000
    neighbours: int = 200
    page: int = 240


class RefusedUpload(Exception):  # noqa: N818 - it is an answer, not a fault
    """Why a picture is not taken: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


async def read_body(request: "Request", limits: Limits) -> bytes:
    """The body of a request; reading stops once it is larger than allowed, whatever was announced."""
    kind = request.headers.get("content-type", "")
    if kind.startswith("multipart/"):
        raise RefusedUpload(415, "send the picture's bytes as the body: curl --data-binary @query.jpg")
    announced = request.headers.get("content-length", "")
    too_large = f"the picture has more than {limits.bytes / 1e6:g} MB, the most that is taken"
    if announced.isdigit() and int(announced) > limits.bytes:
        raise RefusedUpload(413, too_large)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limits.bytes:
            raise RefusedUpload(413, too_large)
    if not body:
        raise RefusedUpload(400, "no picture was sent: the request has an empty body")
    return bytes(body)


def decode(body: bytes, limits: Limits, wanted: Views) -> Image.Image:
    """The picture in some bytes, upright; what it is called or claims to be does not matter.

    It is decoded exactly as the index's own images were, so that an indexed file finds itself.
    """
    try:
        return read_image(body, channels=wanted.channels, shrink_to=wanted.resize, max_pixels=limits.pixels)
    except BadImageError as error:
        raise RefusedUpload(400, f"this is not a picture that can be read: {error.reason}") from error
