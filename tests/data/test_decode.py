"""Every kind of picture: read right, or refused by name."""

import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from claimed_png import claimed_png
from forerank.data import BadImageError, Table, check_table, read_image
from forerank.data.decode import known_formats
from forerank.errors import InputError

RED = (200, 30, 40)


def pixel(image: Image.Image, x: int = 0, y: int = 0) -> tuple[int, ...]:
    return tuple(int(v) for v in np.atleast_1d(np.asarray(image)[y, x]))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(tmp_path: Path, orientation: int) -> None:
    # The upright picture is white at the top left alone; store it turned, with the tag that turns it back.
    upright = np.zeros((40, 60), np.uint8)
    upright[:16, :16] = 255
    turned = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.T, 6: np.rot90(upright), 7: np.rot90(upright, 2).T, 8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("turned.jpg", "turned.png"):
        Image.fromarray(np.ascontiguousarray(turned)).save(tmp_path / name, exif=exif)
        image = read_image(tmp_path / name)
        assert image.size == (60, 40)
        assert pixel(image, 4, 4)[0] > 200
        assert pixel(image, 55, 4)[0] < 50
        assert pixel(image, 4, 35)[0] < 50


def test_transparency_is_laid_over_white(tmp_path: Path) -> None:
    half = Image.new("RGBA", (4, 4), (*RED, 0))
    half.putpixel((1, 0), (*RED, 255))
    half.save(tmp_path / "rgba.png")
    image = read_image(tmp_path / "rgba.png")
    assert image.mode == "RGB"
    assert pixel(image, 0, 0) == (255, 255, 255)
    assert pixel(image, 1, 0) == RED
    Image.merge("LA", [Image.new("L", (4, 4), 9), Image.new("L", (4, 4), 0)]).save(tmp_path / "la.png")
    assert pixel(read_image(tmp_path / "la.png")) == (255, 255, 255)
    assert pixel(read_image(tmp_path / "la.png", channels=1)) == (255,)
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, *RED])
    palette.save(tmp_path / "p.png")
    assert pixel(read_image(tmp_path / "p.png")) == RED
    palette.save(tmp_path / "p.gif", transparency=1)
    assert pixel(read_image(tmp_path / "p.gif")) == (255, 255, 255)
    Image.new("RGB", (4, 4), RED).save(tmp_path / "key.png", transparency=RED)
    assert pixel(read_image(tmp_path / "key.png")) == (255, 255, 255)


def test_sixteen_bits_keep_the_upper_eight(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 0xAB12, np.uint16)).save(tmp_path / "deep.png")
    assert pixel(read_image(tmp_path / "deep.png")) == (0xAB,) * 3
    Image.fromarray(np.full((4, 4), 0xAB12, np.uint16)).save(tmp_path / "deep.tiff")
    assert pixel(read_image(tmp_path / "deep.tiff")) == (0xAB,) * 3


def test_other_modes_become_rgb(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "cmyk.jpg", quality=100)
    red, green, blue = pixel(read_image(tmp_path / "cmyk.jpg"))
    assert red > 240
    assert green < 15
    assert blue < 15
    Image.new("1", (8, 8), 1).save(tmp_path / "bit.png")
    assert pixel(read_image(tmp_path / "bit.png")) == (255, 255, 255)
    Image.new("L", (8, 8), 7).save(tmp_path / "grey.jpg")
    assert pixel(read_image(tmp_path / "grey.jpg")) == (7, 7, 7)
    assert read_image(tmp_path / "grey.jpg", channels=1).mode == "L"


def test_pixels_of_unknown_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tiff")
    Image.fromarray(np.full((4, 4), 1 << 20, np.int32)).save(tmp_path / "int.tiff")
    for name, said in (("float.tiff", "floating-point"), ("int.tiff", "32-bit")):
        with pytest.raises(BadImageError, match=rf"{name}.*{said}"):
            read_image(tmp_path / name)


@pytest.mark.parametrize("ending", ["gif", "webp", "png", "tiff"])
def test_the_first_picture_of_an_animation_counts(tmp_path: Path, ending: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    file = tmp_path / f"moving.{ending}"
    kind = {"lossless": True} if ending == "webp" else {}
    frames[0].save(file, save_all=True, append_images=frames[1:], **kind)
    assert pixel(read_image(file)) == (255, 0, 0)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "gif", "bmp", "tiff"])
