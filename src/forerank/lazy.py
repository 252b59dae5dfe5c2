"""Names of a package that are imported only when somebody asks for them, so that importing it stays quick."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def import_on_demand(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its name.
        modules: module inside the package -> the names that it defines.

    >>> get = import_on_demand("forerank", {"errors": ["InputError"]})
    >>> get("InputError").__name__
    'InputError'
    """

    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get
