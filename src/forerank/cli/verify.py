"""`forerank verify`."""


def verify(index: str, /) -> None:
    """Read every byte of an index and compare it with the checksums that were written with it.

    An index of up to 128 MB is verified whenever it is opened. Of a larger one, opening reads little and maps
    the vectors into memory: this command reads all of it.

    Examples:

        forerank verify photos.index

    Parameters
    ----------
    index
        A folder that forerank index wrote.
    """
    from forerank.search.engine import open_engine

    engine = open_engine(index)
    size = engine.verify()
    engine.close()
    print(f"{index} is as it was written: {size:,} bytes fit their checksums")
