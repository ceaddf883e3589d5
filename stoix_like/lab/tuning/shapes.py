"""Shapes of a sweep: the values of the parameters that are not traced, with one program each."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, IntDistribution

from stoix_like.lab.tuning.parameters import Parameter
from stoix_like.storage.recorded_runs import identity

# Shapes of ranges of integers that have more combinations.
MAX_DRAWN = 8
# Points of a grid of a continuous range.
GRID_POINTS = 5

Shape = dict[str, Any]
"""Values of untraced parameters by key."""


def shape_of(params: Mapping[str, Any], parameters: Sequence[Parameter]) -> Shape:
    """Return the shape of a trial."""
    return {parameter.key: params[parameter.key] for parameter in parameters if not parameter.traced}


def list_shapes(parameters: Sequence[Parameter], sampler: str, number: int | None, seed: int) -> list[Shape] | None:
    """Return the shapes of a sweep; None where nothing is traced: every trial compiles anyway, and may have its own."""
    fixed = [parameter for parameter in parameters if not parameter.traced]
    if sampler == "grid":
        return _combine(fixed, [parameter.grid(GRID_POINTS) for parameter in fixed])
    if number is None and len(fixed) == len(parameters):
        return None
    total = math.prod(len(_values(parameter)) for parameter in fixed)
    if number is None:
        has_ranges = any(isinstance(parameter.distribution, IntDistribution) for parameter in fixed)
        number = MAX_DRAWN if has_ranges else total
    if number >= total:
        return _combine(fixed, [_values(parameter) for parameter in fixed])
    rng = np.random.default_rng(seed)
    drawn: dict[str, Shape] = {}
    while len(drawn) < number:
        shape = {parameter.key: _draw(parameter, rng) for parameter in fixed}
        drawn.setdefault(identity(shape), shape)
    return list(drawn.values())


def _combine(fixed: Sequence[Parameter], values: Sequence[Sequence[Any]]) -> list[Shape]:
    combined = [dict(zip([one.key for one in fixed], point, strict=True)) for point in itertools.product(*values)]
    return list({identity(shape): shape for shape in combined}.values())


def _values(parameter: Parameter) -> Sequence[Any]:
    if isinstance(parameter.distribution, CategoricalDistribution):
        return list({identity(value): value for value in parameter.distribution.choices}.values())
    assert isinstance(parameter.distribution, IntDistribution)
    return range(parameter.distribution.low, parameter.distribution.high + 1)


def _draw(parameter: Parameter, rng: np.random.Generator) -> Any:
    if isinstance(parameter.distribution, CategoricalDistribution):
        values = _values(parameter)
        return values[int(rng.integers(len(values)))]
    assert isinstance(parameter.distribution, IntDistribution)
    low, high = parameter.distribution.low, parameter.distribution.high
    if not parameter.is_log:
        return int(rng.integers(low, high, endpoint=True))
    # Every integer has the share of the logarithmic range that rounds to it.
    return int(np.clip(round(math.exp(rng.uniform(math.log(low - 0.5), math.log(high + 0.5)))), low, high))


def population_size(given: int | None, trials: int, parallel: int, num_shapes: int) -> int:
    """Return the trials per population: `given`, else `parallel` or its largest divisor that tries every shape."""
    if given is not None:
        return given
    divisors = [size for size in range(parallel, 0, -1) if parallel % size == 0]
    return next((size for size in divisors if -(-trials // size) >= num_shapes), 1)


def describe_programs(
    parameters: Sequence[Parameter], num_shapes: int | None, populations: Sequence[tuple[str, int]], seeds: int
) -> str:
    """Return how many programs a sweep compiles, as one line. `num_shapes`: None if every trial has its own."""
    of = ", ".join(parameter.key for parameter in parameters if not parameter.traced)
    if all(not parameter.traced for parameter in parameters):
        most = min(len(populations), num_shapes or len(populations))
        return f"{of}: every combination of values is a program, at most {most}"
    programs = Counter(trials * seeds for _, trials in set(populations))
    # The hyperparameters of a lone member are constants of its program.
    programs[1] = sum(trials * seeds == 1 for _, trials in populations)
    counts = [
        f"{number} programs, each for {members} member(s)" if number > 1 else f"1 program for {members} member(s)"
        for members, number in sorted(programs.items(), reverse=True)
        if number
    ]
    tried = len({shape for shape, _ in populations})
    shapes = f"{tried} of {num_shapes}" if num_shapes and tried < num_shapes else f"{tried}"
    return f"{shapes} shape(s) of {of}: {', and '.join(counts)}" if of else ", and ".join(counts)
