"""An accelerator that exists only in this process, so that mistakes with devices show without a GPU.

Its tensors hold a CPU tensor and run every operator on it. What a GPU refuses is refused here too: an
operator that mixes a tensor of the device with a CPU tensor that has dimensions, and reading a tensor of the
device as if it lay in the memory of the host. It has its own random generator, and it keeps a list of the
moments at which the host would wait for a GPU: values that are read, results whose size is a value, and
copies that are not asynchronous.

    x = torch.ones(3, device="pretend")
    with host_waits() as waits:
        float(x.sum())
    assert len(waits) == 1

torch can be told of one such device per process, once: import this module by its own name, `pretend_device`.
"""

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import forerank

DEVICE = "pretend"
PACKAGE = f"{Path(forerank.__file__).parent}/"
aten = torch.ops.aten

# Operators that may read both sides: copies, and indexing by tensors of the host.
COPIES = {"aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"}
INDEXED = {"aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put"}
# The host waits for these on a GPU, because the size of their result, or their result, is a value.
WAITING = {
    "aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::is_nonzero", "aten::nonzero",
    "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
    "aten::repeat_interleave.Tensor",
}  # fmt: skip
MADE_WHOLE = (
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.randperm.default,
    aten.randperm.generator, aten.eye.default, aten.eye.m,
)  # fmt: skip

HALF_PRECISION = (
    aten.linear.default, aten.matmul.default, aten.mm.default, aten.bmm.default, aten.addmm.default,
    aten.conv2d.default, aten.convolution.default,
)  # fmt: skip


class DeviceMixUpError(AssertionError):
    """An operator was given tensors of the device and of the host."""


@dataclass(frozen=True)
class Wait:
    """One moment at which the host waits for the device."""

    operator: str
    place: str  # the innermost line of the package: "ranking/soft.py:98 _normalise"

    @property
    def line(self) -> str:
        """The source of that line, without its comment."""
        file, _, rest = self.place.partition(":")
        source = linecache.getline(str(Path(forerank.__file__).parent / file), int(rest.split(" ")[0]))
        return source.partition("  #")[0].strip()


_waits: list[Wait] = []


@contextmanager
def host_waits() -> Iterator[list[Wait]]:
    """Inside, the list that the block receives grows with each wait."""
    global _waits
    before, _waits = _waits, []
    try:
        yield _waits
    finally:
        _waits = before


def _place() -> str:
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if PACKAGE in name:
            return f"{name.partition(PACKAGE)[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside the package"


class PretendTensor(torch.Tensor):
    """A tensor of the pretend device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "PretendTensor":
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=torch.device(DEVICE, 0),
        )  # fmt: skip
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            return func.decompose(*args, **(kwargs or {}))  # in inference mode torch has not done it
        return _run(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """That torch finds this lets a parameter that moves to the device stay the same Python object."""
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> "PretendTensor":
        return PretendTensor(inner["held"])

    def tolist(self) -> Any:
        _waits.append(Wait("tolist", _place()))
        return self.held.tolist()

    def __getitem__(self, index: Any) -> Tensor:
        # torch makes tensors of lists, which is out of the reach of the device's operators.
        parts = tuple(index) if isinstance(index, list | tuple) else (index,)
        chosen: Tensor = super().__getitem__(
            tuple(torch.tensor(part, device=DEVICE) if isinstance(part, list) else part for part in parts)
        )
        return chosen

    def new_tensor(self, values: Any, **options: Any) -> Tensor:
        options = {"dtype": self.dtype, "device": self.device} | options
        return torch.tensor(values, **options)

    def __repr__(self, **_: Any) -> str:
        return f"{self.held!r} on {DEVICE}"


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on what its tensors hold; what it makes is of the device."""
    name = func._schema.name + (f".{func._schema.overload_name}" if func._schema.overload_name else "")
    flat, shape = tree_flatten((args, kwargs))
    ours = [x for x in flat if isinstance(x, PretendTensor)]
    hosts = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, PretendTensor)]
    wanted = kwargs.get("device")
    to_host = wanted is not None and torch.device(wanted).type == "cpu"
    if ours and any(x.dim() for x in hosts) and func._schema.name not in COPIES:
        indexed = name in INDEXED or func._schema.name in INDEXED
        if not indexed or not isinstance(args[0], PretendTensor):
            shapes = ", ".join(f"{tuple(x.shape)} on {x.device.type}" for x in [*ours, *hosts])
            raise DeviceMixUpError(f"{name} in {_place()} mixes devices: {shapes}")
        _waits.append(Wait("index by a tensor of the host", _place()))
    _note_waits(func, name, args, kwargs, to_host)
    owners = {id(x.held): x for x in ours}
    shapes_before = {key: (x.held.size(), x.held.stride()) for key, x in owners.items()}

    def below(x: Any) -> Any:
        if isinstance(x, PretendTensor):
            return x.held
        return torch.device("cpu") if isinstance(x, torch.device) and x.type == DEVICE else x

    plain = [below(x) for x in flat]
    plain_args, plain_kwargs = tree_unflatten(plain, shape)
    plain_kwargs.pop("pin_memory", None)
    with _own_randomness(func):
        result = func(*plain_args, **plain_kwargs)
    for key, x in owners.items():
        assert shapes_before[key] == (x.held.size(), x.held.stride()), f"{name} changes a shape in place"

    def above(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, PretendTensor):
            return x
        if id(x) in owners:
            return owners[id(x)]
        if to_host or (not ours and wanted is None) or any(x is host for host in hosts):
            return x
        return PretendTensor(x)

    return tree_map(above, result)


