"""Names of a package that are imported only when somebody asks for them, so that importing it stays quick."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def import_on_demand(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its name.
        modules: name -> module inside the package that defines it.

    >>> get = import_on_demand("forerank", {"InputError": "errors"})
    >>> get("InputError").__name__
    'InputError'
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return get
