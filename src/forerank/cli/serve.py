"""`forerank serve`."""

from pathlib import Path


def serve(
    index: str,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    images: Path | None = None,
    model: str | None = None,
    title: str | None = None,
    upload_megabytes: float = 20,
    upload_megapixels: float = 50,
) -> None:
    """Open the search page of an index, with a JSON API and its description at /docs.

    It listens on this machine only, unless told otherwise, and shows no file but the indexed images.

    Examples:

        forerank serve glyphs.index
        forerank serve photos.index --host 0.0.0.0 --port 9000

    Parameters
    ----------
    index
        A folder, or SCHEME:PLACE of another engine.
    host
        Address to listen on. 0.0.0.0 lets everybody in who can reach this machine: there is no password.
    port
        Port to listen on; 0 takes a free one.
    images
        Where the images lie now, if they were moved.
    model
        The index's model, if the index has no copy of it and it was moved.
    title
        What the page calls itself.
    upload_megabytes
        Largest picture that may be sent, in bytes.
    upload_megapixels
        Largest picture that may be sent, in pixels.
    """
    from forerank.errors import InputError, require
    from forerank.models import keep_freed_memory

    if not 0 <= port <= 65535:
        raise InputError(f"a port is a number from 0 to 65535, not {port}")
    for option, size in (("megabytes", upload_megabytes), ("megapixels", upload_megapixels)):
        if not 0 < size < 1e6:
            raise InputError(f"--upload-{option} is a number above 0 and below a million, not {size}")
    if images is not None and not images.is_dir():
        raise InputError(f"--images {images} is not a folder")
    for module in ("fastapi", "uvicorn", "jinja2"):
        require(module)
    from forerank.search.index import Index
    from forerank.web.serving import Limits, serve_index

    keep_freed_memory()
    size = int(upload_megabytes * 1e6)
    limits = Limits(
        bytes=size, pixels=int(upload_megapixels * 1e6), bytes_together=max(Limits.bytes_together, size)
    )
    serve_index(Index.open(index, root=images, model=model), host=host, port=port, title=title, limits=limits)
