"""Several processes share the images of an index out; the result is that of one process, bit for bit."""

import os
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from forerank.search import build_index, open_engine
from waiting import finish

SHARED = """
import os, signal, sys
import forerank.search.build as build
from forerank.models import Retriever
from forerank.training.processes import joined

model, images, address, dies = sys.argv[1:]
with joined("cpu") as processes:
    retriever = Retriever.load(model)
    embed, calls = retriever.embed, []
    def embed_or_die(*arguments, **options):
        if dies == "dies" and not processes.first and calls:
            os.kill(os.getpid(), signal.SIGKILL)
        calls.append(1)
        return embed(*arguments, **options)
    retriever.embed = embed_or_die
    report = build.build_index(retriever, images, address, part=2)
    if processes.first:
        print(report.count, report.resumed, report.embedded, len(calls))
"""


@pytest.fixture
def shared(tmp_path, model_folder, image_folder):
    """Run the program above in two processes."""
    program = tmp_path / "shared.py"
    program.write_text(SHARED)

    def run(address, dies="lives"):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*launcher, str(program), str(model_folder), str(image_folder), str(address), dies]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


def write_shards(images, folder):
    folder.mkdir()
    with tarfile.open(folder / "0.tar", "w") as archive:
        for file in sorted(images.rglob("*.png")):
            archive.add(file, file.name)
    return folder


def stored(address):
    engine = open_engine(address)
    rows = [(row, vector.tobytes()) for part in engine.scan() for row, vector in zip(*part, strict=True)]
    engine.close()
    return rows


def test_two_processes_build_the_index_of_one(tmp_path, shared, model_folder, image_folder):
    build_index(model_folder, image_folder, tmp_path / "one", part=2)
    two = shared(tmp_path / "two")
    assert two.returncode == 0, two.stderr[-2000:]
    assert two.stdout.split() == ["12", "0", "12", "3"]  # each process embedded three of the six parts
    assert stored(tmp_path / "two") == stored(tmp_path / "one")
    assert not list((tmp_path / "two").glob("embedded.log*"))


def test_the_part_of_a_killed_process_is_done_by_the_next_run(tmp_path, shared, model_folder, image_folder):
    build_index(model_folder, image_folder, tmp_path / "one", part=2)
    killed = shared(tmp_path / "two", "dies")
    assert killed.returncode != 0
    assert open_engine(tmp_path / "two").meta() is None
    report = build_index(model_folder, image_folder, tmp_path / "two", part=2)  # one process, all journals
    assert report.count == 12
    assert report.resumed + report.embedded == 12
    assert 2 <= report.resumed <= 8  # what the killed process and the other one had finished
    assert stored(tmp_path / "two") == stored(tmp_path / "one")


@pytest.mark.long  # the same with a folder stands above
def test_processes_meet_in_milvus(milvus_server, tmp_path, shared, model_folder, image_folder):
    address = f"{milvus_server.address}#shared"
    killed = shared(address, "dies")
    assert killed.returncode != 0
    two = shared(address)
    assert two.returncode == 0, two.stderr[-2000:]
    count, resumed, embedded, _ = map(int, two.stdout.split())
    assert (count, resumed + embedded) == (12, 12)
    assert resumed >= 2
    build_index(model_folder, image_folder, tmp_path / "one", part=2)
    one = {row.path: vector for row, vector in stored(tmp_path / "one")}
    assert {row.path: vector for row, vector in stored(address)} == one


