"""A loss as the registry holds it: one object that knows its name, formula, derivative and arguments."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from forerank.errors import InputError, check_name
from forerank.losses.base import RankingLoss

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class NamedLoss:
    """A loss with everything that recipes, the command line and figures show of it.

    Attributes:
        name: what recipes and the command line call it.
        build: makes the loss from keyword arguments: a class, a classmethod or a `partial` of one.
        formula: the cost of a positive. R or R_N is the number of negatives before it, R_P of positives.
        derivative: of the formula in R.
        label: its name in figures, where `$...$` is set as mathematics; the name if empty.

    >>> from forerank.losses import PNPLoss
    >>> NamedLoss("mine", PNPLoss, "1 - (1 + R)^-alpha", "alpha / (1 + R)^(alpha + 1)").create(alpha=2).alpha
    2.0
    """

    name: str
    build: Callable[..., RankingLoss]
    formula: str
    derivative: str
    label: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """Argument -> its default, or `REQUIRED`.

        >>> from forerank.losses import LOSSES
        >>> LOSSES["Sup-AP"].arguments["slope"], "linear_tail" in LOSSES["Sup-AP"].arguments
        (100.0, False)
        """
        shared = inspect.signature(RankingLoss).parameters
        defaults: dict[str, Any] = {}
        for parameter in inspect.signature(self.build).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                # `**shared: Unpack[Softened]` names them; without that annotation all are accepted.
                kinds = get_args(parameter.annotation)
                names = kinds[0].__annotations__ if kinds else shared
                defaults |= {name: shared[name].default for name in shared if name in names}
            else:
                defaults[parameter.name] = parameter.default
        return defaults

    @property
    def documentation(self) -> str:
        """What `build` says about itself, without its example."""
        text = inspect.getdoc(getattr(self.build, "func", self.build)) or ""
        return re.sub(r"\nExample:\n.*?(?=\n\w|\Z)|\n>>>.*", "", text, flags=re.DOTALL).strip()

    def create(self, **arguments: Any) -> RankingLoss:
        """Build the loss; an argument that does not exist is refused with the nearest."""
        valid = self.arguments
        for argument in arguments:
            check_name(f"argument of {self.name}", argument, valid)
        missing = [name for name, default in valid.items() if default is REQUIRED and name not in arguments]
        if missing:
            raise InputError(f"the loss {self.name} needs the argument {missing[0]!r}.")
        return self.build(**arguments)

    def describe(self) -> dict[str, str]:
        """Name, formula, derivative and arguments as texts."""
        arguments = ", ".join(
            name if default is REQUIRED else f"{name}={default}" for name, default in self.arguments.items()
        )
        row = {"name": self.name, "formula": self.formula, "derivative": self.derivative}
        return row | {"arguments": arguments}
