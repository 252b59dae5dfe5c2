"""Listen on this machine only: the page of a curation, until interrupted."""

import contextlib
from pathlib import Path

from forerank.console import say
from forerank.search.corrections import Corrections
from forerank.search.curation import Curation
from forerank.web.serving import listen


def serve_curation(
    curation: Curation, corrections: Corrections, output: Path, *, title: str, port: int
) -> None:
    """Serve the page until interrupted. There is no host to choose: it changes labels and moves files."""
    import uvicorn

    from forerank.web.curation import CORRECTED, create_curation_app

    listening = listen("127.0.0.1", port)
    app = create_curation_app(curation, corrections, output, title)
    say(f"curate at http://127.0.0.1:{listening.getsockname()[1]}, Ctrl-C to stop; {corrections.file} keeps")
    say("every decision as soon as it is made")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
    with contextlib.suppress(KeyboardInterrupt):  # the way to end it
        server.run(sockets=[listening])
    if (output / CORRECTED).exists():
        say(f"the table as decided, to train on next: forerank train {output / CORRECTED}")
