"""The methods that the paper compares, and what each means as recipe values."""

from dataclasses import dataclass

from forerank.training.methods import METHODS as REGISTRY


@dataclass(frozen=True)
class PaperMethod:
    """How to train with a method of the paper.

    Attributes:
        values: recipe assignments (``key=value``).
        note: where it differs from the paper that introduced it; stands beside its row.
        tuned: a second value that is chosen on the validation classes, after the learning rate.
        candidates: what is tried for it; for `PROXY_RATE` as multiples of the rate that it has by itself.
    """

    values: tuple[str, ...]
    note: str = ""
    tuned: str | None = None
    candidates: tuple[float, ...] = ()

    @property
    def ours(self) -> bool:
        """Whether it is one of Forerank's own losses, without a method around it."""
        return self.values[0].startswith("loss=")


VARIANTS = ("O", "Iu", "Ib", "Ds", "Dq")
# The term of AP is R/(1+R_P+R); without the positives before it is R/(1+R), which is Dq at alpha = 1.
WITHOUT_POSITIVES = "AP without R_P"
PROXY_RATE = "optimiser.loss_lr"
# Methods of the registry with proxies, centres or boundaries that learn at a rate of their own.
_WITH_PROXIES = ("margin", "mic", "proxynca", "proxynca++", "softtriple")


def _from_registry(key: str) -> PaperMethod:
    note = "; ".join(REGISTRY[key].deviations)
    if key in _WITH_PROXIES:
        return PaperMethod((f"method={key}",), note, PROXY_RATE, (0.1, 1.0, 10.0))
    return PaperMethod((f"method={key}",), note)


METHODS: dict[str, PaperMethod] = {
    "O": PaperMethod(("loss=PNP-O",)),
    "Iu": PaperMethod(("loss=PNP-Iu",)),
    "Ib": PaperMethod(("loss=PNP-Ib", "loss.options.b=2"), "", "loss.options.b", (1.0, 2.0, 4.0)),
    "Ds": PaperMethod(("loss=PNP-Ds",)),
    "Dq": PaperMethod(("loss=PNP-Dq",)),
    WITHOUT_POSITIVES: PaperMethod(("loss=PNP-Dq", "loss.options.alpha=1")),
    "Smooth-AP": PaperMethod(("loss=Smooth-AP",), "; ".join(REGISTRY["smooth-ap"].deviations)),
    **{method.title: _from_registry(key) for key, method in REGISTRY.items() if key != "smooth-ap"},
}
