"""Checkpoints that are either the old one or the new one, whatever happens while they are written.

``RUN/last`` and ``RUN/best`` are links into ``RUN/checkpoints``. A checkpoint is written under a temporary
name, flushed to the disk, renamed, and only then the link is replaced, which is one atomic step. A process
killed at any moment, or a disk that fills up, leaves the link on the old checkpoint. Weights and optimiser
state are safetensors, the rest is JSON: nothing is unpickled.
"""

import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from forerank.errors import ForerankError
from forerank.files import (
    checksum_metadata,
    json_with_checksum,
    load_tensors,
    read_json_with_checksum,
    sync_folder,
    sync_tree,
    temporary_folder,
)

LAST, BEST = "last", "best"


class CheckpointError(ForerankError):
    """A file of a run could not be written; the last checkpoint is intact."""


def cannot_write(what: str, run: Path, error: Exception) -> CheckpointError:
    """The error for a file that cannot be written, for instance because the disk is full.

    >>> print(cannot_write("runs/a/metrics.jsonl", Path("runs/a"), OSError(28, "No space left on device")))
    cannot write runs/a/metrics.jsonl (No space left on device): what was saved before is intact; make room, \
then resume with: forerank train runs/a
    """
    reason = getattr(error, "strerror", None) or str(error)
    return CheckpointError(
        f"cannot write {what} ({reason}): what was saved before is intact; "
        f"make room, then resume with: forerank train {shlex.quote(str(run))}"
    )


def write_checkpoint(run: Path, name: str, links: tuple[str, ...], fill: Callable[[Path], None]) -> Path:
    """Write ``RUN/checkpoints/NAME`` by `fill(folder)`, point the links at it, remove the old one.

    >>> import tempfile
    >>> run = Path(tempfile.mkdtemp())
    >>> _ = write_checkpoint(run, "step-1", ("last",), lambda f: f.joinpath("a").write_text("one") and None)
    >>> _ = write_checkpoint(run, "step-2", ("last",), lambda f: f.joinpath("a").write_text("two") and None)
    >>> (run / "last" / "a").read_text(), sorted(p.name for p in (run / "checkpoints").iterdir())
    ('two', ['step-2'])
    """
    store = run / "checkpoints"
    store.mkdir(parents=True, exist_ok=True)
    final = _unused(store, name)
    try:
        with temporary_folder(final) as writing:
            fill(writing)
            sync_tree(writing)
            writing.rename(final)
        sync_folder(store)
        for link in links:
            _point(run, link, final)
    except (OSError, SafetensorError, ForerankError) as error:
        raise cannot_write(f"a checkpoint in {run}", run, error) from error
    clean_checkpoints(run)
    return final


def _unused(store: Path, name: str) -> Path:
    """A folder that does not exist yet: what a link may point at is never touched."""
    candidates = (store / (f"{name}.{i}" if i else name) for i in count())
    return next(path for path in candidates if not path.exists())


def _point(run: Path, link: str, target: Path) -> None:
    fresh = run / f".{link}-new"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target.relative_to(run), target_is_directory=True)
    fresh.replace(run / link)
    sync_folder(run)


def clean_checkpoints(run: Path) -> None:
    """Remove what no link points at: older checkpoints, and leftovers of a writer that was killed."""
    store = run / "checkpoints"
    if not store.is_dir():
        return
    wanted = {(run / link).resolve() for link in (LAST, BEST) if (run / link).exists()}
    for path in store.iterdir():
        if path.resolve() not in wanted:
            shutil.rmtree(path, ignore_errors=True)


def save_state(folder: Path, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write everything but the model: ``state.json`` and ``state.safetensors``."""
    plain = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    save_file(plain, folder / "state.safetensors", checksum_metadata(plain))
    (folder / "state.json").write_text(json_with_checksum(state), encoding="utf-8")


def load_state(folder: Path, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `save_state` wrote: the values of these names, and the tensors."""
    try:
        state = read_json_with_checksum(folder / "state.json")
        if state.keys() != set(names):
            raise ValueError("state.json does not hold the state of a run")
        return state, load_tensors(folder / "state.safetensors")[0]
    except (OSError, ValueError) as error:
        raise unreadable(folder, error) from error


def unreadable(folder: Path, error: Exception) -> ForerankError:
    """The sentence about a damaged checkpoint."""
    reason = " ".join(line.strip() for line in str(error).splitlines()[:2])
    return ForerankError(
        f"the checkpoint {folder} cannot be read ({reason}): remove {folder.parent} to start again"
    )


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as named tensors: ``parameter number.name``.

    >>> weight = torch.nn.Parameter(torch.ones(2)); weight.grad = torch.ones(2)
    >>> adam = torch.optim.Adam([weight]); _ = adam.step()
    >>> sorted(optimiser_tensors(adam))
    ['0.exp_avg', '0.exp_avg_sq', '0.step']
    """
    state = optimiser.state_dict()["state"]
    return {
        f"{number}.{name}": value
        for number, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors of `optimiser_tensors` back; rates follow from the recipe, not from here."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
