"""`forerank serve`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


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
    token_file: Path | None = None,
    allow_adding: bool = False,
    allow_host: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    proxy: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    root_path: str = "",
    log_format: str = "text",
) -> None:
    """Open the search page of an index, with a JSON API and its description at /docs.

    It listens on this machine only, unless told otherwise, and shows no file but the indexed images. When the
    index is built again, the newer state is served without a restart.

    Examples:

        forerank serve glyphs.index
        forerank serve photos.index --host 0.0.0.0 --port 9000 --token-file token.txt
        forerank serve photos.index --root-path /search --allow-host shop.example --proxy 127.0.0.1

    Parameters
    ----------
    index
        A folder, or SCHEME:PLACE of another engine.
    host
        Address to listen on. 0.0.0.0 lets everybody in who can reach this machine, unless there is a token.
    port
        Port to listen on; 0 takes a free one.
    images
        Where the images lie now, if they were moved.
    model
        The index's model, if the index has no copy of it and it was moved.
    title
        Title of the page.
    upload_megabytes
        Largest picture that may be sent, in bytes.
    upload_megapixels
        Largest picture that may be sent, in pixels.
    token_file
        File with a token of at least 16 characters that visitors must know. Without this option the token is
        taken from the environment variable FORERANK_TOKEN, if it is set.
    allow_adding
        Let those who know the token add images (POST /api/images).
    allow_host
        A further host name that the page answers to, for example that of a proxy; may be given several times.
    proxy
        Address or network of a proxy whose X-Forwarded-For, -Proto, -Host and -Prefix headers are believed;
        may be given several times. By default none is.
    root_path
        Path below which a proxy shows the page, for example /search.
    log_format
        text logs warnings only; json logs one line of JSON per request.
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
    for module in ("fastapi", "uvicorn", "jinja2", "python_multipart", "prometheus_client"):
        require(module)
    from forerank.search.index import Index
    from forerank.web.serving import Limits, serve_index
    from forerank.web.settings import parse_proxies, parse_root_path, read_token

    keep_freed_memory()
    size = int(upload_megabytes * 1e6)
    limits = Limits(
        bytes=size, pixels=int(upload_megapixels * 1e6), bytes_together=max(Limits.bytes_together, size)
    )
    serve_index(
        Index.open(index, root=images, model=model),
        host=host,
        port=port,
        log_format=log_format,
        title=title,
        limits=limits,
        token=read_token(token_file),
        hosts=allow_host,
        proxies=parse_proxies(proxy),
        root_path=parse_root_path(root_path),
        adding=allow_adding,
    )
