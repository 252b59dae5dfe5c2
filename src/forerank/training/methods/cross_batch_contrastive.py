"""Contrastive loss against a memory bank of the embeddings of past batches (XBM)."""

import torch
from torch import Tensor, nn

from forerank.losses import CrossBatchMemory
from forerank.training.methods.method import Ingredients, Method, Objective


class PairLoss(nn.Module):
    """Positives are drawn to similarity 1, negatives above the margin are pushed below it.

    Sum over pairs, divided by the number of images of the batch.
    """

    def __init__(self, negative_margin: float) -> None:
        super().__init__()
        self.negative_margin = negative_margin

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch (N, D) against references (M, D), or within itself."""
        alone = ref_emb is None or ref_labels is None
        similarity = embeddings @ (embeddings if ref_emb is None else ref_emb).T  # (N, M)
        positive = labels[:, None] == (labels if ref_labels is None else ref_labels)[None, :]
        negative = ~positive & (similarity > self.negative_margin)
        if alone:
            positive = positive & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        pulled = (1 - similarity).masked_fill(~positive, 0.0).sum()
        pushed = similarity.masked_fill(~negative, 0.0).sum()
        return (pulled + pushed) / len(embeddings)


class CrossBatchContrastive(Objective):
    """The loss within the batch plus, once the embeddings move slowly, the loss against the bank.

    Args:
        size: of the bank.
        start: steps without the bank.

    Attributes:
        steps_done: how many losses were computed.
    """

    steps_done: Tensor

    def __init__(self, size: int, start: int, negative_margin: float) -> None:
        super().__init__()
        self.start = start
        self.pairs = PairLoss(negative_margin)
        self.memory = CrossBatchMemory(self.pairs, size)
        self.register_buffer("steps_done", torch.tensor(0))

    def loss(self, vectors: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        alone = bool(self.steps_done < self.start)
        value: Tensor = self.pairs(vectors, labels) if alone else self.memory(vectors, labels, ids=rows)
        self.steps_done += 1
        return value


def build(ingredients: Ingredients) -> Objective:
    o, recipe, images = ingredients.options, ingredients.recipe, len(ingredients.table)
    per_epoch = -(-images // (recipe.batch.batch_size or images))
    steps = recipe.schedule.steps or recipe.schedule.epochs * per_epoch
    start = min(o["start"], steps // 10)
    return CrossBatchContrastive(max(1, round(o["bank"] * images)), start, o["negative_margin"])


CONTRASTIVE_WITH_MEMORY = Method(
    title="Contrastive with memory",
    about="pairs of the batch and a bank of past embeddings, nearly as large as the training set",
    paper="Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020",
    options={"bank": 0.92, "start": 1000, "negative_margin": 0.5},
    above_zero=("bank",),
    published=(
        "embedding_dim=128", "freeze_batch_norm=false", "blend=null", "crop=official", "lr=1e-4",
        "weight_decay=5e-4", "batch_size=64", "images_per_class=4", "schedule.kind=constant",
        "schedule.steps=35000",
    ),
    deviations=(
        "the bank is a share of the training images: the published 55,000 are 0.92 of SOP's",
        "the bank is used after 1,000 steps or a tenth of the run, whichever is less",
        "an image of the batch is left out of the bank while it is in the batch; in the published code the "
        "bank holds the batch itself already",
        "with the published settings the rate is constant, where the published code lowers it when the "
        "validation stands still, and a training view has 8% to 100% of the picture, not 20% to 100%",
    ),
    build=build,
)  # fmt: skip
