"""A loss from its derivative: the paper's own come out again, and nothing a user writes is run."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
from scipy.integrate import quad

from forerank.errors import InputError
from forerank.losses import PNPLoss, create_loss
from forerank.losses.design import design
from forerank.losses.expression import evaluate_at, read_expression
from waiting import LIMIT

R = torch.cat([torch.zeros(1), torch.logspace(-6, 4, 400)]).double()
PAPER = {
    "O": ("1", {}),
    "Iu": ("1 + log(1 + R)", {}),
    "Iu_exact": ("log(1 + R)", {}),
    "Ib": ("R / (1 + b*R)", {"b": 3}),
    "Ds": ("1 / (1 + R)", {}),
    "Dq": ("alpha / (1 + R)**(alpha + 1)", {"alpha": 18}),
}


@pytest.mark.parametrize("variant", PAPER)
def test_the_papers_derivatives_give_the_papers_losses(variant: str) -> None:
    text, parameters = PAPER[variant]
    loss = PNPLoss.from_derivative(text, parameters=parameters)
    wanted = PNPLoss(variant, **parameters).curve
    assert loss.design is not None
    assert loss.design.closed
    # To 1e-10 down to where 1 + R has no digits left for the loss.
    torch.testing.assert_close(loss.curve.value(R), wanted.value(R), rtol=1e-10, atol=1e-15)
    torch.testing.assert_close(loss.curve.slope(R), wanted.slope(R), rtol=1e-12, atol=0)
    x, labels = torch.randn(40, 8, dtype=torch.float64), torch.arange(40) // 4
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    a, b = loss(ours, labels), PNPLoss(variant, **parameters)(theirs, labels)
    a.backward()
    b.backward()
    torch.testing.assert_close(a, b, rtol=1e-10, atol=0)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "trend", "derivative_bound", "bound"),
    [
        ("1", "constant", 1, math.inf),
        ("1 + log(1 + R)", "increasing", math.inf, math.inf),
        ("R / (1 + 2*R)", "increasing", 0.5, math.inf),
        ("1 / (1 + R)", "decreasing", 1, math.inf),
        ("4 / (1 + R)**5", "decreasing", 4, 1),
        ("R / (1 + R)**3", "neither", 4 / 27, 0.5),
        ("R**2 - R + 1", "neither", math.inf, math.inf),
        ("1 / (1 + R) + R**2", "neither", math.inf, math.inf),
        ("1 + sin(2*R)", "neither", 2, math.inf),
        ("sqrt(R)", "increasing", math.inf, math.inf),
        ("65 / (1 + R)**66", "decreasing", 65, 1),
    ],
)
def test_what_is_found_out(text: str, trend: str, derivative_bound: float, bound: float) -> None:
    designed = design(text)
    assert (designed.trend, designed.closed) == (trend, True)
    assert designed.derivative_bound == pytest.approx(derivative_bound, rel=1e-4)
    assert designed.bound == pytest.approx(bound)
    assert trend in designed.describe()


def test_a_closed_form_keeps_its_digits() -> None:
    # The paper's Ib, where log(c + R) - log(c) in float64 would be off by 1e-9.
    designed = design("R / (1 + 0.001*R)")
    assert designed.closed
    assert "log(R/1000 + 1)" in designed.formula
    wanted = PNPLoss("Ib", b=0.001).curve.value(R)
    assert float(((designed.value(R) - wanted).abs() / (1 + wanted)).max()) <= 2 * designed.error < 1e-11


def test_a_pole_is_no_derivative() -> None:
    with pytest.raises(InputError, match="known only to"):
        design("1/(R-3)**2")


def test_bounds_of_a_callable() -> None:
    assert design(lambda r: 1e-10 / (1 + r)).bound == math.inf  # small, but without end
    assert design(lambda r: 0.5 / (1 + r) ** 1.5).bound == pytest.approx(1, rel=1e-4)
    assert design(lambda r: torch.exp(-r)).bound == pytest.approx(1)


def test_without_a_closed_form_the_error_is_stated_and_kept() -> None:
    designed = design("1 / (1 + R + sqrt(R) * atan(R))")
    assert not designed.closed
    assert 0 < designed.error < 1e-8
    assert "numerical" in designed.describe()
    # Against Simpson's rule on a fine grid.
    grid = torch.linspace(0, 5, 200_001, dtype=torch.float64)
    slopes = designed.slope(grid)
    simpson = (slopes[0] + 4 * slopes[1::2].sum() + 2 * slopes[2:-1:2].sum() + slopes[-1]) * (5 / 200_000) / 3
    assert float(designed.value(grid[-1:])) == pytest.approx(float(simpson), abs=2e-8)


def test_a_callable_derivative() -> None:
    loss = PNPLoss.from_derivative(lambda r: 2 / (1 + r) ** 3)
    assert loss.design is not None
    torch.testing.assert_close(loss.curve.value(R), 1 - (1 + R) ** -2, rtol=0, atol=1e-9)
    assert loss.design.trend == "decreasing"
    x = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
    loss(x, torch.arange(12) // 3).backward()
    with pytest.raises(InputError, match="shape"):
        PNPLoss.from_derivative(lambda r: r.sum())


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "R.__class__",
        "(lambda: R)()",
        "[R for R in (1,)]",
        "R if R else 1",
        "'R'",
        "R ^ 2",
        "R // 2",
        "exec('1')",
        "log(R, 2)",
        "log(x=R)",
        "f'{R}'",
        "R; R",
        "R = 1",
        "",
        "1 +",
        "R" * 400,
        "9**9**9**9",
        "((((9**64)**64)**64)**64)**64*R",
        "exp(exp(R*0+9**9))",
        "(2*R)**1e9",
        "(pi*R)**9999",
        "2**(1e9+0.5)",
        "R*9**60*9**60*9**60*9**60*9**60*9**60",
        "exp(exp(exp(exp(9))))*R",
        "log(0)",
        "log(-1)",
        "tan(pi/2)",
        "0**(-1)",
        "sqrt(-1)*R",
        "sqrt(-R)",
        "asin(2)*R",
        "(1+R)**1e6",
        "10**300 * R",
        "1/0",
        "Q + 1",
        "True",
        "1j",
        "-1",
        "1/(1-R)",
        "log(R)",
        "exp(R)",
        "+".join(["R"] * 120),
        "tanh(" * 20 + "R" + ")" * 20,
    ],
)
def test_what_is_not_a_derivative_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(InputError) as caught:
        design(text)
    assert "\n" not in str(caught.value)


def test_parameters() -> None:
    assert str(read_expression("a*R + 0.1", {"a": 0.5})) == "R/2 + 1/10"
    with pytest.raises(InputError, match="cannot be called 'log'"):
        read_expression("R", {"log": 1})
    with pytest.raises(InputError, match="unknown name"):
        create_loss("PNP", derivative="a*R")


# A formula or two for each method of the list, and the two that took longest when a clock ended the search.
CLOSED = [
    "1/(1+R)**1.5", "2**(-R)", "1 - exp(-R/5)", "tanh(R/3)", "atan(R)", "1 + log(1 + 2*R)",  # known
    "R**2*exp(-R/3)", "R*exp(-R)", "log(1+R)/(1+R)**3",  # by parts
    "R/(1+R)**2.5", "(2+R)**2/(1+R)**4",  # shifted
    "1/(1+sqrt(R))", "R**(1/3)/(1+R**(2/3))", "sqrt(1+R)/(2+R)",  # without roots
    "1/((1+R)*(2+R))", "1/(1+R+R**2)", "1/(1+R**3)",  # a fraction
    "R*exp(-R**2)", "sigmoid(R)", "1/((1+R)*(1+log(1+R))**2)", "1/(1+R)/sqrt(1+log(1+R))",  # substituted
]  # fmt: skip
TABULATED = ["1/(1 + R**3 + exp(R/9) + sqrt(1 + R*tanh(R)))", "1/(1 + R + sqrt(R) * atan(R))", "exp(-R**2)"]


@pytest.mark.parametrize("text", [*CLOSED, *TABULATED])
def test_the_loss_is_the_integral(text: str) -> None:
    designed = design(text)
    assert designed.closed is (text in CLOSED)
    assert designed.error < (1e-12 if designed.closed else 1e-4)
    expression = read_expression(text)

    def slope(r: float) -> float:
        return float(evaluate_at(expression, torch.tensor([r], dtype=torch.float64)))

    for end in (0.3, 4.0, 60.0):
        wanted, uncertain = quad(slope, 0, end, epsabs=1e-12, epsrel=1e-12, limit=200)
        got = float(designed.value(torch.tensor([end], dtype=torch.float64)))
        assert got == pytest.approx(wanted, abs=uncertain + designed.error * (1 + wanted) + 1e-11)


def test_a_formula_gives_the_same_loss_in_every_process() -> None:
    """Whatever was computed before, and however Python orders its sets, which sympy works with."""
    code = (
        "import json, sys; from forerank.losses.design import design; import torch\n"
        "r = torch.logspace(-3, 6, 50, dtype=torch.float64)\n"
        "designs = {text: design(text) for text in json.loads(sys.argv[1])}\n"
        "told = {text: [d.formula, d.error, d.value(r).tolist()] for text, d in designs.items()}\n"
        "print(json.dumps(told))"
    )
    texts = [*CLOSED, *TABULATED]
    answers = []
    for seed, order in (("0", texts), ("1", texts[::-1])):
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(order)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=LIMIT,
        )  # fmt: skip
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1]
