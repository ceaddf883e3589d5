"""Population-based training: between evaluations, bad members continue as changed copies of good ones.

Source: Jaderberg et al. 2017, "Population based training of neural networks", with truncation selection.

The hyperparameters of members are arguments of the training program, so a selection changes them without compiling
anything: small programs choose what each member continues and explore its hyperparameters, and one more copies the
shared state, on the devices that hold it. Episodes, keys and replay buffers stay with their member. The keys of a
selection come from `arch.seed` and the number of the evaluation. A selection belongs to its evaluation: a run that
ended between the two makes it when it resumes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.arch_config import PBTConfig
from stoix_like.architectures.types import Hyperparams, LearnerState
from stoix_like.config import RunConfig
from stoix_like.errors import ConfigError
from stoix_like.processes import Processes
from stoix_like.run.host.devices import placing
from stoix_like.run.population.members import KEY, Population, bounded, convert_values, ends

# No other random numbers of a run are drawn from the seed of a member and this number.
_STREAM = 0x9B7
# The entry that a selection adds to the record of its evaluation, so that none is made twice.
CONTINUES = "population/continues"


class Space(NamedTuple):
    """The range in which one hyperparameter is explored."""

    low: float  # smallest value
    high: float  # largest value
    is_log: bool  # whether values are changed by a factor and drawn log-uniformly, or by a distance and uniformly


class Selected(NamedTuple):
    """The outcome of a selection."""

    state: LearnerState
    population: Population  # the members; their hyperparameters may have changed
    sources: list[int]  # the member that each one continues
    healthy: Sequence[int]  # members that train again, if they had diverged


class Evolution:
    """Exploitation and exploration; the program that copies members is compiled ahead of time."""

    def __init__(self, run: RunConfig, population: Population, state: LearnerState, processes: Processes) -> None:
        config = run.arch.population.pbt
        self._processes = processes
        self._every = config.every_evals
        self._key = jax.random.fold_in(jax.random.key(run.arch.seed), _STREAM)
        self._count = max(1, int(population.num_members * config.fraction))
        self._perturb = jax.jit(partial(_perturb, spaces=spaces(run), config=config))
        layouts = jax.tree.map(lambda leaf: leaf.sharding, state)
        program = jax.jit(_copy, donate_argnums=0, out_shardings=layouts)
        self._copy = placing(program.lower(state, np.arange(population.num_members, dtype=np.int32)).compile())

    def is_due(self, evaluation: int) -> bool:
        """Return whether members are replaced after the evaluation with this number; the one at step 0 is number 0."""
        return evaluation > 0 and self._every is not None and evaluation % self._every == 0

    def __call__(self, state: LearnerState, population: Population, history: Sequence[Mapping[str, Any]]) -> Selected:
        """Replace the worst members by copies of the best ones, with other hyperparameters."""
        key = jax.random.fold_in(self._key, jax.device_put(np.uint32(len(history) - 1)))
        exploit_key, explore_key = jax.random.split(key)
        returns, healthy = np.float32(history[-1]["eval/episode_return_mean"]), self._processes.fetch(state.healthy)
        scores = np.where(np.isnan(returns) | ~healthy, np.float32(-np.inf), returns)
        sources = np.asarray(_choose(jax.device_put(scores), exploit_key, self._count))
        is_copy = sources != np.arange(len(sources))
        copied = {name: values[sources] for name, values in population.arrays().items()}
        explored = jax.device_get(self._perturb(jax.device_put(copied), explore_key))
        # Unselected members keep their exact values.
        hyperparams = {
            name: tuple(np.where(is_copy, explored[name], values).tolist())
            for name, values in population.hyperparams.items()
        }
        evolved, copies = population._replace(hyperparams=hyperparams), np.flatnonzero(is_copy).tolist()
        return Selected(self._copy(state, sources), evolved, sources.tolist(), copies)


def spaces(run: RunConfig) -> dict[str, Space]:
    """Return the range of each hyperparameter that varies between members."""
    config = run.arch.population
    found = {}
    for name, (key, space) in bounded(config, config.pbt.bounds, f"{KEY}.pbt.bounds").items():
        kinds = list(space) if isinstance(space, Mapping) else []
        if kinds not in (["uniform"], ["log_uniform"]):
            raise ConfigError(
                f"{key}={space} is not a range to explore: set {KEY}.pbt.bounds.{name} to {{uniform: [low, high]}} or"
                " {log_uniform: [low, high]}"
            )
        is_log = kinds == ["log_uniform"]
        low, high = convert_values(run.system, name, ends(f"{key}.{kinds[0]}", space[kinds[0]], above_zero=is_log))
        found[name] = Space(low, high, is_log)
    return found


@partial(jax.jit, static_argnums=2)
def _choose(scores: jax.Array, key: jax.Array, count: int) -> jax.Array:
    """Return by member the one that it continues: the `count` worst draw from the `count` best, if those are better."""
    order = jnp.argsort(scores)
    own = jnp.arange(scores.size)
    # The best ones are not replaced, however few members there are.
    drawn = order[-count:][jax.random.randint(key, (count,), 0, count)]
    sources = own.at[order[:count]].set(drawn)
    return jnp.where(scores[sources] > scores, sources, own)


def _copy(state: LearnerState, sources: jax.Array) -> LearnerState:
    # Each member keeps its episodes, its keys, also for its next reset, and its replay buffer.
    def copied(leaf: jax.Array) -> jax.Array:
        return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf[sources]

    return state._replace(shared=jax.tree.map(copied, state.shared), healthy=state.healthy[sources])


def _perturb(hyperparams: Hyperparams, key: jax.Array, *, spaces: dict[str, Space], config: PBTConfig) -> Hyperparams:
    return {
        name: _explore(jax.random.fold_in(key, index), hyperparams[name], spaces[name], config)
        for index, name in enumerate(sorted(hyperparams))
    }


def _explore(key: jax.Array, values: jax.Array, space: Space, config: PBTConfig) -> jax.Array:
    """Draw new values, or change the given ones a little."""
    draw_key, sign_key, choice_key = jax.random.split(key, 3)
    uniform = jax.random.uniform(draw_key, values.shape)
    sign = jax.random.rademacher(sign_key, values.shape, values.dtype)
    if space.is_log:
        low, high = math.log(space.low), math.log(space.high)
        drawn = jnp.exp(low + (high - low) * uniform)
        changed = values * (1.0 + sign * config.perturbation)
    else:
        width = space.high - space.low
        drawn = space.low + width * uniform
        changed = values + sign * config.perturbation * width
    resampled = jax.random.bernoulli(choice_key, config.resample_probability, values.shape)
    return jnp.clip(jnp.where(resampled, drawn, changed), space.low, space.high)
