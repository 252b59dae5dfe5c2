"""What this machine has: versions, device, threads, optional parts and how to get the missing ones."""

import importlib.util
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from forerank import __version__
from forerank.errors import EXTRAS, InputError, install_command, installed_version

# Packages whose versions belong in every report.
_CORE = ("torch", "numpy", "numba", "pillow", "matplotlib", "safetensors")

# What each extra is for, shown by `forerank doctor`.
PURPOSES = {
    "baselines": "losses of pytorch-metric-learning under the same protocol",
    "budget": "forerank train --minutes (Optuna)",
    "search": "forerank index and search (faiss)",
    "web": "forerank serve",
    "map": "forerank map (UMAP)",
    "milvus": "an index in Milvus",
    "mlflow": "tracking=mlflow",
    "wandb": "tracking=wandb",
    "timm": "backbones timm:NAME, the paper's ResNet-50",
    "hf": "backbones hf:NAME",
    "onnx": "forerank export --onnx",
    "openvino": "faster embedding and indexing on processors",
    "s3": "images at s3:// addresses",
    "heic": "HEIC photographs (iPhone)",
    "weights": "EfficientNet-lite1 and lite2 with ImageNet weights",
}


def versions() -> dict[str, str]:
    """Versions that decide a run's numbers, for reports and run folders.

    >>> sorted(versions())[:2]
    ['forerank', 'matplotlib']
    """
    packages = {name: v for name in _CORE if (v := installed_version(name))}
    return {"forerank": __version__, "python": platform.python_version(), **packages}


def missing_extras() -> dict[str, list[str]]:
    """Extra -> modules of it that cannot be found here. Nothing is imported.

    >>> set(missing_extras()) <= set(PURPOSES)
    True
    """
    missing: dict[str, list[str]] = {}
    for module, extra in EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            missing.setdefault(extra, []).append(module)
    return missing


def choose_device(name: str = "auto") -> str:
    """The torch device of that name, tried out; "auto" is cuda, then mps if it works, then cpu.

    >>> choose_device("cpu")
    'cpu'
    >>> choose_device("gpu")
    Traceback (most recent call last):
    forerank.errors.InputError: unknown device 'gpu': give auto, cpu, cuda, cuda:1 or mps
    """
    import torch

    if name == "auto":
        return next(kind for kind in ("cuda", "mps", "cpu") if _device_fault(kind) is None)
    try:
        torch.device(name)
    except RuntimeError as error:
        raise InputError(f"unknown device {name!r}: give auto, cpu, cuda, cuda:1 or mps") from error
    fault = _device_fault(name)
    if fault is not None:
        raise InputError(f"the device {name!r} cannot be used on this machine ({fault}): give cpu")
    return name


def device_faults() -> dict[str, str]:
    """Why the accelerators that torch knows cannot be used here: kind -> reason; none for those that work.

    >>> set(device_faults()) <= {"cuda", "mps"}
    True
    """
    import torch

    faults = {kind: fault for kind in ("cuda", "mps") if (fault := _device_fault(kind)) is not None}
    if "cuda" in faults and torch.version.cuda is None:
        faults["cuda"] += f"; this torch ({torch.__version__}) was built without CUDA"
    return faults


def _device_fault(name: str) -> str | None:
    """Why a device cannot embed and train, or None if a small step of both works there."""
    import torch

    kind = torch.device(name).type
    if kind == "cpu":
        return None
    if kind == "cuda" and not torch.cuda.is_available():
        return "torch finds no CUDA device"
    if kind == "mps" and not torch.backends.mps.is_available():
        return "torch finds no MPS device"
    try:
        weight = torch.ones(2, 3, 3, 3, device=name, requires_grad=True)
        image = torch.ones(1, 3, 5, 5, device=name)
        torch.nn.functional.conv2d(image, weight).sigmoid().sort().values.sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        float(weight.grad.sum())
    except Exception as error:  # a device's library may raise anything
        return str(error).partition("\n")[0]
    return None


def cpu_has_bf16() -> bool:
    """Whether this processor has instructions for bfloat16 products, and they work."""
    import torch

    check = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(check()) and bf16_fault() is None if check else False


# The setting of oneDNN, the library under torch and OpenVINO, that leaves AMX out.
WITHOUT_AMX = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
_PRODUCT = "import torch; side = torch.ones(32, 64, dtype=torch.bfloat16); torch.mm(side, side.T)"
_PROCESSOR = Path("/proc/cpuinfo")


@cache
def bf16_fault() -> str | None:
    """Why this processor cannot compute bfloat16 products; None if it can, be it slowly.

    Virtual machines were seen that announce AMX, Intel's instructions for such products, and end a process
    that uses them. So where AMX is announced (on Linux, which alone tells), a process of its own tries a
    product first.
    """
    try:
        if "amx_bf16" not in _PROCESSOR.read_text(encoding="utf-8", errors="replace"):
            return None
    except OSError:
        return None
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _PRODUCT], capture_output=True, check=False, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it cannot be tried whether the bf16 instructions (AMX) of this processor work ({error})"
    if tried.returncode == 0:
        return None
    if tried.returncode < 0:  # a signal ended it
        return "this processor announces instructions for bf16 (AMX) that end the process when they are used"
    said = (tried.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    return f"the trial of the bf16 instructions (AMX) of this processor failed ({said})"


def check_bf16(device: str) -> None:
    """Raise where the user asked for bfloat16 and a product in it would end the process."""
    fault = bf16_fault() if device.partition(":")[0] == "cpu" else None
    if fault is not None:
        instead = f"set {'='.join(WITHOUT_AMX)} in the environment before you start, or use fp32"
        raise InputError(f"{fault}: {instead}")


def describe_machine() -> dict[str, Any]:
    """Everything `forerank doctor` prints, as a dict that can be JSON."""
    import torch

    device = choose_device()
    missing = missing_extras()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "devices": torch.cuda.device_count() if device == "cuda" else 1,
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory_gib": round(memory / 2**30, 1),
        "bf16_instructions": cpu_has_bf16(),
        "bf16_fault": bf16_fault(),
        "inference": "openvino" if device == "cpu" and "openvino" not in missing else "torch",
        "extras": {
            extra: {
                "purpose": purpose,
                "installed": extra not in missing,
                "missing": missing.get(extra, []),
                "install": install_command(extra),
            }
            for extra, purpose in PURPOSES.items()
        },
    }
