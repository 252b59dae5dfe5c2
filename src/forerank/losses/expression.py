"""Reading a formula in R that a user wrote, without ever evaluating it as code.

Python's own grammar takes the text apart; every piece must then be on a short list. sympy's parser is not
used: it calls `eval`.
"""

import ast
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from forerank.errors import InputError, check_name, unknown

LONGEST, MOST_NODES, LARGEST_NUMBER, LARGEST_POWER = 300, 120, 1e9, 1001
MOST_NESTED = 4  # functions within each other; sympy takes several times as long for each further one
LARGEST_CONSTANT = 1e15  # tan(pi/2) is larger
MOST_BITS = 1000  # of an exact number; longer ones take for ever to work out, and are no float

FUNCTIONS = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "erf": torch.erf,
}
# Written as something simpler.
SHORTHANDS: dict[str, Callable[[Callable[[str, Any], Any], Any], Any]] = {
    "log1p": lambda function, x: function("log", 1 + x),
    "expm1": lambda function, x: function("exp", x) - 1,
    "sigmoid": lambda function, x: 1 / (1 + function("exp", -x)),
}


def read_expression(text: str, parameters: Mapping[str, float] | None = None) -> Any:
    """A sympy expression in R from text, with the parameters' numbers put in.

    Its constants are fractions, pi and log(2) those of their decimals: sympy would look for special values
    and signs of exact ones, which has no end for some formulas.

    >>> read_expression("alpha / (1 + R)**(alpha + 1)", {"alpha": 4})
    4/(R + 1)**5
    >>> read_expression("__import__('os')")
    Traceback (most recent call last):
    forerank.errors.InputError: unknown function '__import__'. Valid: ...
    """
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise InputError(f"write a formula in R of at most {LONGEST} characters, such as '1/(1+R)**2'.")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"cannot read the formula {text!r}: it must look like '1/(1+R)**2'.") from error
    if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise InputError(f"the formula {text[:40]!r}... has too many terms.")
    if _nested(tree.body) > MOST_NESTED:
        raise InputError(
            f"the formula {text[:40]!r}... has more than {MOST_NESTED} functions within each other."
        )
    return _Reader(text, dict(parameters or {})).whole(tree.body)


def _nested(node: ast.AST) -> int:
    inside = max(map(_nested, ast.iter_child_nodes(node)), default=0)
    return inside + isinstance(node, ast.Call)


