"""The state of a run on its devices, and the compiled programs that change it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.types import Given, LearnerState
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.interpreter import no_collection
from stoix_like.run.host.saved_state import to_items
from stoix_like.run.population.members import Population
from stoix_like.run.programs.compile import compile_run
from stoix_like.run.programs.functions import traced_hyperparams, with_new_starts
from stoix_like.run.records.clock import Clock
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.utils.jax_utils import replace_named

# One program: jax compiles an operation outside of one for every shape, in every process.
copied = jax.jit(partial(jax.tree.map, jnp.copy))


class Learner:
    """The members of a run: their state, their hyperparameters, and the programs."""

    def __init__(self, setup: RunSetup, clock: Clock) -> None:
        self._setup, self._clock = setup, clock
        with clock("compilation"), no_collection():
            self.programs = compile_run(setup)
        self._state: LearnerState | None = None
        self._keys = self.programs.keys
        self.population, self.hyperparams = setup.population, traced_hyperparams(setup.population)

    @property
    def has_started(self) -> bool:
        """True if there is a state."""
        return self._state is not None

    def start(self, given: Given | None = None, warm_up: bool = True) -> LearnerState:
        """Return the state; the first call initialises it."""
        if self._state is None:
            differs = self._setup.config.system.warmup_steps and (given or not warm_up)
            with self._clock("initialisation"):
                init = self.programs.init_given(given, warm_up) if differs else self.programs.init
                state: LearnerState = init(self.hyperparams, self._keys.agent, self._keys.shards)
                jax.block_until_ready(state)
                self._check(self._setup.env)
            self._state = state
        return self._state

    def start_from(self, given: Given) -> None:
        """Initialise the state, with leaves of the shared state from elsewhere."""
        state = self.start(given)
        self._state = state._replace(shared=replace_named(state.shared, given))

    @property
    def state(self) -> LearnerState:
        """The state after the last update."""
        return self.start()

    @state.setter
    def state(self, state: LearnerState) -> None:
        self._state = state

    def take_new_starts(self, updates: int) -> None:
        """Let `start` draw other start states than before the first update."""
        self._keys = with_new_starts(self._keys, updates)

    def set_population(self, population: Population) -> None:
        """Change the hyperparameters of members."""
        self.population, self.hyperparams = population, traced_hyperparams(population)

    def train(self, num_updates: int, new_interval: bool) -> Any:
        """Start to train, which donates the state, and return the metrics of the interval so far."""
        sizes = np.int32(num_updates), np.bool_(new_interval)
        self._state, interval = self.programs.train(self.start(), self.hyperparams, *sizes)
        return interval

    def wait(self, interval: Any) -> Any:
        """Wait for the metrics of `train`."""
        interval = self._setup.processes.fetch(interval)
        self._check(self._setup.env)
        return interval

    def play(self, number: int, shared: Any = None, hyperparams: Mapping[str, Any] | None = None) -> Any:
        """Evaluate."""
        shared = self.state.shared if shared is None else shared
        hyperparams = self.hyperparams if hyperparams is None else hyperparams
        with self._clock("evaluation"):
            episodes = self.programs.evaluate(shared, dict(hyperparams), self._keys.evaluation, np.uint32(number))
            episodes = self._setup.processes.fetch(episodes)
            self._check(self._setup.eval_env)
        return episodes

    def copy_without_replay(self) -> LearnerState:
        """Copy what the next call donates, but for a replay buffer, of which there might not be room for two."""
        shards = self.state.shards
        if self._setup.config.system.has_replay:
            shards = shards._replace(local=())
        return copied(self.state._replace(shards=shards))

    def targets(self) -> dict[str, Any]:
        """Return the shapes and layouts of the items of a checkpoint, also of those that the next one leaves out."""
        state = self.programs.state
        return to_items(state, state.shared, True)

    def items(self) -> dict[str, Any]:
        """Return the items of a checkpoint, without the best parameters."""
        config = self._setup.config
        # Other than a replay buffer, the local state is small.
        return to_items(self.state, None, config.checkpoint.replay or not config.system.has_replay)

    def _check(self, env: VectorEnvironment) -> None:
        """Raise the failure of an environment on the host, of any process."""
        if env.on_host:
            self._setup.processes.together(env.check)
