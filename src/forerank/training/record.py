"""What a run leaves behind: recipe.yaml, metrics.jsonl, TensorBoard events, results.json."""

import hashlib
import json
import platform
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from forerank.errors import ForerankError, InputError
from forerank.files import DamagedFileError, json_with_checksum, read_json_with_checksum, write_atomically
from forerank.machine import versions
from forerank.training.checkpoint import BEST, LAST, cannot_write
from forerank.training.prepare import with_absolute_paths
from forerank.training.processes import Processes
from forerank.training.recipe import Recipe, differences, flatten, load_recipe, recipe_text
from forerank.training.trackers import Begin, Trackers

RECIPE, METRICS, RESULTS, BUDGET = "recipe.yaml", "metrics.jsonl", "results.json", "budget.json"
RECIPE_CHECKSUM = "# checksum of the lines above: "


def is_run(path: Path) -> bool:
    """Whether a folder was written by a run."""
    return (path / RECIPE).is_file()


def has_budget(run: Path) -> bool:
    """Whether a run folder belongs to a search within a time."""
    return (run / BUDGET).is_file()


def resume_line(run: Path) -> str:
    """The command that resumes a run."""
    return f"forerank train {shlex.quote(str(run))}"


def recipe_source(source: str | Path) -> Path | str:
    """A run folder stands for the recipe in it; one whose lines were changed or cut off is refused."""
    if not is_run(Path(source)):
        return source
    file = Path(source) / RECIPE
    text, mark, told = file.read_text(encoding="utf-8", errors="replace").rpartition(RECIPE_CHECKSUM)
    if mark and told.strip() == _text_checksum(text):
        return file
    if mark or (Path(source) / LAST).exists():  # the lines at the end were changed or cut off
        raise InputError(
            f"{file} is not as the run wrote it (its checksum does not fit): put it back, or give the "
            "values on the command line, with another --run"
        )
    return file  # not begun yet: a recipe that somebody wrote here


def prepare_run(source: str | Path, values: Sequence[str], run: Path | None) -> tuple[Recipe, Path]:
    """The recipe and the run folder that a command line asks for.

    The same words always give the same folder, so that the same command resumes. ``run=FOLDER`` among the
    values is the same as `run`: `torchrun` takes an option ``--run`` for its own.

    >>> recipe, run = prepare_run("glyphs", ["lr=1e-3", "loss=pml:FastAPLoss"], None)
    >>> run.as_posix()
    'runs/glyphs,loss=pml-FastAPLoss,lr=1e-3'
    """
    named = [value.removeprefix("run=") for value in values if value.startswith("run=")]
    values = [value for value in values if not value.startswith("run=")]
    recipe = load_recipe(recipe_source(source), values)
    run = Path(named[-1]) if named else run
    if run is not None:
        return recipe, run
    if is_run(Path(source)):
        return recipe, Path(source)
    words = ",".join([recipe.name, *sorted(values)])
    plain = re.sub(r"[^\w.=,+-]+", "-", words)
    if len(plain) > 100:
        plain = f"{plain[:80]}-{hashlib.sha256(words.encode()).hexdigest()[:10]}"
    return recipe, Path("runs") / plain


def remove_finished_run(run: Path) -> None:
    """Remove a run that has ended, so that it can be done again; an interrupted one is left to resume."""
    if is_run(run) and (run / RESULTS).exists():
        shutil.rmtree(run)


def begun_recipe(run: Path) -> Recipe | None:
    """The recipe of a run that has saved a model already, and so can only be resumed as it is."""
    if is_run(run) and _has_saved(run):
        return with_absolute_paths(load_recipe(recipe_source(run)))
    return None


def _has_saved(run: Path) -> bool:
    return any((run / link).exists() for link in (LAST, BEST))


