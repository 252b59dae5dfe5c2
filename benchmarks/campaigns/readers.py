"""Coverage-guided fuzzing of the readers by atheris: inputs that reach new code are changed further."""

import os
import re
import subprocess
import sys
import time
from math import isfinite
from pathlib import Path

import forerank
from campaigns.images import seed_files
from campaigns.tally import Tally

TARGETS = ("decode", "table", "recipe", "formula", "index")


def run(tries: int, seed: int, folder: Path, end: float) -> Tally:
    """The same number of runs for every target, each in a process of its own."""
    tally = Tally()
    for number, name in enumerate(TARGETS):
        seconds = (end - time.monotonic()) / (len(TARGETS) - number)  # of what is left, the same for each
        if seconds < 1:
            break
        corpus = folder / name
        corpus.mkdir()
        for which, content in enumerate(_seeds(name)):
            (corpus / f"seed-{which}").write_bytes(content)
        paths = [str(Path(forerank.__file__).parents[1]), str(Path(__file__).parents[1])]
        command = [sys.executable, "-W", "ignore", "-m", f"campaigns.fuzz.{name}", str(corpus)]
        command += [f"-runs={tries // len(TARGETS)}", f"-seed={seed + 1}"]
        command += [f"-max_total_time={int(seconds)}"] if isfinite(seconds) else []
        command += ["-max_len=4096", "-timeout=20", "-rss_limit_mb=2048", f"-artifact_prefix={folder}/"]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )  # fmt: skip
        said = done.stdout + done.stderr
        runs = re.search(r"Done (\d+) runs", said) or re.search(r"#(\d+)[^#]*\Z", said)
        count = int(runs[1]) if runs else 0
        coverage = re.findall(r"cov: (\d+)", said)
        if done.returncode != 0:
            cause = re.search(r"=== Uncaught Python exception: ===\n(.*)", said)
            why = cause[1] if cause else said[-300:]
            inputs = [file.read_bytes()[:80] for file in folder.glob("*-*") if file.is_file()]
            tally.count(False, f"{name}: {why}; input {inputs!r}")
        tally.survived += max(0, count - (done.returncode != 0))
        tally.figures[f"{name}: runs"] = f"{count:,} (coverage {coverage[-1] if coverage else 'unknown'})"
    return tally


def _seeds(name: str) -> list[bytes]:
    """Valid inputs to begin with."""
    if name == "decode":
        return [content for _, content in seed_files()[::4]]
    if name == "table":
        return [
            b"0path,label,split,is_query,is_gallery,category\na/1.png,cup,train,1,0,x\n",
            b"\xfflabel,is_query,is_gallery\ncup,1,0\ncup,0,1\n",
            b"\xffcup\njug\n",
        ]
    if name == "recipe":
        recipes = Path(forerank.__file__).parent / "recipes"
        return [file.read_bytes() for file in sorted(recipes.glob("*.yaml"))[:3]]
    if name == "formula":
        return [b"1/(1+R)**2", b"log(1+R)*exp(-R)", b"sqrt(R)+pi*tanh(R)", b"R**0.5-2"]
    meta = b'M{"count": 3, "dim": 4, "approximate": {"width": 1}, "files": {}}'
    return [b"Cgeneration-000001\n", meta, b"R\x00\x64abc", b"V\x00\x10abc", b'J{"format": 1}\n']
