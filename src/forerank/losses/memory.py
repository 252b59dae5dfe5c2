"""A bank of recent embeddings, so that a small batch is ranked among many."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from forerank.errors import InputError
from forerank.losses.arguments import check_count
from forerank.losses.base import Labels, RankingLoss, check_batch, check_labels, integer_labels
from forerank.losses.gather import gather_rows, world_size

NO_IMAGE = -1  # stands for "which image this was is not known"


class CrossBatchMemory(nn.Module):
    """Compare each batch with the last `size` embeddings of earlier batches too.

    A loss of ours ranks the batch and what is stored together. A loss of pytorch-metric-learning, or any
    other that takes `ref_emb` and `ref_labels`, gives the sum of two: within the batch, and between the
    batch and what is stored.

    Stored embeddings get no gradient. They are keyed by image: while an image is in the batch its stored
    copy is set aside, so that it never competes with itself, and then replaced. Only training mode stores,
    and no row with NaN or infinity. The bank is part of `state_dict`. With a loss that gathers, all
    processes keep the same, joint bank.

    Args:
        loss: any loss of `forerank.losses`, or one that takes `ref_emb` and `ref_labels`.
        size: how many embeddings to keep; the oldest go first.

    Shape:
        embeddings (N, D), labels (N,), ids (N,) to a scalar.

    Example:
        >>> from forerank.losses import PNPLoss
        >>> memory = CrossBatchMemory(PNPLoss(), size=1000)
        >>> for ids in torch.arange(8).view(2, 4):
        ...     loss = memory(torch.randn(4, 16), torch.tensor([0, 0, 1, 1]), ids=ids)
        >>> len(memory)
        8

    References:
        Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020.
    """

    embeddings: Tensor
    labels: Tensor
    ids: Tensor

    def __init__(self, loss: nn.Module, size: int = 1024) -> None:
        super().__init__()
        if not {"ref_emb", "ref_labels"} <= inspect.signature(loss.forward).parameters.keys():
            raise TypeError(
                f"loss must be a ranking loss or take ref_emb and ref_labels, not {type(loss).__name__}."
            )
        self.loss, self.size = loss, check_count("size", size)
        self.clear()

    def clear(self) -> None:
        """Forget everything stored."""
        self.register_buffer("embeddings", torch.empty(0, 0))  # (K, D); D is known from the first batch on
        self.register_buffer("labels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("ids", torch.empty(0, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def forward(
        self, embeddings: Tensor, labels: Labels, indices_tuple: Any = None, *, ids: Labels | None = None
    ) -> Tensor:
        """The loss of a batch among what is stored; then, in training mode, the batch is stored.

        Args:
            embeddings: (N, D).
            labels: (N,) integers.
            indices_tuple: must be None.
            ids: (N,) integers from 0, which image each row is. Without them rows count as images never seen
                before, which is right only if no image comes back while its last copy is still stored.
        """
        if indices_tuple is not None:
            raise InputError("a bank ranks all positives against all negatives: indices_tuple must be None.")
        labels, _ = check_batch(embeddings, labels, None, None)
        codes = integer_labels(labels, embeddings.device, "in a memory bank")
        images = self._images(ids, embeddings)
        fresh, mine = embeddings.detach(), slice(None)
        if isinstance(self.loss, RankingLoss) and self.loss.gather and world_size() > 1:
            (fresh, mine), (codes, _), (images, _) = map(gather_rows, (fresh, codes, images))
        stored, stored_labels, stored_images = (x.to(embeddings.device) for x in self._buffers_now())
        if len(stored) and stored.shape[1] != embeddings.shape[1]:
            raise InputError(
                f"the bank holds embeddings of {stored.shape[1]} dimensions, not {embeddings.shape[1]}."
            )
        # Which rows stay and which are added is decided on the host, after a single copy from the device.
        finite = fresh.isfinite().all(1).to(torch.int64)
        facts = (codes, images, finite, stored_labels, stored_images)
        on_host = torch.cat(facts).cpu()
        codes, images, finite, stored_labels, stored_images = torch.split(on_host, [len(x) for x in facts])
        if ids is not None and bool((images[mine] < 0).any()):
            raise InputError("ids must not be negative: they say which image a row is, counted from 0.")
        others = (~torch.isin(stored_images, images) | (stored_images == NO_IMAGE)).nonzero()[:, 0]
        stored, stored_labels, stored_images = (
            _rows(stored, others),
            stored_labels[others],
            stored_images[others],
        )
        loss = self._loss_among(embeddings, codes[mine], stored, stored_labels)
        if self.training:
            # A faulty row spoils the loss of its own step; stored, it would spoil every step until it left.
            sound = (_last_of_each(images) & finite.bool()).nonzero()[:, 0]
            fresh = _rows(fresh, sound)
            self.embeddings = torch.cat([stored, fresh] if len(stored) else [fresh])[-self.size :]
            pairs = ((stored_labels, codes[sound]), (stored_images, images[sound]))
            self.labels, self.ids = (
                torch.cat(pair)[-self.size :].to(embeddings.device, non_blocking=True) for pair in pairs
            )
        return loss

    def _loss_among(
        self, embeddings: Tensor, labels: Tensor, stored: Tensor, stored_labels: Tensor
    ) -> Tensor:
        """The loss of the batch (N, D) together with what is stored (K, D); labels are on the host."""
        if not isinstance(self.loss, RankingLoss):
            labels, stored_labels = (
                x.to(embeddings.device, non_blocking=True) for x in (labels, stored_labels)
            )
        elif len(stored):
            loss: Tensor = self.loss.rank(embeddings, labels, stored, stored_labels, gather_references=False)
            return loss
        loss = self.loss(embeddings, labels)
        if len(stored):
            references = stored.to(embeddings.dtype)
            loss = loss + self.loss(embeddings, labels, ref_emb=references, ref_labels=stored_labels)
        return loss

    def _buffers_now(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.embeddings, self.labels, self.ids

    def _images(self, ids: Any, embeddings: Tensor) -> Tensor:
        """Image ids (N,) as int64 on the device of the embeddings; `NO_IMAGE` where they are not known."""
        if ids is None:
            return torch.full((len(embeddings),), NO_IMAGE, device=embeddings.device)
        images = check_labels("ids", ids, len(embeddings))
        if not isinstance(images, Tensor):
            raise TypeError("ids must be integers, which say which image a row is.")
        return images.to(embeddings.device, torch.int64, non_blocking=True)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # A saved bank has as many rows as had been stored; make room for exactly those.
        for name in ("embeddings", "labels", "ids"):
            saved = state_dict.get(prefix + name)
            if isinstance(saved, Tensor):
                setattr(self, name, torch.empty_like(saved, device=getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.embeddings, self.labels, self.ids = (x[-self.size :] for x in self._buffers_now())

    def extra_repr(self) -> str:
        return f"size={self.size}, stored={len(self)}"


def _rows(vectors: Tensor, chosen: Tensor) -> Tensor:
    """The rows (n,) of vectors (N, D) that the host has chosen."""
    return vectors[chosen.to(vectors.device, non_blocking=True)]


def _last_of_each(images: Tensor) -> Tensor:
    """Which rows to store: of an image that is in the batch twice, the last. Boolean (N,).

    >>> _last_of_each(torch.tensor([4, 7, 4, -1, -1])).tolist()
    [False, True, True, True, True]
    """
    order = torch.argsort(images, stable=True)
    last = torch.ones_like(images, dtype=torch.bool)
    last[order[:-1]] = images[order[:-1]] != images[order[1:]]
    return last | (images == NO_IMAGE)
