"""The command line: thin. Parse, call one function, print."""

import os
import signal
import sys
from typing import NoReturn

from cyclopts import App

from forerank import __version__
from forerank.errors import ForerankError

# Verb -> (function, one line of help). Functions are imported only when their verb is used.
VERBS: dict[str, tuple[str, str]] = {
    "losses": ("forerank.cli.losses:app", "List the losses; plot one you write down as a derivative."),
}


def build_app() -> App:
    """The command line as an object, for `main` and for tests."""
    app = App(
        name="forerank",
        help="Train, evaluate and serve image retrieval by counting what stands before.",
        help_epilogue="Start with: forerank demo    Your images: forerank train ./my_images",
        version=__version__,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    for verb, (where, help_line) in VERBS.items():
        app.command(where, name=verb, help=help_line)
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 failed, 2 bad request, 130 interrupted."""
    try:
        build_app()(sys.argv[1:] if arguments is None else arguments, result_action="return_none")
    except ForerankError as error:
        print(f"forerank: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("forerank: interrupted; the same command takes up where it left off", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) went away: not a fault. Keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def main() -> NoReturn:
    """Entry point of the `forerank` command."""
    sys.exit(run())