def _text_checksum(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def with_begun_batch(recipe: Recipe, run: Path, processes: int) -> Recipe:
    """The recipe with the batch that a run was begun with, if it names none itself.

    A batch size that nobody chose is fitted to the number of processes. A run that is resumed
    by more or fewer processes keeps its own, because another batch size would make it another run.
    """
    begun = begun_recipe(run)
    if begun is None:
        return recipe
    if recipe.batch.batch_size is None:
        recipe = replace(recipe, batch=replace(recipe.batch, batch_size=begun.batch.batch_size))
    size, each = begun.batch.batch_size, begun.batch.images_per_class
    if size is not None and size == recipe.batch.batch_size and (size // each) % processes:
        raise InputError(
            f"{run} was begun with batches of {size // each} classes, which {processes} processes cannot "
            f"share evenly: resume it with a number of processes that divides {size // each}"
        )
    return recipe


def refuse_other_run(run: Path, recipe: Recipe) -> None:
    """Refuse a folder that is another recipe's run, or no run at all."""
    begun = begun_recipe(run)
    if begun is not None:
        refuse_other_values(run, differences(begun, recipe))
    elif run.exists() and not is_run(run) and (not run.is_dir() or any(run.iterdir())):
        raise InputError(f"{run} is not empty and not a run folder: give another --run")


def refuse_other_values(run: Path, other: Mapping[str, tuple[Any, Any]]) -> None:
    """Refuse values that a run was not begun with: dotted key -> (the run's value, the one given now)."""
    if not other:
        return
    key, (theirs, ours) = next(iter(other.items()))
    more = f" and {len(other) - 1} more" if len(other) > 1 else ""
    raise InputError(
        f"{run} is a run of another recipe ({key} is {theirs} there, {ours} here{more}): "
        f"give another --run, or resume it as it is with: {resume_line(run)}"
    )


def claim_run(run: Path, recipe: Recipe) -> None:
    """Make the run folder this recipe's own, or refuse if it is another's."""
    refuse_other_run(run, recipe)
    if begun_recipe(run) is not None:
        return
    with explain_write_errors(run / RECIPE):
        text = recipe_text(recipe)
        write_atomically(run / RECIPE, f"{text}{RECIPE_CHECKSUM}{_text_checksum(text)}\n")


def read_history(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl; a last line cut short by a kill, or a damaged one, ends them."""
    rows: list[dict[str, Any]] = []
    file = run / METRICS
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            break
        rows.append(row)
    return rows


class Record:
    """Rows of numbers into metrics.jsonl and the recipe's trackers, by the first process only."""

    def __init__(self, run: Path, recipe: Recipe, processes: Processes, step: int, validated: int) -> None:
        """Continue the record at `step`: rows of steps that will be done again are dropped."""

        def stays(row: Mapping[str, Any]) -> bool:
            if "test" in row:  # written at the very end, and again when the end is done again
                return False
            return bool(row["step"] < step or (row["step"] == step and ("loss" in row or validated == step)))

        self.history = [row for row in read_history(run) if stays(row)]
        self._file, self._trackers = None, None
        self._run = run
        if not processes.first:
            return
        with explain_write_errors(run / METRICS):
            write_atomically(run / METRICS, "".join(_line(row) for row in self.history))
            self._file = (run / METRICS).open("a", encoding="utf-8")
        self._trackers = Trackers(recipe.tracking, Begin(run, recipe.name, flatten(recipe), step))

    def add(self, step: int, **values: Any) -> None:
        """One row at a step; nested values are named group/name in the trackers."""
        row = {"step": step, **values}
        self.history.append(row)
        if self._file is None or self._trackers is None:
            return
        with explain_write_errors(self._run / METRICS):
            self._file.write(_line(row))
            self._file.flush()
        self._trackers.add(list(_scalars(values)), step)

    def close(self) -> None:
        """Close the files; every row was flushed as it came."""
        if self._file is not None:
            with suppress(OSError):  # the full disk was reported already; the file is closed all the same
                self._file.close()
        if self._trackers is not None:
            self._trackers.close()


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"


def _scalars(values: Mapping[str, Any], group: str = "") -> Iterable[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{name}/")
        elif isinstance(value, int | float):
            yield group + name, float(value)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON with a checksum so that the file is the old one or the new one."""
    with explain_write_errors(path):
        write_atomically(path, json_with_checksum(value))


def read_json(path: Path, keys: Iterable[str], advice: str) -> dict[str, Any]:
    """What `write_json` wrote, with these keys in it; a damaged file is one sentence that ends in advice."""
    try:
        values = read_json_with_checksum(path)
    except (OSError, DamagedFileError) as error:
        raise ForerankError(f"{error}: {advice}") from error
    lacking = [key for key in keys if key not in values]
    if lacking:
        raise ForerankError(f"{path} is damaged (it lacks {lacking[0]!r}): {advice}")
    return values


@contextmanager
def explain_write_errors(file: Path) -> Iterator[None]:
    """Turn the system's refusal to write a file of a run folder into one sentence."""
    try:
        yield
    except OSError as error:
        raise cannot_write(str(file), file.parent, error) from error


def computed_with() -> dict[str, str]:
    """What the run was computed with: versions, platform and threads."""
    import torch

    return {**versions(), "platform": platform.platform(), "threads": str(torch.get_num_threads())}
