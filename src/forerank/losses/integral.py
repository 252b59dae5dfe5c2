"""Integrals by a fixed list of methods, each with an end: the same closed form, or none, on every machine.

sympy.integrate knows more, but how long it looks for a closed form has no bound. The variables are plain
symbols: of one that is called positive sympy would work out the sign of every part, by roots of polynomials.
"""

from collections.abc import Callable
from math import comb, lcm
from typing import Any

import sympy
from sympy.integrals.rationaltools import ratint

DEEPEST, LARGEST = 3, 60  # substitutions within each other, and parts of a formula
MOST_TERMS = 24  # of a product that is multiplied out
HIGHEST_DEGREE, MOST_BITS = 8, 64  # of a fraction of polynomials, and of its numbers

# The primitives of functions of x.
PRIMITIVES: dict[str, Callable[[Any], Any]] = {
    "exp": sympy.exp,
    "log": lambda x: x * sympy.log(x) - x,
    "sin": lambda x: -sympy.cos(x),
    "cos": sympy.sin,
    "sinh": sympy.cosh,
    "cosh": sympy.sinh,
    "tanh": lambda x: x + sympy.log(1 + sympy.exp(-2 * x)),  # log(cosh(x)) would overflow
    "atan": lambda x: x * sympy.atan(x) - sympy.log(1 + x**2) / 2,
}


def primitive(f: Any, x: Any, depth: int = 0) -> Any | None:
    """An expression whose derivative in x is f, or None if no method of the list finds one.

    >>> R = sympy.Symbol("R")
    >>> primitive(1 / ((1 + R) * (1 + sympy.log(1 + R)) ** 2), R)
    -1/(log(R + 1) + 1)
    >>> primitive(sympy.sqrt(R) / (1 + sympy.exp(R)), R) is None
    True
    """
    if sum(1 for _ in sympy.preorder_traversal(f)) > LARGEST:
        return None
    constant, f = f.as_independent(x, as_Add=False)
    if f == 1:
        return constant * x
    if f.is_Add:
        parts = [primitive(part, x, depth) for part in f.args]
        return None if None in parts else constant * sympy.Add(*parts)
    for method in METHODS:
        found = method(f, x, depth)
        if found is not None:
            return constant * found
    return None


def _known(f: Any, x: Any, depth: int) -> Any | None:
    """A power or a function of a + b*x, or a number to the power of it."""
    base, power = (f.args[0], None) if type(f).__name__ in PRIMITIVES else f.as_base_exp()
    if power is not None and not base.has(x):
        rate = power.diff(x) * sympy.log(base)
        return None if rate.has(x) else f / rate
    slope = base.diff(x)
    if slope.has(x) or slope == 0 or (power is not None and power.has(x)):
        return None
    if power is None:
        return PRIMITIVES[type(f).__name__](base) / slope
    return (sympy.log(base) if power == -1 else base ** (power + 1) / (power + 1)) / slope


def _by_parts(f: Any, x: Any, depth: int) -> Any | None:
    """A power of x times an exponential, a wave or a logarithm of a + b*x."""
    factors = {type(factor).__name__: factor for factor in f.args} if f.is_Mul and len(f.args) == 2 else {}
    other = next((factors[name] for name in ("log", "exp", "sin", "cos") if name in factors), None)
    if other is None or (f / other).as_base_exp()[0] != x:
        return None
    power = (f / other).as_base_exp()[1]
    if isinstance(other, sympy.log) and other.args[0] == x and power != -1 and not power.has(x):
        whole = x ** (power + 1) / (power + 1)
        return whole * other - whole / (power + 1)
    if isinstance(other, sympy.log) or not (power.is_Integer and 0 < power <= HIGHEST_DEGREE):
        return None
    whole = _known(other, x, depth)
    rest = None if whole is None else primitive(power * x ** (power - 1) * whole, x, depth)
    return None if rest is None else x**power * whole - rest


def _shifted(f: Any, x: Any, depth: int) -> Any | None:
    """Powers and logarithms of one a + b*x: that is the new variable, and the rest is multiplied out."""
    bases = [part.args[0] for part in sympy.preorder_traversal(f) if isinstance(part, (sympy.Pow, sympy.log))]
    lines = [base for base in bases if base.is_Add and base.diff(x).is_number]
    if depth >= DEEPEST or not lines:
        return None
    u = sympy.Symbol(f"u{depth}")
    slope, start = lines[0].diff(x), lines[0].subs(x, 0)
    new = _multiplied_out(f.xreplace({lines[0]: u}).subs(x, (u - start) / slope))
    found = primitive(new, u, depth + 1)
    return None if found is None else found.subs(u, lines[0]) / slope


def _without_roots(f: Any, x: Any, depth: int) -> Any | None:
    """Roots of x: with x = u**n there is none."""
    powers = [part.exp for part in sympy.preorder_traversal(f) if part.is_Pow and part.base == x]
    n = lcm(*(int(power.q) for power in powers if power.is_Rational))
    if depth >= DEEPEST or not 1 < n <= HIGHEST_DEGREE:
        return None
    u = sympy.Symbol(f"u{depth}")
    new = f.xreplace({x**power: u ** (n * power) for power in powers}).xreplace({x: u**n})
    found = primitive(_multiplied_out(new * n * u ** (n - 1)), u, depth + 1)
    return None if found is None else found.subs(u, x ** sympy.Rational(1, n))


def _fraction(f: Any, x: Any, depth: int) -> Any | None:
    """A fraction of polynomials, if the factors of its denominator have degree 1 or 2."""
    powers = (part.exp for part in sympy.preorder_traversal(f) if part.is_Pow)
    if not f.is_rational_function(x) or any(abs(power) > HIGHEST_DEGREE for power in powers):
        return None
    above, below = sympy.fraction(sympy.together(f))
    numbers = f.atoms(sympy.Rational)
    if any(max(abs(number.p), number.q).bit_length() > MOST_BITS for number in numbers):
        return None
    if max(sympy.degree(above, x), sympy.degree(below, x)) > HIGHEST_DEGREE:
        return None
    simple = all(sympy.degree(factor, x) <= 2 for factor, _ in sympy.factor_list(below, x)[1])
    if not simple:
        return None
    return sympy.Add(*(ratint(part, x, real=True) for part in sympy.Add.make_args(sympy.apart(f, x))))


def _substituted(f: Any, x: Any, depth: int) -> Any | None:
    """A function of g times the derivative of g, where g is a part of the formula."""
    u = sympy.Symbol(f"u{depth}")
    for g in dict.fromkeys(part for part in sympy.preorder_traversal(f) if part.has(x)):
        if depth >= DEEPEST or g in (f, x) or g.is_Mul:
            continue
        new = (f / g.diff(x)).subs(g, u)
        if not new.has(x):
            found = primitive(new, u, depth + 1)
            if found is not None:
                known = {sympy.log(u): g.args[0]} if isinstance(g, sympy.exp) else {}
                return found.xreplace(known).subs(u, g)
    return None


def _multiplied_out(f: Any) -> Any:
    """A product as a sum, if it has no more than MOST_TERMS terms."""
    terms = 1
    for factor in sympy.Mul.make_args(f):
        base, power = factor.as_base_exp()
        if base.is_Add and power.is_Integer and power > 0:
            terms *= comb(int(power) + len(base.args) - 1, int(power))
    return sympy.expand_mul(sympy.expand_multinomial(f)) if terms <= MOST_TERMS else f


METHODS = (_known, _by_parts, _shifted, _without_roots, _fraction, _substituted)
