"""The sections of a recipe: each value with its default and what it means."""

from dataclasses import dataclass, field
from typing import Any, Literal


def setting(default: Any, about: str) -> Any:
    """A field with its default and the sentence that `forerank recipe show` prints beside it."""
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"about": about})
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class DataSection:
    """Which images, and how they are cut into training, validation and test classes."""

    source: str = setting("glyphs", "a data set's name, a folder (one sub-folder per class) or a .csv table")
    root: str | None = setting(None, "where the images of a named data set lie")
    options: dict[str, Any] = setting(  # noqa: RUF009
        {}, "of the data set's reader, such as {test: small}; see: forerank data show NAME"
    )
    validation: float = setting(
        0.2, "share of the training classes held out to choose the checkpoint; 0: none"
    )
    test: float = setting(0.3, "share of all classes held out for the test, if the data brings no test part")
    all_classes: bool = setting(
        False,
        "train on every class, the test ones too: for a model to ship; nothing is left to measure it on",
    )
    crop: Literal["paper", "official"] = setting(
        "paper", "training view: random crop of 224 from 256, or the authors' RandomResizedCrop"
    )
    colour: float = setting(
        0.0, "mode=full: brightness, contrast, saturation vary by up to this share in training; 0: off"
    )
    erase: float = setting(
        0.0, "mode=full: probability that a rectangle of a training view is made grey; 0: off"
    )
    train_size: int | None = setting(
        None, "side of the training views (mode=full); null: the model's; smaller is faster"
    )
    on_bad: Literal["refuse", "skip"] = setting("refuse", "an unreadable image ends the run, or is left out")
    check: bool = setting(True, "read image headers first: missing or broken files, copies in train and test")
    merge_classes: int = setting(0, "robustness study: merge training classes in groups of this size; 0: off")
    noisy_labels: float = setting(0.0, "robustness study: share of training labels made wrong")
    workers: int | None = setting(None, "image loading processes; null: chosen by the machine")


@dataclass(frozen=True)
class ModelSection:
    """Image batch -> unit vectors."""

    backbone: str = setting("efficientnet-lite0", "see: forerank models list; several side by side: A+B")
    embedding_dim: int | None = setting(
        512, "length of an embedding; 0: as long as the features; null: no head, the features themselves"
    )
    image_size: int | None = setting(
        None, "side of the square that the model sees; null: what its weights expect"
    )
    pooling: Literal["auto", "average", "gem", "max"] = setting(
        "auto", "how the feature map becomes one vector; auto: gem where it suits the backbone"
    )
    layer_norm: bool = setting(False, "layer norm before the linear embedding")
    head_start: Literal["features", "random", "whitening", "auto"] = setting(
        "features",
        "a new head keeps the features; random: torch's linear layer (the paper); whitening: within classes; "
        "auto: features or whitening, by validation (both need mode=head)",
    )
    shrinkage: float | None = setting(
        None, "of the whitening: 0.003 whitens nearly fully, 1 a little; null: chosen by validation"
    )
    slices: int = setting(1, "parts of the embedding that are normalised each by itself")
    pretrained: bool = setting(True, "start from the backbone's published weights")
    freeze_batch_norm: bool = setting(True, "keep batch-norm statistics as they are")
    frozen: float = setting(
        0.0, "share of the backbone's layers, the first ones, that do not learn (mode=full)"
    )


@dataclass(frozen=True)
class MethodSection:
    """A method of the literature: a loss, and what else its paper changes."""

    name: str | None = setting(None, "see: forerank methods; null: the loss below and nothing else")
    settings: Literal["protocol", "published"] = setting(
        "protocol", "published: also the rates, batches and epochs of the method's paper"
    )
    options: dict[str, Any] = setting({}, "of the method, such as {clusters: 4}")  # noqa: RUF009


@dataclass(frozen=True)
class LossSection:
    """What is minimised."""

    name: str = setting(
        "PNP-Dq", "see: forerank losses; pml:NAME: of pytorch-metric-learning; method: the method's own"
    )
    memory: int = setting(0, "embeddings of past batches kept as further references (memory bank); 0: none")
    options: dict[str, Any] = setting({}, "arguments of the loss, such as {alpha: 4}")  # noqa: RUF009


@dataclass(frozen=True)
class BatchSection:
    """How images come together in one step."""

    batch_size: int | None = setting(
        None, "images in a step, all processes together; null: fitted to the classes"
    )
    images_per_class: int = setting(4, "|P|: images of each class in a batch")
    micro_batch: int | None = setting(
        None, "images in memory at once (gradient caching); null: the whole batch"
    )
    sampling: Literal["distinct", "official"] = setting(
        "distinct", "classes of a batch distinct, or drawn with replacement as the authors do"
    )
    super_categories: int | None = setting(
        None, "draw each batch from this many super categories; null: from all"
    )
    hold_mb: int = setting(
        1024, "with micro_batch: images of a step are read again rather than held above this"
    )


@dataclass(frozen=True)
class OptimiserSection:
    """How weights move."""

    algorithm: Literal["adam", "adamw", "sgd"] = setting("adam", "")
    lr: float | None = setting(1e-5, "learning rate; null: 2e-4 for a head alone, 1e-4 for all weights")
    head_lr: float | None = setting(None, "learning rate of the embedding layer; null: lr")
    loss_lr: float | None = setting(None, "learning rate of the loss's own parameters; null: 100 x lr")
    weight_decay: float = setting(4e-4, "")
    eps: float | None = setting(None, "added to the denominator of Adam; null: 1e-8")
    clip: float | None = setting(None, "largest norm of the gradient; null: no clipping")
    clip_value: float | None = setting(None, "largest value in the gradient; null: no clipping")
    head_warmup: int = setting(0, "steps in which only the new head learns")
    ema: float | None = setting(
        None, "decay of a running mean of the weights, which is then the model; null: off"
    )
    blend: float | None = setting(
        None, "share of the trained weights in the model, the rest as pretrained; null: all trained"
    )


@dataclass(frozen=True)
class ScheduleSection:
    """How long, and how the learning rate changes."""

    kind: Literal["constant", "steps", "cosine"] = setting("constant", "steps: lr x gamma at each milestone")
    epochs: int = setting(100, "length of the run, if steps is null")
    steps: int | None = setting(None, "length of the run in steps")
    stop: int | None = setting(None, "end after this many steps, with the learning rates of the full length")
    warmup_steps: int = setting(0, "steps in which the learning rate rises from zero")
    milestones: tuple[int, ...] = setting((120, 220, 250, 280), "epochs at which kind=steps lowers the rate")
    gamma: float = setting(0.3, "factor of kind=steps")


@dataclass(frozen=True)
class EvaluationSection:
    """When to validate, by which metrics, and when to stop."""

    every: int | None = setting(None, "steps between validations; null: once per epoch")
    patience: int | None = setting(10, "validations without a better recall before stopping; null: never")
    choose_by: str = setting(
        "recall@1",
        "ranking metric that chooses the checkpoint; with few validation classes map@r is the steadier one",
    )
    choose_on: Literal["validation", "test"] = setting(
        "validation", "part that chooses the checkpoint; test is what the authors did, and the report says so"
    )
    ks: tuple[int, ...] = setting((1, 10, 100, 1000), "k of the recalls at the end")
    nmi: bool = setting(True, "cluster the test embeddings at the end")
    report: bool = setting(
        True, "measure the untrained model on the test part too, write report.html; false for many short runs"
    )
    embed_batch: int = setting(64, "images embedded at once when measuring")
