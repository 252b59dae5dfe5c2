"""`forerank losses`: list and describe the losses, and draw the loss of a derivative that you write down."""

import math
from pathlib import Path

from cyclopts import App

from forerank.console import format_table, print_json, say
from forerank.errors import InputError

app = App(
    name="losses",
    help="List or describe the losses; plot one that you write down as a derivative.",
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
    from forerank.losses import known_losses

    rows = [loss.describe() for loss in known_losses().values()]
    header = ["name", "formula", "derivative"]
    if json:
        print_json(rows)
    else:
        print(format_table(header, [[row[column] for column in header] for row in rows]))


@app.command
def show(name: str, /, *, json: bool = False) -> None:
    """Describe one loss: formula, derivative, arguments with their defaults, and what it is for.

    Example: forerank losses show PNP-Dq

    Parameters
    ----------
    name
        The loss, as `forerank losses` lists it.
    json
        Print for a machine.
    """
    from forerank.losses import find_loss

    loss = find_loss(name)
    row = loss.describe()
    if json:
        print_json(row)
        return
    print("\n".join(f"{key:<11}{text}" for key, text in row.items()))
    if loss.documentation:
        print(f"\n{loss.documentation}")


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
    numbers = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            numbers[name.strip()] = float(number)
        except ValueError as error:
            raise InputError(f"a parameter is written name=number, not {text!r}.") from error
    return numbers
