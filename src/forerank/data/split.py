"""Parts and variants of a table: class-disjoint hold-out, merged classes, noisy labels."""

import numpy as np
from numpy.typing import NDArray

from forerank.data.table import Table
from forerank.errors import InputError


def hold_out(table: Table, fraction: float = 0.15, seed: int = 0, *, test: float = 0.0) -> Table:
    """Move whole classes of the training split to validation, and optionally to test.

    Classes, not images: a model is judged on classes it never saw. The fractions are of the training
    classes; a fraction above 0 takes at least two classes, and at least two remain for training.

    Args:
        table: any table; rows outside "train" stay as they are.
        fraction: share of the training classes that becomes "validation".
        seed: which classes.
        test: share of the training classes that becomes "test".

    >>> table = Table([f"{i}.jpg" for i in range(20)], [f"{i // 2}" for i in range(20)], ["train"] * 20)
    >>> hold_out(table, 0.2, test=0.3).counts()
    {'train': (10, 5), 'validation': (4, 2), 'test': (6, 3)}
    """
    for name, value in (("fraction", fraction), ("test", test)):
        if not 0 <= value < 1:
            raise InputError(f"{name} must be at least 0 and below 1, not {value}")
    classes = np.unique(table.label[table.split == "train"])
    number = {part: max(2, round(share * len(classes))) if share > 0 else 0
              for part, share in (("validation", fraction), ("test", test))}  # fmt: skip
    if sum(number.values()) > len(classes) - 2:
        raise InputError(
            f"{table.name} has {len(classes)} training classes: too few to hold out "
            f"{number['validation']} for validation and {number['test']} for test and keep 2 for training"
        )
    shuffled = np.random.default_rng([seed, 0x501D]).permutation(classes)
    split = table.split.astype(f"<U{len('validation')}")
    begin = 0
    for part, n in number.items():
        split[(table.split == "train") & np.isin(table.label, shuffled[begin : begin + n])] = part
        begin += n
    return table.with_columns(split=split)


def merge_classes(table: Table, group: int = 3, seed: int = 0) -> Table:
    """Merge every `group` training classes into one, so that each new class has several centres.

    The robustness study of the paper. Which classes meet is random (`seed`); when the number of classes
    is no multiple of `group`, the last ones join an existing group, so no new class has fewer than
    `group`. Other splits stay as they were.

    >>> table = Table(["1", "2", "3", "4"], ["a", "b", "c", "d"], ["train"] * 3 + ["test"])
    >>> merge_classes(table, 3).label.tolist()
    ['a+b+c', 'a+b+c', 'a+b+c', 'd']
    """
    train = table.split == "train"
    classes = np.unique(table.label[train])
    if group < 1:
        raise InputError(f"group must be at least 1, not {group}")
    if len(classes) < group:
        raise InputError(
            f"{table.name} has {len(classes)} training classes: too few to merge {group} into one"
        )
    order = np.random.default_rng([seed, 0x3E6E]).permutation(len(classes))
    groups = [order[i : i + group].tolist() for i in range(0, len(classes) // group * group, group)]
    for i, extra in enumerate(order[len(groups) * group :]):
        groups[i % len(groups)].append(int(extra))
    new_name = {classes[c]: "+".join(sorted(classes[members])) for members in groups for c in members}
    label = [new_name[name] if t else str(name) for name, t in zip(table.label, train, strict=True)]
    return table.with_columns(label=np.array(label))


def noisy_labels(table: Table, rate: float, seed: int = 0) -> Table:
    """Give a share of the training images the label of another training class, drawn uniformly.

    Exactly `round(rate * training images)` labels become wrong; other splits stay clean.

    >>> table = Table([str(i) for i in range(10)], list("aabbccddee"), ["train"] * 10)
    >>> int((noisy_labels(table, 0.3).label != table.label).sum())
    3
    """
    if not 0 <= rate <= 1:
        raise InputError(f"the rate of noisy labels must lie between 0 and 1, not {rate}")
    rows: NDArray[np.int64] = np.flatnonzero(table.split == "train")
    classes, ids = np.unique(table.label[rows], return_inverse=True)
    if rate > 0 and len(classes) < 2:
        raise InputError(f"{table.name} has {len(classes)} training classes: noisy labels need two")
    rng = np.random.default_rng([seed, 0x4015])
    wrong = rng.permutation(len(rows))[: round(rate * len(rows))]
    ids = ids.reshape(-1).copy()
    ids[wrong] = (ids[wrong] + rng.integers(1, max(2, len(classes)), len(wrong))) % len(classes)
    label = table.label.copy()
    label[rows] = classes[ids]
    return table.with_columns(label=label)


def random_gallery(table: Table, seed: int = 0) -> Table:
    """One random image of every class is the gallery, the others are queries.

    VehicleID's own protocol: draw it ten times (seeds 0 to 9) and average.

    >>> table = random_gallery(Table(list("123456"), list("aaabbb"), ["test"] * 6))
    >>> int(table.is_gallery.sum()), int(table.is_query.sum())
    (2, 4)
    """
    gallery = np.zeros(len(table), dtype=bool)
    order = np.random.default_rng([seed, 0x6A11]).permutation(len(table))
    keys = np.char.add(np.char.add(table.split, "\0"), table.label)
    first = np.unique(keys[order], return_index=True)[1]
    gallery[order[first]] = True
    return table.with_columns(is_gallery=gallery, is_query=~gallery)
