"""Inference engines: views of images in, vectors out, behind one small interface.

`torch` runs everywhere. `openvino` runs the same network faster on processors; the converted network is kept
in the cache, so that a later process neither converts it again nor loads torch. An engine is one function in
`ENGINES`.
"""

import contextlib
import importlib.util
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerank.console import say
from forerank.data.cache import cache_folder
from forerank.errors import ForerankError, InputError, check_name, require, unknown
from forerank.files import temporary_folder, write_atomically
from forerank.machine import check_bf16, cpu_has_bf16

if TYPE_CHECKING:
    from torch import nn

Array = NDArray[np.float32]
PRECISIONS = ("fp32", "bf16")
# Largest difference of a component of a unit vector from torch in fp32 that an engine may show.
TOLERANCE = {"fp32": 1e-4, "bf16": 0.1}
AT_ONCE = 2  # pictures that a core computes together: more fall out of its cache
KEPT_NETWORKS = 16  # converted networks in the cache; the oldest give way


@dataclass(frozen=True)
class Network:
    """A network ready to compute: called with views (N, ...) float32 it gives vectors (N, D) float32.

    Attributes:
        engine, precision: what computes, and in which numbers.
        difference: the largest difference of a component of a unit vector from torch in fp32; None for torch.
    """

    engine: str
    precision: str
    compute: Callable[[Array], Array]
    difference: float | None = None

    def __call__(self, views: Array) -> Array:
        return self.compute(views)

    def __str__(self) -> str:
        said = "" if self.difference is None else f", differs from torch by at most {self.difference:.0e}"
        return f"{self.engine} {self.precision}{said}"


def choose_engine(engine: str, device: str) -> str:
    """The engine that a name stands for; "auto" is openvino on a processor where it is installed.

    >>> choose_engine("torch", "cpu"), choose_engine("auto", "cuda")
    ('torch', 'torch')
    """
    if engine != "auto":
        if engine not in ENGINES:
            raise unknown("inference engine", engine, ["auto", *ENGINES])
        return engine
    if device != "cpu" or importlib.util.find_spec("openvino") is None:
        return "torch"
    return "openvino"


def open_network(
    module: "nn.Module",
    shape: tuple[int, ...],
    key: str,
    *,
    engine: str = "auto",
    precision: str = "fp32",
    device: str = "cpu",
) -> Network:
    """A torch module as a network of an engine.

    Args:
        module: images (N, *shape) -> vectors (N, D), in evaluation mode.
        shape: of one image's view.
        key: changes with everything that the module computes with; names it in the cache.
        engine: "auto", "torch" or "openvino". Where "auto" meets a network that openvino cannot run as torch
            does, it says so and takes torch.
    """
    check_name("precision", precision, PRECISIONS)
    if precision == "bf16":
        check_bf16(device)
    if engine == "auto" and precision == "bf16" and device == "cpu" and not cpu_has_bf16():
        raise InputError("this processor has no instructions for bf16: use fp32")
    chosen = choose_engine(engine, device)
    try:
        return ENGINES[chosen](module, shape, key, precision, device)
    except InputError:
        raise
    except Exception as error:
        if engine != "auto" or chosen == "torch":
            raise
        say(f"{chosen} is not used for this network: {str(error).splitlines()[0]}")
        return ENGINES["torch"](module, shape, key, precision, device)


def _torch(module: "nn.Module", shape: tuple[int, ...], key: str, precision: str, device: str) -> Network:
    import torch

    from forerank.models.embedding import channels_last

    kind = torch.device(device).type

    def compute(views: Array) -> Array:
        with torch.inference_mode(), torch.autocast(kind, torch.bfloat16, enabled=precision == "bf16"):
            images = channels_last(torch.from_numpy(views).to(device, non_blocking=True))
            vectors: Array = module(images).float().cpu().numpy()
        return vectors

    return Network("torch", precision, compute)


def _openvino(module: "nn.Module", shape: tuple[int, ...], key: str, precision: str, device: str) -> Network:
    known = cached_network(key, precision)
    if known is not None:
        return known
    folder = _folder(key)
    if (folder / f"{precision}.json").is_file() or not (folder / "network.xml").is_file():
        shutil.rmtree(folder, ignore_errors=True)  # damaged, never whole, or checked elsewhere
        say("converting the network for openvino (once; kept in the cache)")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder) as fresh:
            _convert(module, shape, fresh)
            with contextlib.suppress(OSError):  # another process was faster
                fresh.rename(folder)
        _forget_old_networks(folder.parent)
    compute = _compile(folder, precision)
    generator = np.random.default_rng(0)
    views = generator.standard_normal((3, *shape), dtype=np.float32)
    exact = _torch(module, shape, key, "fp32", device)
    # All together, then one alone: the number of images must really be free.
    pairs = [(compute(part), exact(part)) for part in (views, views[:1])]
    difference = max(float(np.abs(_unit(ours) - _unit(torchs)).max()) for ours, torchs in pairs)
    if not difference <= TOLERANCE[precision]:
        raise ForerankError(
            f"it differs from torch by {difference:.1e}, more than {TOLERANCE[precision]:.0e}"
        )
    checked = {"difference": difference, "where": _where()}
    write_atomically(folder / f"{precision}.json", json.dumps(checked))
    network = Network("openvino", precision, compute, difference)
    say(f"inference by {network}")
    return network


