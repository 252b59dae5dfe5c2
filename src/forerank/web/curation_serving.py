"""Listen on this machine only: the page of a curation, until interrupted."""

import contextlib
import socket
from pathlib import Path

from forerank.console import say
from forerank.errors import InputError
from forerank.search.corrections import Corrections
from forerank.search.curation import Curation


def serve_curation(
    curation: Curation, corrections: Corrections, output: Path, *, title: str, port: int
) -> None:
    """Serve the page until interrupted. There is no host to choose: it changes labels and moves files."""
    import uvicorn

    from forerank.web.curation import CORRECTED, create_curation_app

    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(64)
    except OSError as error:
        raise InputError(f"cannot listen on port {port}: {error.strerror}. Try another --port.") from error
    app = create_curation_app(curation, corrections, output, title)
    say(f"curate at http://127.0.0.1:{listening.getsockname()[1]}, Ctrl-C to stop; {corrections.file} keeps")
    say("every decision as soon as it is made")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
    with contextlib.suppress(KeyboardInterrupt):  # the way to end it
        server.run(sockets=[listening])
    if (output / CORRECTED).exists():
        say(f"the table as decided, to train on next: forerank train {output / CORRECTED}")
