"""The numbers of the papers' authors, and of the papers' equations written out as loops in float64."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forerank.losses import PNPLoss, SmoothAPLoss

FOLDER = Path(__file__).parent / "golden"
CASES = json.loads((FOLDER / "pnp.json").read_text())
ARRAYS = np.load(FOLDER / "pnp.npz", allow_pickle=False)


def build(case: dict[str, Any], **settings: Any) -> torch.nn.Module:
    if case["variant"] == "AP":
        return SmoothAPLoss(temperature=case["tau"], **settings)
    return PNPLoss(case["variant"], alpha=case["alpha"], b=case["b"], temperature=case["tau"], **settings)


def run(loss: torch.nn.Module, emb: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    embeddings = torch.tensor(emb, dtype=torch.float64, requires_grad=True)
    value = loss(embeddings, torch.tensor(labels))
    value.backward()
    assert embeddings.grad is not None
    return value.item(), embeddings.grad.numpy()


def assert_close(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max()


def name(case: dict[str, Any]) -> str:
    return f"{case['case']}-{case['variant']}"


@pytest.mark.parametrize("chunk_size", [None, 5])
@pytest.mark.parametrize("case", CASES, ids=name)
def test_written_out_equations(case: dict[str, Any], chunk_size: int | None) -> None:
    key = case["case"]
    emb, labels = ARRAYS[f"{key}_emb"], ARRAYS[f"{key}_labels"]
    if f"{key}_perm" in ARRAYS:
        perm = ARRAYS[f"{key}_perm"]
        emb, labels = emb[perm], labels[perm]
    value, grad = run(build(case, chunk_size=chunk_size), emb, labels)
    assert value == pytest.approx(case["paper_loss"], rel=1e-9, abs=1e-12)
    assert_close(grad, ARRAYS[f"{key}_paper_grad"], 1e-9)


@pytest.mark.parametrize("case", [case for case in CASES if "official_loss" in case], ids=name)
def test_code_of_the_authors(case: dict[str, Any]) -> None:
    key = case["case"]
    value, grad = run(build(case, count_self=True), ARRAYS[f"{key}_emb"], ARRAYS[f"{key}_labels"])
    assert value == pytest.approx(case["official_loss"], rel=1e-5)
    assert_close(grad, ARRAYS[f"{key}_official_grad"], 1e-4)
