"""Packages that another package imports and this one does not need, imported when they are used."""

from __future__ import annotations

import contextlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Placeholder(ModuleType):
    """A module, or an attribute of one, that is imported when one of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if isinstance(sys.modules.get(self.__name__.partition(".")[0]), _Placeholder):
            # Still deferred: an annotation such as `plt.Figure`, or `from matplotlib import colors`.
            return _Placeholder(f"{self.__name__}.{name}")
        return getattr(pkgutil.resolve_name(self.__name__), name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        """Leave the class out of the bases of another one."""
        return ()


class _PlaceholderFinder(MetaPathFinder, Loader):
    """A finder of placeholders for every module of the named packages."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in self._packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Placeholders have no code."""


@contextlib.contextmanager
def deferred(*packages: str) -> Iterator[None]:
    """Defer imports of packages within the context; those that are imported already stay.

    Modules that are imported within the context may import modules of these packages, but call nothing of theirs before
    the context ends. Subclasses of their classes are of no use.
    """
    finder = _PlaceholderFinder([name for name in packages if name not in sys.modules])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _Placeholder)]:
            del sys.modules[name]
