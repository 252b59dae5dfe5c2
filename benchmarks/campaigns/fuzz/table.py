"""CSV files of images and labels."""

import atheris

from campaigns.fuzz.target import fuzz, place_for

with atheris.instrument_imports(include=["forerank.data", "forerank.metrics.files"]):
    from forerank.data.table import Table
    from forerank.metrics.files import read_labels

if __name__ == "__main__":
    file = place_for("table.csv")

    def read(data: bytes) -> None:
        file.write_bytes(data[1:])
        if data[:1] < b"\x80":
            Table.read_csv(file)
        else:
            read_labels(file)

    fuzz(read)