class _Reader:
    def __init__(self, text: str, parameters: dict[str, float]) -> None:
        import sympy

        self.sympy, self.text = sympy, text
        self.names: dict[str, Any] = {"R": sympy.Symbol("R"), "pi": self.fraction(math.pi)}
        for name, value in parameters.items():
            if name in self.names or name in FUNCTIONS or name in SHORTHANDS or not str(name).isidentifier():
                raise InputError(f"a parameter cannot be called {name!r}.")
            self.names[name] = self.number(value)

    def number(self, value: object) -> Any:
        """An exact number: 0.1 is read as one tenth."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputError(f"{value!r} is not a number, in the formula {self.text!r}.")
        if not math.isfinite(value) or abs(value) > LARGEST_NUMBER:
            raise InputError(f"the number {value!r} is too large, in the formula {self.text!r}.")
        return self.sympy.Rational(str(value))

    def fraction(self, value: float) -> Any:
        """A constant that was computed, as the fraction of its decimal."""
        if not math.isfinite(value):
            raise ValueError(f"{value} is not finite")
        return self.sympy.Rational(str(value))

    def whole(self, node: ast.expr) -> Any:
        """The formula, every constant part of which is a finite real number."""
        expression = self.read(node)
        parts = self.sympy.preorder_traversal(expression)
        for part in parts:
            if not part.free_symbols:
                self.real(partial(real_number, part))
                parts.skip()
        return expression

    def real(self, work: Callable[[], Any]) -> Any:
        """The result of the work, or a sentence if a number in it is not a finite real one."""
        try:
            return work()
        except InputError:
            raise
        except (ValueError, OverflowError) as error:
            raise InputError(f"part of the formula {self.text!r} is not a finite real number.") from error

    def read(self, node: ast.expr) -> Any:
        """Checked at every step: what is refused here would hang or fail in the next."""
        expression = self.real(lambda: self.piece(node))
        sympy = self.sympy
        if expression.has(sympy.I, sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
            raise InputError(f"part of the formula {self.text!r} is not a finite real number.")
        if expression.is_Rational and abs(expression) > LARGEST_CONSTANT:
            raise InputError(f"part of the formula {self.text!r} is too large a number.")
        if sum(1 for _ in sympy.preorder_traversal(expression)) > 2 * MOST_NODES:
            raise InputError(f"the formula {self.text[:40]!r}... has too many terms when it is worked out.")
        if _bits(expression) > MOST_BITS:
            raise InputError(f"a number in the formula {self.text!r} has too many digits.")
        powers = (power.exp for power in expression.atoms(sympy.Pow))
        if any(power.is_Rational and abs(power) > LARGEST_POWER for power in powers):
            raise InputError(f"powers above {LARGEST_POWER} are not allowed, in the formula {self.text!r}.")
        return expression

    def function(self, name: str, x: Any) -> Any:
        """One of FUNCTIONS: of a number by the processor, of R by sympy."""
        if x.is_Rational:
            return self.fraction(getattr(math, name)(float(x)))
        return getattr(self.sympy, name)(x)

    def piece(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return self.number(value)
            case ast.Name(id=name):
                check_name("name in the formula", name, self.names)
                return self.names[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.read(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.read(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return self.combine(op, self.read(left), self.read(right))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
                if name in SHORTHANDS:
                    return SHORTHANDS[name](self.function, self.read(argument))
                if name in FUNCTIONS:
                    return self.function(name, self.read(argument))
                raise unknown("function", name, [*FUNCTIONS, *SHORTHANDS])
        piece = ast.unparse(node)
        raise InputError(
            f"{piece!r} is not allowed in a formula: use R, numbers, + - * / ** and {', '.join(FUNCTIONS)}."
        )

    def combine(self, op: ast.operator, left: Any, right: Any) -> Any:
        match op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                if right == 0:
                    raise InputError(f"the formula {self.text!r} divides by zero.")
                return left / right
            case ast.Pow():
                if left.is_Rational and right.is_Rational and not right.is_Integer:
                    return self.fraction(math.pow(left, right))
                # Powers of numbers are worked out digit by digit, those of sums with R are left as they are.
                worked_out = right.is_Rational and not left.is_Add
                if worked_out and abs(right) * _bits(left) > MOST_BITS:
                    raise InputError(f"a power in the formula {self.text!r} is too large.")
                return left**right
        raise InputError(
            f"that operator is not allowed in the formula {self.text!r}: use + - * / and ** for powers."
        )


def _bits(expression: Any) -> int:
    """The length of the longest exact number in an expression, in bits."""
    import sympy

    numbers = expression.atoms(sympy.Rational)
    return max((max(abs(number.p), number.q).bit_length() for number in numbers), default=0)


def real_number(expression: Any) -> float:
    """A constant expression as a float; a ValueError if it is not real, not finite or beyond a float."""
    try:
        value = float(expression)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{expression} is not a real number.") from error
    if not math.isfinite(value):
        raise ValueError(f"{expression} is not finite.")
    return value


def computable(expression: Any) -> bool:
    """Whether `evaluate_at` knows every part of the expression."""
    import sympy

    return all(
        node.is_Number
        or node.is_Symbol
        or node in (sympy.pi, sympy.E)
        or node.is_Add
        or node.is_Mul
        or node.is_Pow
        or type(node).__name__ in FUNCTIONS
        for node in sympy.preorder_traversal(expression)
    )


def evaluate_at(expression: Any, r: Tensor) -> Tensor:
    """The expression at each R of `r`, any shape.

    >>> evaluate_at(read_expression("log(1 + R)"), torch.tensor([1e-20], dtype=torch.float64))
    tensor([1.0000e-20], dtype=torch.float64)
    """
    if expression.is_Symbol:
        return r
    if not expression.free_symbols:
        return torch.full_like(r, real_number(expression))
    parts = expression.args
    if expression.is_Add:
        return sum((evaluate_at(part, r) for part in parts[1:]), evaluate_at(parts[0], r))
    if expression.is_Mul:
        return math.prod((evaluate_at(part, r) for part in parts[1:]), start=evaluate_at(parts[0], r))
    if expression.is_Pow:
        base, power = parts
        if not power.free_symbols:
            return torch.pow(evaluate_at(base, r), real_number(power))
        return torch.pow(evaluate_at(base, r), evaluate_at(power, r))
    name = type(expression).__name__
    if name == "log" and parts[0].is_Add and 1 in parts[0].args:
        return torch.log1p(evaluate_at(parts[0] - 1, r))  # keeps the digits of a small R
    return FUNCTIONS[name](evaluate_at(parts[0], r))
