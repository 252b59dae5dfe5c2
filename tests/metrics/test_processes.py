"""Two, three and eight real processes share the gallery and agree with one."""

import json
import subprocess
import sys

import numpy as np
import pytest

from forerank import evaluate

SCRIPT = """
import json, sys
import numpy as np, torch
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
from forerank import evaluate
from forerank.ranking import hard_blocks, hard_count, hard_screen
hard_blocks.BLOCK = 128  # several tiles for each process
if sys.argv[3] == "unlike":  # what a process guesses from its threads and timings must not matter
    torch.set_num_threads(1 + rank)
    hard_count.LARGE = 0 if rank == 0 else 1 << 24
    hard_count.HUGE = 0
    hard_screen.bfloat16_is_faster = lambda device: rank == 0
else:
    torch.set_num_threads(1)
data = np.load(sys.argv[1])
halves = dict(queries=np.arange(0, 900, 2), gallery=np.arange(1, 900, 2))
same = dict(ignore=data["camera"], distributed=True, per_query=True)
out = [evaluate(data["vectors"], data["labels"], **same, **split).to_dict() for split in ({}, halves)]
with open(f"{sys.argv[2]}/{rank}.json", "w") as file:
    json.dump(out, file)
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(("processes", "kind"), [(2, "alike"), (3, "alike"), (8, "alike"), (2, "unlike")])
def test_identical_to_one_process(processes, kind, tmp_path):
    generator = np.random.default_rng(0)
    labels = np.concatenate([np.arange(800) // 4, np.full(100, 500)])  # one class too large for the screens
    vectors = generator.normal(size=(501, 24))[labels] + 1.2 * generator.normal(size=(900, 24))
    vectors[:20] = vectors[20:40]  # ties
    camera = generator.integers(4, size=900)
    np.savez(tmp_path / "data.npz", vectors=vectors, labels=labels, camera=camera)
    (tmp_path / "share.py").write_text(SCRIPT)
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
         tmp_path / "share.py", tmp_path / "data.npz", tmp_path, kind],
        check=True, capture_output=True,
    )  # fmt: skip
    halves = {"queries": np.arange(0, 900, 2), "gallery": np.arange(1, 900, 2)}
    alone = [
        evaluate(vectors, labels, ignore=camera, per_query=True, **split).to_dict() for split in ({}, halves)
    ]
    for rank in range(processes):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == json.loads(json.dumps(alone))
