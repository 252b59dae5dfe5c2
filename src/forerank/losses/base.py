"""What all ranking losses share: checking the batch, finding its classes, and calling the counting core."""

import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from forerank.errors import InputError
from forerank.losses.arguments import Tail, check_count, check_number, check_tail
from forerank.losses.gather import gather_rows, meeting_place, sum_over_processes, world_size
from forerank.losses.peer import PeerCompatible
from forerank.ranking.classes import ClassColumns
from forerank.ranking.soft import CountSettings, ranked_loss

Labels = Tensor | Sequence[Any]
SHARED = "where several processes gather their batches"


class RankingLoss(PeerCompatible, nn.Module):
    """A penalty on what stands before each positive; subclasses say which.

    Embeddings are normalised inside, and counted in float32 (float64 if they are), also under autocast. A
    query is not its own positive, a query without positives is left out of the mean, and a batch with none
    gives a zero that can be differentiated. NaN or infinity in the embeddings gives a NaN loss, as a
    gradient scaler expects; nothing is refused or hidden.

    Args:
        temperature: of the sigmoid that softens "stands before".
        count_self: count each query as its own positive, as the code of the papers' authors does.
        linear_tail: let negatives beyond a gap be pulled along a line: a `LinearTail`, a mapping of its
            arguments, or True for its defaults.
        gather: with several processes, rank the batches of all of them together. Loss, and the model's
            gradient under `DistributedDataParallel`, are those of one process with the joint batch.
        chunk_size: queries taken at a time; None chooses by memory. It changes memory and speed, not the
            result.
    """

    positives = "none"  # how other positives before a positive are counted: "none", "soft", "hard"

    def __init__(
        self,
        *,
        temperature: float = 0.01,
        count_self: bool = False,
        linear_tail: Tail = None,
        gather: bool = False,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        self.temperature = check_number("temperature", temperature, above=0)
        self.count_self = bool(count_self)
        self.linear_tail = check_tail(linear_tail)
        self.gather = bool(gather)
        self.chunk_size = None if chunk_size is None else check_count("chunk_size", chunk_size)

    def penalty(
        self, negatives: Tensor, positives: Tensor, number: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The cost of each positive and its derivatives in both counts; see `ranking.soft.Penalty`."""
        raise NotImplementedError

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Labels | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            embeddings: (N, D), the queries. Without references they are also what is ranked.
            labels: (N,) integers, or any sequence of hashable labels.
            indices_tuple: must be None; it is here because callers of pytorch-metric-learning pass it.
            ref_emb: (M, D) items to rank instead of the batch. They are other images than the queries, unless
                it is the very same tensor as `embeddings`, which means the same as None.
            ref_labels: (M,) labels of the references.

        Returns:
            A scalar in float32, or float64 if any of the embeddings are.
        """
        if indices_tuple is not None:
            raise InputError(
                f"{type(self).__name__} ranks all positives against all negatives: indices_tuple must be None"
            )
        if ref_emb is embeddings:
            ref_emb, ref_labels = None, None if ref_labels is labels else ref_labels
        elif (ref_emb is None) != (ref_labels is None):
            raise InputError("ref_emb and ref_labels go together: give both or neither.")
        loss: Tensor = self.rank(embeddings, labels, ref_emb, ref_labels, rank_batch=ref_emb is None)
        return loss

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def rank(
        self,
        embeddings: Tensor,
        labels: Labels,
        references: Tensor | None = None,
        reference_labels: Labels | None = None,
        *,
        rank_batch: bool = True,
        gather_references: bool = True,
    ) -> Tensor:
        """The loss where the batch (if `rank_batch`) and references (if given) are ranked together.

        With `gather`, every process brings its own part of the references too, unless `gather_references` is
        False because all of them hold the same.
        """
        labels, reference_labels = check_batch(embeddings, labels, references, reference_labels)
        mine = slice(None)
        shared = self.gather and world_size() > 1
        if shared:
            embeddings, mine = gather_rows(
                embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
            )
            place = meeting_place(embeddings.device)
            labels, _ = gather_rows(integer_labels(labels, place, SHARED))
            if references is not None and gather_references:
                references, _ = gather_rows(references)
                reference_labels, _ = gather_rows(integer_labels(reference_labels, place, SHARED))
        codes, reference_codes = class_codes(labels, reference_labels)
        keep: slice | Tensor = mine
        if rank_batch:
            embeddings, references, codes, keep = self.augment(embeddings, references, codes, keep)
        ranked_codes = torch.cat([codes, reference_codes]) if rank_batch else reference_codes
        classes = ClassColumns.build(
            codes,
            ranked_codes,
            own_columns=torch.arange(len(codes)) if rank_batch else None,
            count_self=self.count_self,
            keep=keep,
            device=embeddings.device,
        )
        loss = self.loss_of(embeddings, classes, references, rank_batch=rank_batch)
        return sum_over_processes(loss) if shared else loss

    def augment(
        self, embeddings: Tensor, references: Tensor | None, codes: Tensor, keep: slice | Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor, slice | Tensor]:
        """The batch (N, D) and its class codes (N,), to which a loss may add examples of its own.

        `keep` says which rows are the queries of this process.
        """
        return embeddings, references, codes, keep

    def loss_of(
        self, embeddings: Tensor, classes: ClassColumns, references: Tensor | None, *, rank_batch: bool
    ) -> Tensor:
        """The loss of checked and gathered embeddings; a loss with further terms adds them here."""
        return ranked_loss(
            embeddings, classes, self.penalty, self.settings, references=references, rank_batch=rank_batch
        )

    @property
    def settings(self) -> CountSettings:
        """How what stands before a positive is counted."""
        return CountSettings(self.temperature, self.linear_tail, self.positives, self.chunk_size)

    def extra_repr(self) -> str:
        settings: dict[str, object] = {
            "temperature": self.temperature,
            "count_self": self.count_self,
            "gather": self.gather,
        }
        if self.linear_tail:
            settings["linear_tail"] = self.linear_tail
        return ", ".join(f"{name}={value}" for name, value in settings.items())


def normalise_rows(vectors: Tensor) -> Tensor:
    """Vectors (N, D) of length 1, in float32 at least, differentiable; a zero vector stays zero.

    >>> normalise_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    lengths = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
    units: Tensor = wide.masked_fill(lengths == 0, 0) / lengths.masked_fill(lengths == 0, 1)
    return units


def check_batch(
    embeddings: Tensor, labels: Any, references: Tensor | None, reference_labels: Any
) -> tuple[Any, Any]:
    """The labels of the batch and of the references, checked: int64 tensors, or lists of hashable values.

    `reference_labels` without references are allowed where they repeat the labels of the batch.
    """
    check_embeddings("embeddings", embeddings)
    labels = check_labels("labels", labels, len(embeddings))
    if references is None:
        if reference_labels is not None:
            again = check_labels("ref_labels", reference_labels, len(embeddings))
            if not torch.equal(*class_codes(labels, again)):
                raise InputError("ref_emb is the batch itself, so ref_labels must be its labels too.")
        return labels, []
    check_embeddings("ref_emb", references)
    if references.shape[1] != embeddings.shape[1]:
        raise InputError(
            f"embeddings have {embeddings.shape[1]} dimensions but ref_emb has {references.shape[1]}: "
            "they must agree."
        )
    return labels, check_labels("ref_labels", reference_labels, len(references))


def check_embeddings(name: str, value: Any) -> None:
    """Refuse embeddings that are not a floating-point tensor (N, D) with D >= 1."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch tensor (N, D), not {type(value).__name__}.")
    if not value.dtype.is_floating_point:
        raise TypeError(f"{name} must be floating point, not {value.dtype}.")
    if value.ndim != 2 or value.shape[1] == 0:
        raise InputError(f"{name} must be 2-D, (N, D), not of shape {tuple(value.shape)}.")


def check_labels(name: str, labels: Any, count: int) -> Any:
    """One discrete label for each of `count` embeddings: an int64 tensor, or a list of hashable values."""
    if labels is None:
        raise InputError(f"{name} are missing: give one for each of the {count} embeddings.")
    if not isinstance(labels, Tensor):
        labels = _plain_labels(name, labels)
    if isinstance(labels, Tensor):
        if labels.ndim != 1:
            raise InputError(f"{name} must be 1-D, (N,), not of shape {tuple(labels.shape)}.")
        fractional = labels.dtype.is_floating_point or labels.dtype.is_complex
    else:
        fractional = any(
            isinstance(label, numbers.Number) and not isinstance(label, numbers.Integral) for label in labels
        )
    if fractional:
        raise TypeError(f"{name} must be integers or other discrete values, not floating point.")
    if len(labels) != count:
        raise InputError(f"there are {count} embeddings but {len(labels)} {name}: give one for each.")
    return labels.detach().long() if isinstance(labels, Tensor) else labels


def _plain_labels(name: str, labels: Any) -> Any:
    """Labels that are no tensor as an int64 tensor, if they are such integers, or a list of hashable values.

    Scalars of torch and numpy become Python's: a tensor is hashed by identity, each one a class of its own.
    """
    wanted = f"{name} must be one integer or other hashable value for each embedding"
    values = []
    try:
        for label in labels.tolist() if hasattr(labels, "tolist") else labels:
            value = label.item() if hasattr(label, "item") and label.ndim == 0 else label
            hash(value)
            values.append(value)
    except TypeError as error:
        raise TypeError(f"{wanted} ({error}).") from error
    if any(isinstance(value, Tensor) for value in values):
        raise TypeError(f"{wanted}, not a tensor of several.")
    if all(isinstance(value, int) and -(2**63) <= value < 2**63 for value in values):
        return torch.tensor(values, dtype=torch.int64)
    return values


def integer_labels(labels: Any, device: torch.device, where: str) -> Tensor:
    """Labels as a tensor on a device; `where` tells the user what needs integers."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be integers of 64 bits {where}.")
    return labels.to(device, non_blocking=device.type != "cpu")  # the host reads at once


def class_codes(labels: Any, reference_labels: Any) -> tuple[Tensor, Tensor]:
    """Labels of the batch and of the references as codes 0..K-1, int64 on the host.

    They are few, and what follows from them are sizes, which the host must know: one copy from an accelerator
    costs less than waiting for it at each size.

    >>> class_codes(["owl", "jay"], ["jay"])
    (tensor([0, 1]), tensor([1]))
    """
    both = (labels, reference_labels)
    if all(isinstance(part, Tensor) or len(part) == 0 for part in both):
        codes = torch.unique(_on_host(both), return_inverse=True)[1]
    else:
        known: dict[Any, int] = {}
        values = [label for part in both for label in (part.tolist() if isinstance(part, Tensor) else part)]
        codes = torch.tensor([known.setdefault(value, len(known)) for value in values])
    return codes[: len(labels)], codes[len(labels) :]


def _on_host(parts: Sequence[Any]) -> Tensor:
    """Integer tensors of any devices one behind the other on the host; one copy for all of one device."""
    tensors = [torch.as_tensor(part, dtype=torch.int64) for part in parts if len(part)]
    if len({tensor.device for tensor in tensors}) > 1:
        tensors = [tensor.cpu() for tensor in tensors]
    return torch.cat(tensors).cpu() if tensors else torch.empty(0, dtype=torch.int64)
