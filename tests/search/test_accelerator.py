"""Embedding and search with the model on an accelerator: the vectors and answers of the CPU."""

from pathlib import Path

import numpy as np

from forerank.models import Retriever
from forerank.search import Index, build_index
from pretend_device import DEVICE


def test_vectors_and_answers_equal_the_cpu(tmp_path: Path, model_folder: Path, image_folder: Path) -> None:
    files = sorted(image_folder.rglob("*.png"))
    answers = []
    for device in ("cpu", DEVICE):
        retriever = Retriever.load(model_folder, device=device, batch_size=5)
        assert next(retriever.model.parameters()).device.type == device
        build_index(retriever, image_folder, tmp_path / device)
        vectors = retriever.embed(files, progress=False)
        matches = Index.open(tmp_path / device, model=retriever).search_many(files[:4], 5)
        answers.append((vectors, [hit for hits in matches for hit in hits]))
    (here, matches_here), (there, matches_there) = answers
    np.testing.assert_allclose(there, here, atol=1e-6)
    assert [hit.path for hit in matches_there] == [hit.path for hit in matches_here]
    similarities = [[hit.similarity for hit in matches] for matches in (matches_there, matches_here)]
    np.testing.assert_allclose(*similarities, atol=1e-5)
