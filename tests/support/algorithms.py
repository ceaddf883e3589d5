"""Algorithms of runs that are set up, for tests of their methods."""

import dataclasses
import sys


def make_algorithm(setup, **changes):
    module = sys.modules[setup.config.build.__module__]
    return module.make_algorithm(setup.config.system, setup.spec._replace(**changes))


def with_methods(algorithm, **methods):
    """Return a copy of an algorithm with other methods, `(self, ...)`."""
    variant = type("Variant", (type(algorithm),), methods)
    return variant(**{field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)})