# Name -> function(module, shape of a view, key, precision, device) that makes a network of it.
ENGINES: dict[str, Callable[["nn.Module", tuple[int, ...], str, str, str], Network]] = {
    "torch": _torch,
    "openvino": _openvino,
}


def cached_network(key: str, precision: str = "fp32") -> Network | None:
    """The converted and checked network of a key, without loading torch; None if there is none here."""
    if precision == "bf16":
        check_bf16("cpu")
    folder = _folder(key)
    try:
        checked = json.loads((folder / f"{precision}.json").read_text())
        if checked["where"] != _where():
            return None
        difference = float(checked["difference"])
        compute = _compile(folder, precision)
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError):
        return None  # it is converted anew
    return Network("openvino", precision, compute, difference)


def _where() -> list[str]:
    """What a check against torch is valid for: this version of openvino on this kind of processor."""
    openvino = require("openvino")
    return [openvino.__version__, openvino.Core().get_property("CPU", "FULL_DEVICE_NAME")]


def _folder(key: str) -> Path:
    return cache_folder() / "networks" / key


def _convert(module: "nn.Module", shape: tuple[int, ...], folder: Path) -> None:
    """Write a torch module as network.xml and network.bin, for any number of images."""
    import torch

    openvino = require("openvino")
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    example = torch.zeros(2, *shape, device=next(module.parameters()).device)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # sizes become constants, and they are
        traced = torch.jit.trace(module, (example,), check_trace=False)  # type: ignore[no-untyped-call]
    # Not openvino.convert_model, which does the same by way of a telemetry package.
    frontend = FrontEndManager().load_by_framework("pytorch")
    decoder = TorchScriptPythonDecoder(traced)  # must live until the conversion has ended
    converted = frontend.convert(frontend.load(decoder))
    converted.reshape([-1, *shape])
    openvino.save_model(converted, folder / "network.xml", compress_to_fp16=False)


def _compile(folder: Path, precision: str) -> Callable[[Array], Array]:
    openvino = require("openvino")
    core = openvino.Core()
    # Without such instructions openvino computes in a slower imitation of bf16, and does not say so.
    if precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise InputError("openvino cannot compute in bf16 on this processor: use fp32")
    wanted = {"fp32": openvino.Type.f32, "bf16": openvino.Type.bf16}[precision]
    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": wanted,
        "PERFORMANCE_HINT": "THROUGHPUT",  # each core works on its own pictures, which fit in its cache
        "CACHE_DIR": str(folder / f"compiled-{precision}"),
    }
    compiled = core.compile_model(folder / "network.xml", "CPU", settings)
    if compiled.get_property("INFERENCE_PRECISION_HINT") != wanted:
        raise InputError(f"openvino cannot compute in {precision} on this processor: use fp32")
    requests, one_call_at_a_time = openvino.AsyncInferQueue(compiled), Lock()

    def compute(views: Array) -> Array:
        parts: dict[int, Array] = {}

        def keep(request: Any, start: int) -> None:  # the request's memory is used again
            parts[start] = np.array(request.get_output_tensor(0).data, dtype=np.float32)

        with one_call_at_a_time:
            requests.set_callback(keep)
            for start in range(0, len(views), AT_ONCE):
                requests.start_async(np.ascontiguousarray(views[start : start + AT_ONCE]), start)
            requests.wait_all()
        return np.concatenate([parts[start] for start in sorted(parts)])

    return compute


def _unit(vectors: Array) -> Array:
    unit: Array = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def _forget_old_networks(folder: Path) -> None:
    ages: dict[Path, float] = {}
    for place in folder.iterdir():
        with contextlib.suppress(OSError):  # another process has just removed it
            if place.is_dir():
                ages[place] = place.stat().st_mtime
    for place in sorted(ages, key=ages.__getitem__)[:-KEPT_NETWORKS]:
        shutil.rmtree(place, ignore_errors=True)
