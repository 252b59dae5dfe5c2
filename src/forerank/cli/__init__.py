"""The command line. Each command reads its words, calls one function and prints the result."""

import os
import signal
import sys
from inspect import signature
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from forerank import __version__
from forerank.console import say
from forerank.errors import ForerankError, check_name, unknown

if TYPE_CHECKING:
    from cyclopts import App

# Verb -> (function in this package, one line of help). It is imported only when its verb is used.
VERBS: dict[str, tuple[str, str]] = {
    "audit": ("audit:audit", "Look for wrong labels, copies and unusual pictures; correct them on a page."),
    "calibrate": ("calibrate:calibrate", "Choose the similarity above which a match is trusted."),
    "compare": (
        "compare:compare",
        "Compare finished runs: tables, curves, paired differences with intervals.",
    ),
    "data": ("data:app", "Data sets: list them, show one, check every image, download, export."),
    "demo": ("demo:demo", "Start here: the main job on data that comes with Forerank, in a minute or two."),
    "doctor": ("doctor:doctor", "Show what this machine has, what is missing and how to get it."),
    "duplicates": (
        "duplicates:duplicates",
        "List near-identical images of an index, or look at them on a page.",
    ),
    "embed": ("embed:embed", "Turn pictures into vectors with a run, a model or a backbone."),
    "evaluate": ("evaluate:evaluate", "Measure the retrieval of a run, or of your own vectors and labels."),
    "export": ("export:export", "Write a model as ONNX, checked against torch."),
    "index": ("index:index", "Embed images into an index that can be searched."),
    "losses": ("losses:app", "List or describe the losses; plot one from its derivative."),
    "map": ("map:draw_map", "Lay out an index as a map that its search page shows."),
    "methods": ("methods:methods", "List the methods to train with: paper and deviations."),
    "models": ("models:app", "List the backbones and their names."),
    "paper": ("paper:app", "Repeat the paper's tables and figures beside the published numbers."),
    "recipe": ("recipe:app", "List the recipes that come with Forerank; show every value of one."),
    "search": ("search:search", "Find the images of an index nearest to a picture."),
    "serve": ("serve:serve", "Open the search page of an index."),
    "train": ("train:train", "Train on a folder of images or by a recipe; resume a run."),
    "verify": ("verify:verify", "Read every byte of an index and compare its checksums."),
}

# Verbs that keep what they have done so far.
_RESUMING = {"index", "paper", "train"}
_FIRST_STEPS = "Start with: forerank demo    Your images: forerank train ./my_images"


def build_app(verb_in_use: str | None = None) -> "App":
    """The command line as an object.

    The list of verbs shows the lines above and imports nothing; the verb in use brings its own, full help.
    """
    from cyclopts import App

    app = App(
        name="forerank",
        help="Train, evaluate and serve image retrieval by counting what stands before.",
        help_epilogue=None if verb_in_use in VERBS else _FIRST_STEPS,
        version=__version__,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
        error_formatter=lambda error: f"forerank: {error}",
    )
    for verb, (where, help_line) in VERBS.items():
        help_text = {} if verb == verb_in_use else {"help": help_line}
        app.command(f"forerank.cli.{where}", name=verb, **help_text)
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code: 0 done, 1 failed, 2 bad request, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if words and not words[0].startswith("-"):
            check_name("command", words[0], VERBS)
        app = build_app(words[0] if words else None)
        _refuse_unknown_part(app, words)
        app(words, result_action="return_none")
    except ForerankError as error:
        if _is_ours_to_say(error):
            say(f"forerank: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say(_interrupted(words))
        return 130
    except BrokenPipeError:
        # The reader (head, less) went away: not a fault. Keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        # A full disk or a folder that may not be written to: the user can repair this, we cannot.
        where = f": {error.filename}" if error.filename else ""
        say(f"forerank: {error.strerror or error}{where}")
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _is_ours_to_say(error: ForerankError) -> bool:
    """Whether this process prints the error: under torchrun one does, or one per machine before they meet."""
    if error.said_elsewhere is not None:
        return not error.said_elsewhere
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _refuse_unknown_part(app: "App", words: list[str]) -> None:
    """`forerank data chek`: an unknown second word is refused, and the nearest one is suggested."""
    where, _ = VERBS.get(words[0], ("", "")) if words else ("", "")
    if len(words) < 2 or words[1].startswith("-") or not where.endswith(":app"):
        return
    part = app[words[0]]
    takes_a_word = part.default_command is not None and any(
        p.kind is p.POSITIONAL_ONLY for p in signature(part.default_command).parameters.values()
    )
    valid = [name for name in part if not name.startswith("-")]
    if words[1] not in valid and not takes_a_word:
        raise unknown(f"command of forerank {words[0]}", words[1], valid)


def _interrupted(words: list[str]) -> str:
    resumes = bool(words) and words[0] in _RESUMING
    return "forerank: interrupted" + ("; the same command continues where it stopped" if resumes else "")


def _on_interrupt(signal_number: int, frame: FrameType | None) -> None:
    """Ctrl-C: an ordinary KeyboardInterrupt, except while a module is being loaded.

    Half-loaded modules answer a KeyboardInterrupt with faults of their own, and nothing has begun yet.
    """
    inner = frame
    while inner is not None:
        if inner.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, f"{_interrupted(sys.argv[1:])}\n".encode(errors="replace"))
            os._exit(130)
        inner = inner.f_back
    signal.default_int_handler(signal_number, frame)


def main() -> NoReturn:
    """Entry point of the `forerank` command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is to be ignored
        signal.signal(signal.SIGINT, _on_interrupt)
    sys.exit(run())
