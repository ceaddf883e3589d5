"""Algorithms of runs that are set up, for tests of their methods."""

import sys


def make_algorithm(setup, **changes):
    """Build the algorithm of a set-up; `changes` are those of its spec."""
    module = sys.modules[setup.config.build.__module__]
    return module.make_algorithm(setup.config.system, setup.spec._replace(**changes))
