"""`forerank losses`: what there is to minimise, and what a derivative of one's own would look like."""

import math
from pathlib import Path

from cyclopts import App

from forerank.console import format_table, print_json, say
from forerank.errors import InputError

app = App(
    name="losses",
    help="List the losses; plot one you write down as a derivative.",
    help_epilogue='Examples: forerank losses    forerank losses plot "1/(1+R)**2" --out mine.png',
    help_format="plaintext",
)


@app.default
def list_losses(*, json: bool = False) -> None:
    """List every loss with its formula and derivative in R, the negatives that stand before a positive.

    Example: forerank losses

    Parameters
    ----------
    json
        Print for a machine.
    """
    from forerank.losses.registry import describe_losses

    rows = describe_losses()
    if json:
        print_json(rows)
        return
    header = ["name", "formula", "derivative"]
    print(format_table(header, [[row[column] for column in header] for row in rows]))


@app.command
def plot(
    derivative: str, *, out: Path = Path("loss.png"), parameter: list[str] | None = None, to: float = 10.0
) -> None:
    """Integrate a derivative in R, say what loss it gives, and draw both beside the paper's five.

    Example: forerank losses plot "1/(1+R)**2" --out loss.png

    Example: forerank losses plot "a/(1+R)**(a+1)" --parameter a=6 --out loss.svg

    Parameters
    ----------
    derivative
        A formula in R with + - * / **, numbers and elementary functions.
    out
        The picture to write: .png, .svg or .pdf.
    parameter
        A number for another name in the formula, as name=number; may be given several times.
    to
        Draw R from 0 to this.
    """
    from forerank.losses.plot import plot_losses
    from forerank.losses.pnp import PNPLoss

    if out.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"cannot write {out.name!r}: the picture must end in .png, .svg or .pdf.")
    if not 0 < to < math.inf:
        raise InputError(f"--to must be a positive number, not {to!r}.")
    loss = PNPLoss.from_derivative(derivative, parameters=_numbers(parameter or []))
    if loss.design is not None:
        print(loss.design.describe())
    try:
        say(f"wrote {plot_losses(out, loss, farthest=to)}")
    except OSError as error:
        raise InputError(f"cannot write {str(out)!r}: {error.strerror or error}.") from error


def _numbers(texts: list[str]) -> dict[str, float]:
    """From ["a=6"] to {"a": 6.0}."""
    found = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError as error:
            raise InputError(f"a parameter is written name=number, not {text!r}.") from error
    return found