def test_truncated_files_are_refused_by_name(tmp_path: Path, ending: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / f"whole.{ending}")
    content = (tmp_path / f"whole.{ending}").read_bytes()
    (tmp_path / f"cut.{ending}").write_bytes(content[: len(content) // 2])
    with pytest.raises(BadImageError, match=rf"cut\.{ending}: "):
        read_image(tmp_path / f"cut.{ending}")


@pytest.mark.filterwarnings("ignore")  # Pillow's own, about the damage
def encoded(kind: str) -> bytes:
    """A small photograph-like picture as a file of this format, as Pillow writes it."""
    noise = np.random.default_rng(5).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((40, 30), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    options = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF", "HEIF", "MPO") else {}
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """The file with some bytes changed, cut off, removed or repeated, more often near its beginning."""
    spoiled = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        reach = len(spoiled) if rng.random() < 0.5 else min(len(spoiled), 200)
        at, length = int(rng.integers(reach)), int(rng.integers(1, 9))
        match int(rng.integers(5)):
            case 0:
                spoiled[at : at + length] = rng.bytes(length)
            case 1:
                spoiled[at] ^= 1 << int(rng.integers(8))
            case 2:
                del spoiled[at : at + length]
            case 3:
                spoiled[at:at] = spoiled[at : at + length]
            case _:
                spoiled[at : at + length] = b"\xff" * length
        if len(spoiled) < 2 or (rng.random() < 0.1 and len(spoiled) > 20):
            return bytes(spoiled[: len(spoiled) // 2])
    return bytes(spoiled)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", known_formats())
def test_a_damaged_file_is_decoded_or_refused_and_nothing_else(kind: str, tmp_path: Path) -> None:
    data = encoded(kind)
    read_image(data)
    rng = np.random.default_rng([6, *kind.encode()])
    refused = 0
    for number in range(500):
        spoiled = mutated(data, rng)
        try:
            picture = read_image(spoiled, channels=1 + 2 * (number % 2), shrink_to=8 if number % 3 else None)
            assert picture.mode == ("RGB" if number % 2 else "L")
        except BadImageError:  # any other error fails the test
            refused += 1
        if number < 20:  # the same for what `forerank data check` asks of a file
            (tmp_path / "file").write_bytes(spoiled)
            check_table(Table(["file"], ["a"], ["train"], root=tmp_path), pixels=True)
    assert refused > 10  # the mutations do damage


def test_the_runtime_errors_of_a_damaged_avif_are_bad_images() -> None:
    data, rng = encoded("AVIF"), np.random.default_rng(7)
    raised = 0
    for spoiled in (mutated(data, rng) for _ in range(400)):
        try:
            Image.open(io.BytesIO(spoiled), formats=["AVIF"]).load()
        except RuntimeError:
            raised += 1
            with pytest.raises(BadImageError, match=r"(damaged|cannot be opened) \(.+\)"):
                read_image(spoiled)
        except (OSError, SyntaxError, ValueError):
            pass
    assert raised > 3


@pytest.mark.parametrize("raised", [RuntimeError, OverflowError, struct.error, ZeroDivisionError])
def test_any_error_of_a_decoder_is_a_bad_image(
    raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Image.Image) -> None:
        raise raised("first line\nsecond")

    monkeypatch.setattr(PngImageFile, "load", fail)
    with pytest.raises(BadImageError, match=r"damaged \(first line second\)"):
        read_image(encoded("PNG"))


def test_not_an_image_empty_missing_folder(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "page.jpg").write_text("<html>404</html>")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "program.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for name, said in (
        ("empty.jpg", "empty"),
        ("page.jpg", "not an image"),
        ("none.jpg", "no such file"),
        ("folder.jpg", "cannot be opened"),
        ("program.jpg", "not an image"),  # PostScript would start another program
    ):
        with pytest.raises(BadImageError, match=rf"{name}: .*{said}"):
            read_image(tmp_path / name)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [10_000, 50_000])
def test_decompression_bombs_are_refused_before_decoding(tmp_path: Path, side: int) -> None:
    (tmp_path / "bomb.png").write_bytes(claimed_png(side, side))
    with pytest.raises(BadImageError, match=r"bomb\.png.*decompression bomb"):
        read_image(tmp_path / "bomb.png")
    with pytest.raises(BadImageError, match="decompression bomb"):
        read_image(np_jpeg(40, 40), max_pixels=1000)


def np_jpeg(width: int, height: int, **options: int) -> bytes:
    out = io.BytesIO()
    ramp = np.linspace(0, 255, width, dtype=np.uint8)[None].repeat(height, 0)
    Image.fromarray(ramp).convert("RGB").save(out, "JPEG", **options)
    return out.getvalue()


def test_the_content_says_what_the_format_is(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), RED).save(tmp_path / "really.png")
    (tmp_path / "really.png").rename(tmp_path / "named.jpg")
    assert pixel(read_image(tmp_path / "named.jpg")) == RED


def test_large_jpegs_decode_at_a_fraction_and_look_the_same() -> None:
    content = np_jpeg(2048, 1024)
    small = read_image(content, shrink_to=100)
    assert small.size == (512, 256)  # a quarter: at least twice what is needed remains
    whole = read_image(content)
    assert whole.size == (2048, 1024)
    difference = np.asarray(small.resize((64, 32))).astype(int) - np.asarray(whole.resize((64, 32)))
    assert np.abs(difference).max() <= 3


def test_arrays_and_pictures(tmp_path: Path) -> None:
    assert read_image(np.zeros((4, 5, 1), np.uint8)).mode == "RGB"
    assert read_image(np.zeros((4, 5, 4), np.uint8)).mode == "RGB"
    assert read_image(Image.new("LA", (3, 2))).size == (3, 2)
    for bad in (np.zeros((4, 4)), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(InputError, match="array"):
            read_image(bad)


def test_the_error_survives_the_way_out_of_a_worker() -> None:
    error = pickle.loads(pickle.dumps(BadImageError("a.jpg", "damaged")))
    assert str(error) == "a.jpg: damaged"
    assert error.reason == "damaged"
