"""Sequential Monte Carlo in the environments: particles that follow a policy, weighted by their advantages.

Shape letters: N environments, K particles of each, S = N K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Distribution, Model, Observation, PyTree, RolloutState, SearchOutput
from stoix_like.schema import Part, Range, between, one_of
from stoix_like.utils.jax_utils import Scalar

Networks = Callable[[Observation], tuple[Distribution, jax.Array]]
"""`(observation [S, ...]) -> (policy, value [S])`."""


@dataclass(frozen=True, kw_only=True)
class SMCConfig(Part):
    """Hyperparameters of the search."""

    num_particles: Annotated[int, between(2, 2**16)]  # particles per step of training, K
    evaluation_particles: Annotated[int, between(0, 2**16)]  # particles per step of an evaluation
    search_depth: Annotated[int, between(1, 2**12)]  # steps of each particle
    search_lambda: Annotated[float, between(0.0, 1.0)]  # decay of temporal differences in a particle's advantage
    resampling: Annotated[str, one_of("period", "ess")]  # `period`: every `resample_period` steps; `ess`
    resample_period: Annotated[int, between(1, 2**12)]  # steps between two resamplings
    resample_threshold: Annotated[float, Range(0.0, 1.0, without_low=True)]  # smallest effective share of the particles

    @property
    def resamples(self) -> bool:
        """True if particles can ever be resampled before the last step."""
        return self.resampling == "ess" or self.resample_period < self.search_depth


def draw_systematically(key: jax.Array, weight: jax.Array) -> jax.Array:
    """Draw particles in proportion to their weights, at evenly spaced points with a random offset.

    A particle of weight w takes K w places, rounded up or down.
    Source: Douc et al. 2005, "Comparison of resampling schemes for particle filtering", section 2.4.

    `weight`: `[N, K]`, of sum one.
    Returns `[N, K]` indices, ascending.
    """
    num_envs, num_particles = weight.shape
    offset = jax.random.uniform(key, (num_envs, 1))
    points = (jnp.arange(num_particles)[None] + offset) / num_particles
    ends = jnp.cumsum(weight, axis=-1)
    indices = jax.vmap(jnp.searchsorted)(ends / ends[:, -1:], points)
    return jnp.minimum(indices, num_particles - 1)


class Particles(NamedTuple):
    """The particles after some steps; `[N, K, ...]` each."""

    state: PyTree  # of the model
    observation: Observation  # of this state
    value: jax.Array  # of this state
    root: jax.Array  # the initial particle that took this one's first action
    log_weight: jax.Array  # logarithm of the weight, up to a constant
    advantage: jax.Array  # of the actions so far, in units of scaled reward
    unselected: jax.Array  # the same without the selection of resampling: what was gained in this place
    going: jax.Array  # bool, whether the episode has not ended


class SearchedStep(NamedTuple):
    """Results of a search in N states, from which the policy and the temperature learn."""

    candidates: jax.Array  # `[N, K, ...]`, the first actions
    weights: jax.Array  # `[N, K]`, their probabilities
    advantages: jax.Array  # `[N, K]`, samples of the advantages of the policy


@dataclass(frozen=True)
class ParticleSearch:
    """The search with its parts."""

    config: SMCConfig
    model: Model
    gamma: Scalar
    reward_scale: Scalar

    def __call__(
        self,
        networks: Networks,
        temperature: jax.Array,
        key: jax.Array,
        state: RolloutState,
        observation: Observation,
        num_particles: int,
        greedy: bool,
    ) -> tuple[SearchOutput, SearchedStep]:
        """Search from N states of the environments. `observation`: `[N, ...]`, the input of the networks."""
        choose_key, key = jax.random.split(key)
        start = self._start(networks, state, observation, num_particles)
        steps = jnp.arange(1, self.config.search_depth + 1), jax.random.split(key, self.config.search_depth)

        def step(particles: Particles, inputs: tuple[jax.Array, jax.Array]) -> tuple[Particles, jax.Array]:
            return self._step(networks, temperature, particles, *inputs)

        end, actions = jax.lax.scan(step, start, steps)
        weight = jax.nn.softmax(end.log_weight)
        weights, counts = _by_root(end, weight), _by_root(end, jnp.ones_like(weight))
        found = SearchedStep(_split(actions[0], num_particles), weights, end.unselected)
        value = start.value[:, 0]
        share = weight + 1e-30  # where all weights of a root round to 0, its particles count alike
        advantages = _by_root(end, end.advantage * share) / _by_root(end, share)
        output = SearchOutput(
            action=_choose(found, choose_key, greedy),
            candidates=found.candidates,
            prior=jnp.full_like(weights, 1.0 / num_particles),
            weights=weights,
            visits=counts.astype(jnp.int32),
            action_values=jnp.where(counts > 0, value[:, None] + advantages, jnp.nan),
            prior_value=value,
            value=value + jnp.sum(weight * end.advantage, axis=-1),
        )
        return output, found

    def _start(
        self, networks: Networks, state: RolloutState, observation: Observation, num_particles: int
    ) -> Particles:
        _, value = networks(observation)
        shape = *value.shape, num_particles

        def repeat(x: jax.Array) -> jax.Array:
            return jnp.broadcast_to(x[:, None], (*shape, *x.shape[1:]))

        model_state = self.model.state_of(state.env_state)
        model_state, observation, value = jax.tree.map(repeat, (model_state, observation, value))
        root, nothing = jnp.broadcast_to(jnp.arange(num_particles)[None], shape), jnp.zeros(shape)
        return Particles(model_state, observation, value, root, nothing, nothing, nothing, jnp.ones(shape, bool))

    def _step(
        self, networks: Networks, temperature: jax.Array, particles: Particles, steps: jax.Array, key: jax.Array
    ) -> tuple[Particles, jax.Array]:
        """Let the particles act once, and resample them; particles keep their weights after the end of their episodes.

        The temporal difference of a truncated step bootstraps with the value of its true successor, a terminated
        step has no bootstrap value.
        """
        action_key, model_key, key = jax.random.split(key, 3)
        num_particles = particles.going.shape[1]
        pi, _ = networks(_join(particles.observation))
        action = pi.sample(seed=action_key)
        keys = jax.random.split(model_key, len(action))
        state, timestep = self.model.step(keys, _join(particles.state), action)
        _, next_value = networks(timestep.observation)
        reward, terminated, truncated, next_value = _split(
            (timestep.reward, timestep.terminated, timestep.truncated, next_value), num_particles
        )
        state, observation = _split((state, timestep.observation), num_particles)
        bootstrap = jnp.where(terminated, 0.0, next_value)
        error = self.reward_scale * reward + self.gamma * bootstrap - particles.value
        decay = (self.gamma * self.config.search_lambda) ** (steps - 1)
        gain = jnp.where(particles.going, decay * error, 0.0)
        moved = Particles(
            state,
            observation,
            next_value,
            particles.root,
            particles.log_weight + gain / temperature,
            particles.advantage + gain,
            particles.unselected + gain,
            particles.going & ~(terminated | truncated),
        )
        return self._resample(moved, steps, key) if self.config.resamples else moved, action

    def _resample(self, particles: Particles, steps: jax.Array, key: jax.Array) -> Particles:
        """Resample the particles of those environments where it is due; the last weights are those to learn from.

        Survivors are alike: the dual loss of the temperature would see a small divergence and lower the temperature.
        """
        due = self._is_due(steps, particles.log_weight) & (steps < self.config.search_depth)
        drawn = draw_systematically(key, jax.nn.softmax(particles.log_weight))
        drawn = jnp.where(due[:, None], drawn, jnp.arange(drawn.shape[1])[None])
        kept = jax.tree.map(lambda x: jax.vmap(lambda x, indices: x[indices])(x, drawn), particles)
        return kept._replace(log_weight=jnp.where(due[:, None], 0.0, kept.log_weight), unselected=particles.unselected)

    def _is_due(self, steps: jax.Array, log_weight: jax.Array) -> jax.Array:
        """Return `[N]` bool, whether to resample after a number of steps."""
        if self.config.resampling == "period":
            return jnp.broadcast_to(steps % self.config.resample_period == 0, log_weight.shape[:1])
        size = 1.0 / jnp.sum(jnp.square(jax.nn.softmax(log_weight)), axis=-1)
        return size < self.config.resample_threshold * log_weight.shape[-1]


def _join(tree: PyTree) -> PyTree:
    """Return `[N, K, ...]` as `[S, ...]`."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def _split(tree: PyTree, num_particles: int) -> PyTree:
    """Return `[S, ...]` as `[N, K, ...]`."""
    return jax.tree.map(lambda x: x.reshape(-1, num_particles, *x.shape[1:]), tree)


def _by_root(particles: Particles, x: jax.Array) -> jax.Array:
    """Sum an array `[N, K]` of particles over those with the same root: `[N, K]` of roots."""
    num_particles = x.shape[1]
    is_root = particles.root[:, :, None] == jnp.arange(num_particles)[None, None]
    return jnp.sum(jnp.where(is_root, x[:, :, None], 0.0), axis=1)


def _choose(found: SearchedStep, key: jax.Array, greedy: bool) -> jax.Array:
    """Choose an action of each environment by the weights, or the one of the largest weight."""
    if greedy:
        num_envs, num_particles = found.weights.shape
        equal = found.candidates[:, :, None] == found.candidates[:, None]
        equal = equal.reshape(num_envs, num_particles, num_particles, -1).all(-1)
        index = jnp.argmax(jnp.sum(jnp.where(equal, found.weights[:, None], 0.0), axis=-1), axis=-1)
    else:
        index = jax.random.categorical(key, jnp.log(found.weights))
    return jax.vmap(lambda actions, i: actions[i])(found.candidates, index)
