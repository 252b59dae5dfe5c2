"""The methods the paper compares, and what each means as recipe values."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """How to train with a method of the paper.

    Attributes:
        values: recipe assignments (``key=value``); empty if nobody's package implements it.
        note: what a reader of the table should know.
    """

    values: tuple[str, ...]
    note: str = ""

    @property
    def runs(self) -> bool:
        """Whether it can be trained here."""
        return bool(self.values)


_ABSENT = "not run: no implementation in the packages"

VARIANTS = ("O", "Iu", "Ib", "Ds", "Dq")

METHODS: dict[str, Method] = {
    "O": Method(("loss=PNP-O",)),
    "Iu": Method(("loss=PNP-Iu",)),
    "Ib": Method(("loss=PNP-Ib",)),
    "Ds": Method(("loss=PNP-Ds",)),
    "Dq": Method(("loss=PNP-Dq",)),
    "Smooth-AP": Method(("loss=Smooth-AP",)),
    "Histogram": Method(("loss=pml:HistogramLoss",)),
    "Margin": Method(("loss=pml:MarginLoss", "loss.miner=pml:DistanceWeightedMiner")),
    "FastAP": Method(("loss=pml:FastAPLoss",)),
    "SoftTriple": Method(("loss=pml:SoftTripleLoss",)),
    "Contrastive with memory": Method(("loss=pml:ContrastiveLoss", "loss.memory=1024")),
    "ProxyNCA": Method(("loss=pml:ProxyNCALoss",)),
    "ProxyNCA++": Method(
        ("loss=pml:ProxyNCALoss", "loss.options.softmax_scale=9", "model.layer_norm=true"),
        "its temperature and layer norm, without its max pooling",
    ),
    "Triplet": Method(
        (
            "loss=pml:TripletMarginLoss",
            "loss.miner={name: pml:TripletMarginMiner, type_of_triplets: semihard}",
        ),
        "semi-hard triplets",
    ),
    "Divide & Conquer": Method((), _ABSENT),
    "MIC": Method((), _ABSENT),
    "RankMI": Method((), _ABSENT),
    "Blackbox AP": Method(("loss=Blackbox-AP",), "without the random margins of the published code"),
    "DCML-MDW": Method((), _ABSENT),
}
