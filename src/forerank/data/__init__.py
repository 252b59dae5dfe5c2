"""Images on disk -> a table -> labelled batches."""

from typing import TYPE_CHECKING

from forerank.lazy import import_on_demand

if TYPE_CHECKING:
    from forerank.data.check import Check, check_table
    from forerank.data.data_set import DataSet
    from forerank.data.dataset import ImageDataset, collate
    from forerank.data.decode import BadImageError, read_image
    from forerank.data.open import open_table
    from forerank.data.preprocessing import Preprocessing, evaluation_view, training_view
    from forerank.data.registry import DATA_SETS
    from forerank.data.sampler import ClassBalancedSampler
    from forerank.data.split import hold_out, merge_classes, noisy_labels, random_gallery
    from forerank.data.table import Table

# Module -> names: a picture is decoded without loading torch, which only the data sets need.
_MODULES = {
    "check": ["Check", "check_table"],
    "data_set": ["DataSet"],
    "dataset": ["ImageDataset", "collate"],
    "decode": ["BadImageError", "read_image"],
    "open": ["open_table"],
    "preprocessing": ["Preprocessing", "evaluation_view", "training_view"],
    "registry": ["DATA_SETS"],
    "sampler": ["ClassBalancedSampler"],
    "split": ["hold_out", "merge_classes", "noisy_labels", "random_gallery"],
    "table": ["Table"],
}

__all__ = [
    "DATA_SETS",
    "BadImageError",
    "Check",
    "ClassBalancedSampler",
    "DataSet",
    "ImageDataset",
    "Preprocessing",
    "Table",
    "check_table",
    "collate",
    "evaluation_view",
    "hold_out",
    "merge_classes",
    "noisy_labels",
    "open_table",
    "random_gallery",
    "read_image",
    "training_view",
]


__getattr__ = import_on_demand(__name__, _MODULES)
