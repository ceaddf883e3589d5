"""Modules of suites and extras, imported by the process that runs their tests: every process collects all tests."""

import importlib
from types import ModuleType


class Lazy(ModuleType):
    """A module that is imported when one of its attributes is read."""

    def __getattr__(self, name):
        # What pytest asks of everything in a test module.
        if name.startswith("__") or name == "_mock_name":
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)