def _note_waits(func: Any, name: str, args: Any, kwargs: Any, to_host: bool) -> None:
    waiting = func._schema.name in WAITING or name in WAITING
    if func._schema.name == "aten::_to_copy":
        crosses = isinstance(args[0], PretendTensor) == to_host and kwargs.get("device") is not None
        waiting = crosses and (to_host or not kwargs.get("non_blocking"))
    elif func._schema.name == "aten::copy_":
        crosses = isinstance(args[0], PretendTensor) != isinstance(args[1], PretendTensor)
        asynchronous = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        waiting = crosses and (isinstance(args[1], PretendTensor) or not asynchronous)
    elif name in INDEXED or func._schema.name in INDEXED:
        masks = [x for x in args[1] if x is not None and x.dtype in (torch.bool, torch.uint8)]
        waiting = bool(masks)  # a mask becomes positions, whose number is a value
    if waiting:
        _waits.append(Wait(name, _place()))


_generator = torch.Generator()


@contextmanager
def _own_randomness(func: Any) -> Iterator[None]:
    """Random operators draw from the generator of the device and leave that of the host alone."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    host = torch.get_rng_state()
    torch.set_rng_state(_generator.get_state())
    try:
        yield
    finally:
        _generator.set_state(torch.get_rng_state())
        torch.set_rng_state(host)


def _module() -> ModuleType:
    """What torch asks of the module of a device: `torch.pretend`."""
    module = ModuleType(f"torch.{DEVICE}")
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "manual_seed": _generator.manual_seed,
        "manual_seed_all": _generator.manual_seed,
        "get_rng_state": lambda device=None: _generator.get_state(),
        "set_rng_state": lambda state, device=None: _generator.set_state(state),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def _register() -> list[torch.library.Library]:
    _setup_privateuseone_for_python_backend(DEVICE, _module())
    everything, own = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(lambda func, *args, **kwargs: _run(func, args, kwargs), "PrivateUse1")
    # torch's own ways to make these begin with an empty tensor and change its size.
    for func in MADE_WHOLE:
        own.impl(func, lambda *args, _func=func, **kwargs: _run(_func, args, kwargs), "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for func in HALF_PRECISION:
        own.impl(func, partial(_in_half_precision, func), "AutocastPrivateUse1")
    return [everything, own]


def _in_half_precision(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Autocast: a product of float32 tensors is computed in the type that the block asks for."""
    dtype = torch.get_autocast_dtype(DEVICE)

    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, Tensor) and x.dtype == torch.float32 else x

    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
        return func(*tree_map(cast, args), **tree_map(cast, kwargs))


_tensor_of_torch = torch.tensor


def _tensor(values: Any, **options: Any) -> Tensor:
    """`torch.tensor`, which makes a tensor of a device without asking the operators of that device."""
    device = options.pop("device", None)
    if device is None or torch.device(device).type != DEVICE:
        return _tensor_of_torch(values, device=device, **options)
    gradient = options.pop("requires_grad", False)
    return _tensor_of_torch(values, **options).to(device).requires_grad_(gradient)


_libraries = _register()  # they take their operators with them when they go
_device_constructors()  # `with torch.device(...)` remembers torch.tensor as it is, before it is replaced
torch.tensor = _tensor
