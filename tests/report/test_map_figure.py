"""The map in the report: one dot per image, bounded, without a script, and names that cannot break out."""

import re

import numpy as np
import pytest

from forerank.ranking.hard_rows import unit_rows
from forerank.report.map_figure import map_section, map_svg

pytest.importorskip("umap")


def test_every_image_is_a_dot_and_classes_keep_together():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 16))
    vectors = np.repeat(centres, 20, axis=0) + 0.1 * rng.normal(size=(60, 16))
    section = map_section(unit_rows(vectors), np.repeat(["<a>", "b & c", "d"], 20))
    assert section.body.count("h0") == 60
    assert "&lt;a&gt;" in section.body
    assert "<a>" not in section.body
    assert "<script" not in section.body
    assert "style=" not in section.body
    middles, spreads = [], []
    for path in re.findall(r'd="([^"]+)"', section.body):
        spots = np.array([tuple(map(int, spot.split())) for spot in re.findall(r"M(\d+ \d+)h0", path)])
        assert len(spots) == 20
        middles.append(spots.mean(axis=0))
        spreads.append(spots.std())
    apart = [np.linalg.norm(middles[i] - middles[j]) for i in range(3) for j in range(i)]
    assert min(apart) > max(spreads) / 2


def test_it_is_bounded_and_left_out_where_there_is_little_to_see():
    vectors = np.random.default_rng(0).normal(size=(400, 8))
    section = map_section(unit_rows(vectors), np.arange(400) % 50, most=100)
    assert section.body.count("h0") == 100
    assert "100 of 400 images" in section.body
    assert "<text" not in section.body  # too many classes to name
    assert not map_section(unit_rows(vectors[:10]), np.arange(10)).body


def test_a_class_of_many_dots_is_one_path():
    svg = map_svg(np.random.default_rng(0).random((500, 2), dtype=np.float32), np.array(["one"] * 500))
    assert svg.count("<path") == 1
    assert len(svg) < 12_000
