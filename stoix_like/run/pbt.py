"""Population-based training: between evaluations, bad members continue as changed copies of good ones.

Source: Jaderberg et al. 2017, "Population based training of neural networks", with truncation selection.

The hyperparameters of members are arguments of the training program, so a selection changes them without compiling
anything: one more program sorts the members by their returns, takes the shared state of those that are copied, and
draws new hyperparameters, on the devices that hold the state. Episodes, keys and replay buffers stay with their member.
The keys of a selection come from `arch.seed` and the number of the evaluation. A selection belongs to its evaluation: a
run that ended between the two makes it when it resumes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.types import Hyperparams, LearnerState
from stoix_like.config import PBTConfig, RunConfig
from stoix_like.errors import ConfigError
from stoix_like.processes import Processes
from stoix_like.run.devices import placing
from stoix_like.run.population import KEY, Population, convert_values, ends

# No other random numbers of a run are drawn from the seed of a member and this number.
_STREAM = 0x9B7


class Space(NamedTuple):
    """The range in which one hyperparameter is explored.

    Attributes:
        low: smallest value.
        high: largest value.
        is_log: whether values are changed by a factor and drawn log-uniformly, or by a distance and uniformly.
    """

    low: float
    high: float
    is_log: bool


class Evolution:
    """Exploitation and exploration as one program, which is compiled ahead of time.

    Args:
        run: the typed configuration; `arch.population.pbt.every_evals` is set.
        population: its members.
        state: shapes and layouts of the learner state.
        processes: the processes that have the members.
    """

    def __init__(self, run: RunConfig, population: Population, state: LearnerState, processes: Processes) -> None:
        self._processes = processes
        self._every = run.arch.population.pbt.every_evals
        self._key = jax.random.fold_in(jax.random.key(run.arch.seed), _STREAM)
        evolve = partial(
            _evolve,
            spaces=spaces(run),
            count=max(1, int(population.num_members * run.arch.population.pbt.fraction)),
            config=run.arch.population.pbt,
        )
        layouts = jax.tree.map(lambda leaf: leaf.sharding, state)
        program = jax.jit(evolve, donate_argnums=0, out_shardings=(layouts, None, None))
        scores = np.zeros(population.num_members, np.float32)
        self._evolve = placing(program.lower(state, population.arrays(), scores, self._key).compile())

    def is_due(self, evaluation: int) -> bool:
        """Return whether members are replaced after the evaluation with this number; the one at step 0 is number 0."""
        return evaluation > 0 and self._every is not None and evaluation % self._every == 0

    def __call__(
        self, state: LearnerState, population: Population, scores: np.ndarray, evaluation: int
    ) -> tuple[LearnerState, Population, list[int]]:
        """Replace the worst members by copies of the best ones, with other hyperparameters.

        Args:
            state: the learner state, which is donated.
            population: the members.
            scores: `[P]`, mean episode return of each member.
            evaluation: number of the evaluation.

        Returns:
            The state, the members with their new hyperparameters, and by member the one that it continues.
        """
        key = jax.random.fold_in(self._key, jax.device_put(np.uint32(evaluation)))
        state, explored, sources = self._evolve(state, population.arrays(), np.float32(scores), key)
        columns, sources = self._processes.fetch((explored, sources))
        is_copy = sources != np.arange(len(sources))
        # Unselected members keep their exact values.
        hyperparams = {
            name: tuple(np.where(is_copy, columns[name], values).tolist())
            for name, values in population.hyperparams.items()
        }
        return state, population._replace(hyperparams=hyperparams), sources.tolist()


def spaces(run: RunConfig) -> dict[str, Space]:
    """Return the range of each hyperparameter that varies between members.

    Args:
        run: the typed configuration.

    Returns:
        The ranges by name.

    Raises:
        ConfigError: a hyperparameter has no range, or one with values that it may not have.
    """
    config = run.arch.population
    given = config.pbt.bounds or {}
    for name in given:
        if name not in (config.hyperparams or {}):
            raise ConfigError(f"{KEY}.pbt.bounds.{name} does not vary: give it values in {KEY}.hyperparams, or omit it")
    found = {}
    for name, values in (config.hyperparams or {}).items():
        key = f"{KEY}.pbt.bounds.{name}" if name in given else f"{KEY}.hyperparams.{name}"
        space = given.get(name, values)
        kinds = list(space) if isinstance(space, Mapping) else []
        if kinds not in (["uniform"], ["log_uniform"]):
            raise ConfigError(
                f"{key}={space} is no range to explore: set {KEY}.pbt.bounds.{name} to {{uniform: [low, high]}} or"
                " {log_uniform: [low, high]}"
            )
        is_log = kinds == ["log_uniform"]
        low, high = convert_values(run.system, name, ends(f"{key}.{kinds[0]}", space[kinds[0]], above_zero=is_log))
        found[name] = Space(low, high, is_log)
    return found


def _evolve(
    state: LearnerState,
    hyperparams: Hyperparams,
    scores: jax.Array,
    key: jax.Array,
    *,
    spaces: Mapping[str, Space],
    count: int,
    config: PBTConfig,
) -> tuple[LearnerState, Hyperparams, jax.Array]:
    pick_key, explore_key = jax.random.split(key)
    scores = jnp.where(jnp.isnan(scores) | ~state.healthy, -jnp.inf, scores)
    order = jnp.argsort(scores)
    own = jnp.arange(scores.size)
    # The best ones are not replaced, however few members there are.
    drawn = order[-count:][jax.random.randint(pick_key, (count,), 0, count)]
    sources = own.at[order[:count]].set(drawn)
    sources = jnp.where(scores[sources] > scores, sources, own)
    is_copy = sources != own
    explored = {
        name: jnp.where(
            is_copy, _explore(jax.random.fold_in(explore_key, index), column[sources], space, config), column
        )
        for index, (name, column, space) in enumerate(
            (name, hyperparams[name], spaces[name]) for name in sorted(hyperparams)
        )
    }
    # Each member keeps its episodes, its keys and its replay buffer.
    shared = jax.tree.map(lambda leaf: leaf[sources], state.shared)
    return state._replace(shared=shared, healthy=state.healthy[sources]), explored, sources


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
