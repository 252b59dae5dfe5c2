"""The results of a study in one file: documents are written from it, and training goes on from it elsewhere.

A study on a processor takes hours. Its run folders hold models and are too large to keep with the documents;
what the tables and claims read of a run is a few kilobytes.
"""

import json
from pathlib import Path
from typing import Any

from forerank.errors import InputError
from forerank.files import write_atomically
from forerank.paper import toy, tuning
from forerank.paper.study import RESULT, Study

# Files of the study's own folder that hold results, beside those of the runs.
_OF_STUDY = (tuning.FILE, toy.FILE)


def keep_results(study: Study, file: Path) -> None:
    """Write everything that was measured and chosen in the study's folder to one file, a line per run."""
    runs = {path.parent.name: _read(path) for path in sorted(study.runs.glob(f"*/{RESULT}"))}
    own = {name: _read(study.folder / name) for name in _OF_STUDY if (study.folder / name).is_file()}
    lines = [f"{json.dumps(key)}: {json.dumps(result)}" for key, result in runs.items()]
    head = f'"on": {json.dumps(study.on)},\n"study": {json.dumps(own)},\n"runs": '
    write_atomically(file, "{" + head + "{\n" + ",\n".join(lines) + "\n}}\n")


def restore_results(study: Study, file: Path) -> int:
    """Put the results of a kept file into the study's folder, and say how many were not there.

    A run whose result is there counts as ended, so it is not trained again; its model is not there.
    """
    kept = _read(file)
    if not isinstance(kept, dict) or set(kept) != {"on", "study", "runs"}:
        raise InputError(f"{file} is not a file of kept results: forerank paper ... --kept writes one")
    if kept["on"] != study.on:
        raise InputError(f"{file} holds results on {kept['on']}, and this study is on {study.on}")
    targets = {study.folder / name: kept["study"][name] for name in _OF_STUDY if name in kept["study"]}
    targets |= {study.runs / Path(key).name / RESULT: result for key, result in kept["runs"].items()}
    missing = [path for path in targets if not path.is_file()]
    for path in missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(targets[path]))
    return len(missing)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {file}: {error}") from error
