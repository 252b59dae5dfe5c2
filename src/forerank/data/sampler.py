"""Batches of k classes x |P| images."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from forerank.errors import InputError, check_name

MODES = ("distinct", "official")


class _Deck:
    """Cards dealt without replacement; a new shuffle only when all have been dealt."""

    def __init__(self, cards: NDArray[np.int64], rng: np.random.Generator) -> None:
        self.cards, self.rng = cards, rng
        self.left: list[int] = []

    def deal(self, number: int) -> list[int]:
        """The next `number` cards, all different (`number` is at most the number of cards)."""
        dealt: list[int] = []
        held: list[int] = []
        while len(dealt) < number:
            if not self.left:
                self.left = self.rng.permutation(self.cards).tolist()
            card = self.left.pop()
            (held if card in dealt else dealt).append(card)
        self.left.extend(reversed(held))  # dealt first next time, so that no card falls behind
        return dealt


class ClassBalancedSampler(Sampler[list[int]]):
    """A batch sampler: k distinct classes x |P| images of each.

    An epoch has `len(sampler)` batches, by default as many as cover the number of usable images once:
    ceil(images / (k |P|)). Classes are dealt like cards: none comes again before all have come, so within
    an epoch the visits of any two classes differ by at most one. A class deals its images the same way:
    visited v times it shows min(n, v |P|) of its n images, none again before all have been shown. Only a
    class smaller than |P| repeats an image within a batch. Classes of one image have no positive and are
    left out.

    Several processes: every rank builds the same global batch from (seed, epoch) and yields its own
    part, k / world_size whole classes. The ranks together give exactly the batch that one process gives.

    Args:
        labels: (N,) class of each image.
        classes_per_batch: k, over all ranks together.
        images_per_class: |P|.
        seed: with the epoch, fixes every batch.
        rank, world_size: this process and the number of processes.
        mode: "distinct", or "official" for comparison: the authors' draw, classes (of one image too) and
            images with replacement, where a class may come twice in one batch; floor instead of ceil.
        categories: (N,) super category of each image. A batch then takes its classes from few categories,
            which makes negatives harder.
        categories_per_batch: how many (more only if those hold fewer than k classes together).
        batches: batches per epoch, if not the default.
        with_draws: yield (image, draw) pairs for `ImageDataset`'s training view instead of images. No draw
            comes twice for an image.

    >>> sampler = ClassBalancedSampler([0, 0, 0, 1, 1, 2, 2, 2], classes_per_batch=2, images_per_class=2)
    >>> len(sampler), [len(batch) for batch in sampler]
    (2, [4, 4])
    """

    def __init__(
        self,
        labels: Sequence[Any] | NDArray[Any],
        classes_per_batch: int,
        images_per_class: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        mode: str = "distinct",
        categories: Sequence[Any] | NDArray[Any] | None = None,
        categories_per_batch: int = 2,
        batches: int | None = None,
        with_draws: bool = False,
    ) -> None:
        check_name("sampler mode", mode, MODES)
        if classes_per_batch < 2 or images_per_class < 2:
            raise InputError(
                f"a batch needs at least 2 classes x 2 images, not {classes_per_batch} x {images_per_class}"
            )
        if not 0 <= rank < world_size:
            raise InputError(f"rank {rank} must be at least 0 and below world_size {world_size}")
        if classes_per_batch % world_size:
            raise InputError(
                f"{classes_per_batch} classes per batch cannot be shared equally among {world_size} processes"
            )
        ids = np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1)
        order = np.argsort(ids, kind="stable")
        members = np.split(order, np.flatnonzero(np.diff(ids[order])) + 1) if len(ids) else []
        # Position of a class in this list is its number from here on.
        self._members = [m for m in members if len(m) >= 2 or mode == "official"]
        if all(len(m) < 2 for m in members):
            raise InputError(
                f"every class has fewer than two images ({len(ids)} images, {len(members)} classes)"
            )
        if len(self._members) < classes_per_batch:
            raise InputError(
                f"a batch of {classes_per_batch} classes needs as many classes with two images or more; "
                f"there are {len(self._members)}: lower classes_per_batch"
            )
        if batches is not None and batches < 1:
            raise InputError(f"an epoch needs at least one batch, not {batches}")
        self.images = sum(map(len, self._members))
        self.left_out = len(ids) - self.images
        self.classes_per_batch, self.images_per_class = classes_per_batch, images_per_class
        self.seed, self.rank, self.world_size, self.mode = seed, rank, world_size, mode
        size = classes_per_batch * images_per_class
        self.batches = batches or max(
            1, self.images // size if mode == "official" else -(-self.images // size)
        )
        self.with_draws = with_draws
        self.epoch, self.position = 0, 0
        self.categories_per_batch = categories_per_batch
        self._category_members = self._group_categories(categories, len(ids))

    def _group_categories(self, categories: Any, n: int) -> list[NDArray[np.int64]] | None:
        """Class numbers of each category."""
        if categories is None:
            return None
        if self.mode == "official":
            raise InputError("mode=official takes no categories: leave out one of the two")
        given = np.asarray(categories)
        if given.shape != (n,):
            raise InputError(f"categories has shape {given.shape} where labels has {n} entries")
        if self.categories_per_batch < 1:
            raise InputError(f"categories_per_batch must be at least 1, not {self.categories_per_batch}")
        of_class = np.array([given[m[0]] for m in self._members])
        groups = [np.flatnonzero(of_class == c) for c in np.unique(of_class)]
        if self.categories_per_batch > max(2, len(groups)):
            raise InputError(
                f"a batch from {self.categories_per_batch} categories needs as many of them; there are "
                f"{len(groups)} with classes of two images or more"
            )
        return groups

    def __len__(self) -> int:
        """Batches of a whole epoch, also when resumed in its middle."""
        return self.batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; another epoch than the current one starts at its first batch."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def state_dict(self, consumed: int | None = None) -> dict[str, int]:
        """Where this epoch stands.

        Args:
            consumed: batches the training has really used. A data loader with workers asks for batches
                ahead of time, so the sampler's own count (the default) runs ahead of it.
        """
        return {
            "epoch": self.epoch,
            "position": self.position if consumed is None else consumed,
            "seed": self.seed,
            "batches": self.batches,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state_dict` stood: the next iteration yields the rest of that epoch."""
        for key, ours in (("seed", self.seed), ("batches", self.batches)):
            if state[key] != ours:
                raise InputError(f"the saved sampler state has {key} {state[key]}, this sampler has {ours}")
        if not 0 <= state["position"] <= self.batches:
            raise InputError(
                f"the saved position {state['position']} lies outside the {self.batches} batches"
            )
        self.epoch, self.position = state["epoch"], state["position"]

    def __iter__(self) -> Iterator[list[Any]]:
        part = self.classes_per_batch // self.world_size * self.images_per_class
        begin = self.rank * part
        first = self.position
        for number, batch in enumerate(self._global_batches(self.epoch)):
            if number < first:  # resumed: replaying the draw is cheaper than storing its state
                continue
            self.position = number + 1
            mine = batch[begin : begin + part]
            if self.with_draws:
                # |P| draws are set aside for each batch, so that an image repeated in one gets two views.
                draw = (self.epoch * self.batches + number) * self.images_per_class
                yield [(image, draw + place % self.images_per_class) for place, image in enumerate(mine)]
            else:
                yield mine
        self.position = 0

    def _global_batches(self, epoch: int) -> Iterator[list[int]]:
        """The batches of all ranks together: k runs of |P| images."""
        rng = np.random.default_rng([self.seed, epoch, 0x5A3B])
        k, p = self.classes_per_batch, self.images_per_class
        if self.mode == "official":
            for _ in range(self.batches):
                classes = rng.integers(len(self._members), size=k)
                yield [int(image) for c in classes for image in rng.choice(self._members[c], size=p)]
            return
        image_decks: dict[int, _Deck] = {}
        groups = self._category_members or [np.arange(len(self._members))]
        class_decks = [_Deck(group, rng) for group in groups]
        for _ in range(self.batches):
            batch: list[int] = []
            for c in self._deal_classes(class_decks, rng):
                deck = image_decks.setdefault(c, _Deck(self._members[c], rng))
                wanted, n = p, len(deck.cards)
                while wanted > 0:
                    batch += deck.deal(min(wanted, n))
                    wanted -= n
            assert len(batch) == k * p
            yield batch

    def _deal_classes(self, decks: list[_Deck], rng: np.random.Generator) -> list[int]:
        """k distinct classes: from the only deck, or from a few category decks in equal parts."""
        k = self.classes_per_batch
        if len(decks) == 1:
            return decks[0].deal(k)
        sizes = np.array([len(deck.cards) for deck in decks])
        # Large categories come more often, so that classes still come about equally often.
        order = rng.choice(len(decks), size=len(decks), replace=False, p=sizes / sizes.sum())
        number = self.categories_per_batch
        while sizes[order[:number]].sum() < k:
            number += 1
        shares = np.zeros(number, dtype=np.int64)
        room = sizes[order[:number]]
        while shares.sum() < k:  # one each in turn, while a category has classes left
            for i in np.flatnonzero(shares < room)[: k - int(shares.sum())]:
                shares[i] += 1
        return [c for i, share in enumerate(shares) for c in decks[order[i]].deal(int(share))]
