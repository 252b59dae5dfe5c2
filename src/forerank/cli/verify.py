"""`forerank verify`."""

from forerank.console import print_json


def verify(index: str, /, *, json: bool = False) -> None:
    """Read every byte of an index and compare it with the checksums that were written with it.

    An index of up to 128 MB is verified whenever it is opened. A larger one is mapped into memory when it is
    opened, and only this command reads all of it.

    Examples:

        forerank verify photos.index

    Parameters
    ----------
    index
        A folder that forerank index wrote.
    json
        Print JSON.
    """
    from forerank.search.engine import open_engine

    engine = open_engine(index)
    size = engine.verify()
    engine.close()
    if json:
        print_json({"index": index, "bytes": size})
    else:
        print(f"{index} is as it was written: {size:,} bytes fit their checksums")
