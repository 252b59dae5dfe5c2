"""Examples of a search: rows of the index or uploads, whole or a box in them, and their vectors."""

import math
from dataclasses import dataclass

from PIL import Image
from starlette.exceptions import HTTPException

from forerank.errors import InputError
from forerank.search.engine import Vectors
from forerank.search.index import Index
from forerank.search.rows import LARGEST_ID, Row
from forerank.web.pictures import SIDES, EncodedPicture, PictureStore, encode_picture
from forerank.web.resources import Resources

HOW = (
    "the id of an indexed image or of an upload; @x,y,width,height after it takes only this box, "
    "in shares of the picture from 0 to 1"
)


@dataclass(frozen=True)
class Box:
    """A part of a picture, in shares of its width and height."""

    x: float
    y: float
    width: float
    height: float

    def cut(self, image: Image.Image) -> Image.Image:
        """The part of a picture; one without a single whole pixel is refused."""
        left, top = round(self.x * image.width), round(self.y * image.height)
        right = min(image.width, round((self.x + self.width) * image.width))
        low = min(image.height, round((self.y + self.height) * image.height))
        if right <= left or low <= top:
            raise InputError("the box is smaller than a pixel of the picture: draw a larger one.")
        return image.crop((left, top, right, low))


@dataclass(frozen=True)
class Example:
    """One picture that a search is to be like, or unlike."""

    row: int | None  # of the index; else
    upload: str | None  # the name of a kept upload
    box: Box | None = None


def parse_example(text: str) -> Example:
    """An example as it stands in an address.

    >>> parse_example("12"), parse_example("uAb3@0,0,0.5,1").box
    (Example(row=12, upload=None, box=None), Box(x=0.0, y=0.0, width=0.5, height=1.0))
    """
    name, at, box = text.partition("@")
    cut = _parse_box(box) if at else None
    if name.isascii() and name.isdigit() and len(name) <= 16 and int(name) <= LARGEST_ID:
        return Example(int(name), None, cut)
    if name.startswith("u"):
        return Example(None, name, cut)
    raise InputError(f"an example is {HOW}; not {text[:60]!r}.")


def _parse_box(text: str) -> Box:
    try:
        x, y, width, height = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"a box is x,y,width,height in shares of the picture, not {text[:60]!r}.") from None
    rounding = 1e-6
    inside = x >= 0 and y >= 0 and x + width <= 1 + rounding and y + height <= 1 + rounding
    if not (all(map(math.isfinite, (x, y, width, height))) and inside and width > 0 and height > 0):
        raise InputError(
            f"the box {text[:60]} leads outside the picture: x, y, width and height are shares from 0 to 1."
        )
    return Box(x, y, width, height)


class ExampleVectors:
    """Finds or computes the vectors of examples; call it from any thread."""

    def __init__(self, index: Index, pictures: PictureStore, resources: Resources) -> None:
        self._index, self._pictures = index, pictures
        self._kept, self._decoders = resources.kept, resources.decoders
        self._model_in_use = resources.model_in_use

    def row(self, number: int) -> Row:
        """A row of the index; an unknown one is answered with 404."""
        try:
            return self._index.engine.rows([number])[0]
        except KeyError:
            raise HTTPException(404, f"the index has no row {number}") from None

    def key(self, box: Box | None = None) -> object:
        """Under which the vector of a box is remembered: another model has other vectors."""
        return self._index.meta["model"]["fingerprint"], box

    def is_known(self, example: Example) -> bool:
        """Whether the vector is there already, so that no picture has to be decoded."""
        if example.upload is not None:
            return self.key(example.box) in self._kept.get(example.upload).vectors
        return example.box is None

    def of(self, example: Example) -> Vectors:
        """The unit vector (D,) of an example."""
        if example.upload is not None:
            upload, key = self._kept.get(example.upload), self.key(example.box)
            if key not in upload.vectors:
                self._kept.remember(example.upload, key, vector := self.embed(upload.data, example.box))
                return vector
            return upload.vectors[key]
        assert example.row is not None
        row = self.row(example.row)
        if example.box is not None:
            return self.embed(self._pictures.read(row), example.box)
        stored: Vectors = self._index.engine.vectors([row.id])[0]
        return stored

    def embed(self, data: bytes, box: Box | None = None) -> Vectors:
        """The unit vector (D,) of an encoded picture, or of a box in it."""
        with self._model_in_use:
            wanted = self._index.retriever.preprocessing
        # Of a box as many pixels are needed as of a whole picture.
        shrink_to = wanted.resize if box is None else math.ceil(wanted.resize / min(box.width, box.height))
        image = self._decoders.decode(data, wanted.channels, min(shrink_to, 2**20))
        if box is not None:
            image = box.cut(image)
        with self._model_in_use:
            vector: Vectors = self._index.embed([image])[0]
        return vector

    def show(self, upload: str) -> EncodedPicture:
        """An upload as a picture for a browser: made anew from its pixels, never the bytes that were sent."""
        image = self._decoders.decode(self._kept.get(upload).data, 3, SIDES["large"])
        return encode_picture(image, SIDES["large"])
