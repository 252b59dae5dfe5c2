"""The data sets that are known by name: one file each, and one line here."""

from forerank.data import cars196, cub, glyphs, inaturalist, inshop, sop, vehicle_id
from forerank.data.data_set import DataSet

DATA_SETS: dict[str, DataSet] = {
    "glyphs": glyphs.DATA_SET,
    "sop": sop.DATA_SET,
    "vehicle_id": vehicle_id.DATA_SET,
    "inaturalist": inaturalist.DATA_SET,
    "cub": cub.DATA_SET,
    "cars196": cars196.DATA_SET,
    "inshop": inshop.DATA_SET,
}
"""The data sets by name. `open_table` and recipes look a name up here; a new entry adds a data set."""