def test_the_command_shares_the_work(tmp_path, model_folder, image_folder):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    place = tmp_path / "index"
    command = [*launcher, "-m", "forerank", "index", str(model_folder), str(image_folder), "-o", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("12 images (12 embedded") == 1  # only the first process speaks


@pytest.mark.parametrize("meeting_point", ["folder", pytest.param("milvus", marks=pytest.mark.long)])
def test_several_machines_by_the_documented_command(
    meeting_point, request, tmp_path, model_folder, image_folder, torchrun_address
):
    """Two times torchrun, each with a process: as on two machines with a shared disk, or a Milvus."""
    place = str(tmp_path / "two")
    if meeting_point == "milvus":
        place = f"{request.getfixturevalue('milvus_server').address}#machines"
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={torchrun_address}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    index = ["-m", "forerank", "index", str(model_folder), str(image_folder), "-o", place]
    command = [*torchrun, *rendezvous, *index]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    machines = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    said = finish(*machines)
    assert [machine.returncode for machine in machines] == [0, 0], said
    assert sorted(out.count("12 images (12 embedded") for out, _ in said) == [0, 1]
    build_index(model_folder, image_folder, tmp_path / "one")
    one = {row.path: vector for row, vector in stored(tmp_path / "one")}
    assert {row.path: vector for row, vector in stored(place)} == one


# The command itself, with parts of two images; each process has settings of its own, from the environment.
UNLIKE = """
import os
from functools import partial
from forerank.cli import main
from forerank.models import Retriever
from forerank.search.build import build_index
build_index.__kwdefaults__["part"] = 2
rank = int(os.environ["RANK"])
os.environ["FORERANK_CACHE"] = os.environ["CACHES"].split(":")[rank]
Retriever.load = partial(Retriever.load, engine=os.environ["ENGINES"].split(":")[rank])
main()
"""


@pytest.fixture
def unlike(tmp_path, model_folder):
    """Index images by two processes that are not alike, with caches or engines of their own."""

    def run(images, address, caches=("cache", "cache"), engines=("torch", "torch")):
        (tmp_path / "unlike.py").write_text(UNLIKE)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [*launcher, str(tmp_path / "unlike.py"), "index", str(model_folder), str(images)]
        places = ":".join(str(tmp_path / cache) for cache in caches)
        own = {"OMP_NUM_THREADS": "1", "CACHES": places, "ENGINES": ":".join(engines)}
        return subprocess.run(
            [*command, "-o", str(address)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **own},
        )

    return run


@pytest.mark.parametrize(("holder", "said"), [(0, "0 embedded, 12 from"), (1, "12 embedded, 0 from")])
def test_a_cache_that_only_one_process_has_loses_no_image(
    holder, said, tmp_path, unlike, keep_features, model_folder, image_folder
):
    """Features that a training has kept on one of two machines."""
    pytest.importorskip("openvino")  # by which the features are computed
    keep_features(model_folder, image_folder, tmp_path / f"cache{holder}")
    engines = ("openvino", "openvino")
    done = unlike(image_folder, tmp_path / "two", caches=("cache0", "cache1"), engines=engines)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count(f"12 images ({said} the features of a training") == 1
    build_index(model_folder, image_folder, tmp_path / "one")
    one = stored(tmp_path / "one")
    two = stored(tmp_path / "two")
    assert [row for row, _ in two] == [row for row, _ in one]
    for (_, here), (_, there) in zip(one, two, strict=True):
        difference = np.frombuffer(here, np.float32) - np.frombuffer(there, np.float32)
        assert abs(difference).max() < 1e-5


@pytest.mark.parametrize("source", ["folder", pytest.param("shards", marks=pytest.mark.long)])
def test_processes_with_two_engines_are_refused(source, tmp_path, unlike, image_folder):
    pytest.importorskip("openvino")
    images = image_folder if source == "folder" else write_shards(image_folder, tmp_path / "shards")
    refused = unlike(images, tmp_path / "two", engines=("openvino", "torch"))
    assert refused.returncode != 0
    ours = [line for line in refused.stderr.splitlines() if "forerank: processes" in line]
    assert len(ours) == 1, refused.stderr
    assert "processes 0 and 1 of this run differ in engine (openvino and torch)" in ours[0]
    assert open_engine(tmp_path / "two").meta() is None


# The first process needs longer to complete the index than processes otherwise wait for each other. On a busy
# machine both become longer: the command waits for a day.
SLOW = """
import time
from datetime import timedelta
from forerank.cli import main
from forerank.search.folder import _FolderUpdate
from forerank.training import processes
joined = processes.joined.__wrapped__
joined.__defaults__ = (joined.__defaults__[0], timedelta(seconds=1))
complete = _FolderUpdate.complete
def complete_slowly(*arguments):
    time.sleep(2)
    return complete(*arguments)
_FolderUpdate.complete = complete_slowly
main()
"""


def test_processes_wait_for_one_that_is_slow(tmp_path, model_folder, image_folder):
    """Only the first process makes the index complete, which takes hours with very many images."""
    (tmp_path / "slow.py").write_text(SLOW)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(tmp_path / "slow.py"), "index", str(model_folder), str(image_folder), "-o"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(tmp_path / "index")], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert open_engine(tmp_path / "index").meta()["count"] == 12


# The command itself, with parts of two images; the second process dies when it begins its second part.
DIES = """
import os, signal
from forerank.cli import main
from forerank.models import Retriever
from forerank.search.build import build_index
build_index.__kwdefaults__["part"] = 2
embed, calls = Retriever.embed, []
def embed_or_die(self, *arguments, **options):
    if os.environ["RANK"] == "1" and calls:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(1)
    return embed(self, *arguments, **options)
Retriever.embed = embed_or_die
main()
"""


@pytest.mark.parametrize("source", ["folder", pytest.param("shards", marks=pytest.mark.long)])
def test_a_process_that_dies_is_reported_and_the_same_command_goes_on(
    source, tmp_path, model_folder, image_folder
):
    images = image_folder
    if source == "shards":
        images = write_shards(image_folder, tmp_path / "shards")
    build_index(model_folder, images, tmp_path / "one", part=2)
    (tmp_path / "dies.py").write_text(DIES)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(tmp_path / "dies.py"), "index", str(model_folder), str(images), "-o"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    died = subprocess.run(
        [*command, str(tmp_path / "two")], capture_output=True, text=True, check=False, env=environment
    )
    assert died.returncode != 0
    assert "Signal 9 (SIGKILL)" in died.stderr  # torchrun's own words
    ours = [line for line in died.stderr.splitlines() if line.startswith("forerank: ")]
    assert len(ours) == 1, died.stderr
    assert "another process of this run ended or stopped answering" in ours[0]
    assert open_engine(tmp_path / "two").meta() is None
    report = build_index(model_folder, images, tmp_path / "two", part=2)
    assert report.count == report.resumed + report.embedded == 12
    assert report.resumed >= 2
    assert stored(tmp_path / "two") == stored(tmp_path / "one")
