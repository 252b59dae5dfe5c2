"""Files of an index folder: the pointer, the meta data with a right checksum, the rows, and the journal."""

import json
import shutil

import atheris

from campaigns.fuzz.target import fuzz, place_for

with atheris.instrument_imports(include=["forerank.search", "forerank.files"]):
    from forerank.files import file_checksum, json_with_checksum
    from forerank.search.engine import open_engine
    from forerank.search.folder import FolderEngine
    from forerank.search.journal import Journal

if __name__ == "__main__":
    from campaigns.kills import DIM, _rows_and_vectors

    place = place_for("index")
    rows, vectors = _rows_and_vectors()
    engine = FolderEngine(str(place))
    with engine.update(DIM, "model") as update:
        update.put(rows, vectors)
        update.complete(rows, {"model": {"fingerprint": "model"}, "root": "."}, None)
    generation = next(place.glob("generation-*"))
    whole = {name: (generation / name).read_bytes() for name in ("meta.json", "rows.sqlite", "vectors.npy")}
    pointer = (place / "CURRENT").read_bytes()

    def read(data: bytes) -> None:
        """The first byte says which file the others are."""
        kind, data = data[:1], data[1:]
        (place / "CURRENT").write_bytes(data if kind == b"C" else pointer)
        for name, content in whole.items():
            (generation / name).write_bytes(content)
        if kind == b"J":
            (place / "log").write_bytes(data)
            Journal(place / "log", DIM, "model").close()
        if kind == b"M":  # as a stranger would: a checksum that fits
            values = json.loads(data) if _is_object(data) else {}
            (generation / "meta.json").write_text(
                json_with_checksum({**json.loads(whole["meta.json"]), **values})
            )
        if kind == b"R":
            _replace("rows.sqlite", data)
        if kind == b"V":
            _replace("vectors.npy", data)
        opened = open_engine(place)
        try:
            if opened.meta() is not None and opened.count():
                opened.page(limit=5)
                opened.rows(opened.search(vectors[:1], 3).ids[0].tolist())
        finally:
            opened.close()

    def _is_object(data: bytes) -> bool:
        try:
            return isinstance(json.loads(data), dict)
        except (ValueError, RecursionError):
            return False

    def _replace(name: str, data: bytes) -> None:
        """Put a piece of data into a file, with size and checksum made right."""
        content = bytearray(whole[name])
        start = int.from_bytes(data[:2], "big") % len(content)
        content[start : start + len(data[2:])] = data[2:]
        (generation / name).write_bytes(content)
        meta = json.loads(whole["meta.json"])
        meta.pop("checksum")
        meta["files"][name] = {"size": len(content), "checksum": file_checksum(generation / name)}
        (generation / "meta.json").write_text(json_with_checksum(meta))

    fuzz(read)
    shutil.rmtree(place.parent, ignore_errors=True)
