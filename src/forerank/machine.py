"""What this machine has: versions, device, threads, optional parts and how to get the missing ones."""

import importlib.metadata
import importlib.util
import os
import platform
from typing import Any

from forerank import __version__
from forerank.errors import EXTRAS

# Packages whose versions belong in every report.
_CORE = ("torch", "numpy", "numba", "pillow", "matplotlib", "safetensors")

# What each extra is for, in the words of somebody who wonders whether to install it.
PURPOSES = {
    "baselines": "losses of pytorch-metric-learning under the same protocol",
    "search": "forerank index and search (faiss)",
    "web": "forerank serve",
    "milvus": "an index in Milvus",
    "timm": "backbones timm:NAME, the paper's ResNet-50",
    "hf": "backbones hf:NAME",
    "onnx": "forerank export --onnx",
    "cars196": "Cars196 as its makers ship it (.mat files)",
    "weights": "EfficientNet-lite1 and lite2 with ImageNet weights",
}


def installed_version(package: str) -> str | None:
    """The version of a distribution, or None where it is not installed.

    >>> installed_version("no-such-package") is None
    True
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Versions that decide a run's numbers, for reports and run folders.

    >>> sorted(versions())[:2]
    ['forerank', 'matplotlib']
    """
    found = {"forerank": __version__, "python": platform.python_version()}
    found.update({name: v for name in _CORE if (v := installed_version(name))})
    return found


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


def device_name() -> str:
    """The device that work runs on when nothing else is asked for: cuda, mps or cpu."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def cpu_has_bf16() -> bool:
    """Whether products in bfloat16 have instructions of their own on this processor."""
    import torch

    check = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(check()) if check else False


def describe() -> dict[str, Any]:
    """Everything `forerank doctor` prints, as a dict that can be JSON."""
    import torch

    device = device_name()
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
        "extras": {
            extra: {
                "purpose": purpose,
                "installed": extra not in missing,
                "missing": missing.get(extra, []),
                "install": f"pip install 'forerank[{extra}]'",
            }
            for extra, purpose in PURPOSES.items()
        },
    }
