"""Image files of any kind."""

import atheris

from campaigns.fuzz.target import fuzz

with atheris.instrument_imports(include=["forerank.data", "PIL"]):
    from forerank.data.decode import read_image

if __name__ == "__main__":
    fuzz(lambda data: read_image(data, shrink_to=8, max_pixels=1_000_000))
