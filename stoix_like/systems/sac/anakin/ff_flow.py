"""Soft actor-critic with a flow as its policy: SDAC of Ma et al. 2025, arXiv:2502.00361, by flow matching.

The policy is the Boltzmann distribution `p(a) ~ exp(Q(s, a) / alpha)` over the range of actions, with as many modes as
Q has. At time t, its flow stands at `x = (1 - t) noise + t a`; given x, actions are distributed as p times a normal
distribution around `x / t` with the deviation `(1 - t) / t`. So actions drawn from the latter, within the range, and
weighted by `exp(Q / alpha)` tell the velocity at x, wherever x came from: no sample of p is needed (reweighted score
matching; the paper has a diffusion, and its authors clip what they draw). As in their code, values are not soft.
Unlike there, the temperature is learned from the entropy of the flow, exploration is the policy without further noise
or selection, and targets take one sample, not the best of several.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Acted, Distribution, Loss, Observation, PyTree, RolloutState, SystemSpec
from stoix_like.errors import ConfigError
from stoix_like.networks.base import FeedForwardCritic
from stoix_like.networks.distributions import Deterministic, Independent
from stoix_like.networks.requirements import ACTION_VECTOR, VALUE, policy_and_critics
from stoix_like.schema import INT32_MAX, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.ddpg.ddpg_types import ActionRange, action_range
from stoix_like.systems.off_policy.actor_critic import OffPolicyShared
from stoix_like.systems.parts.chunks import ChunkedReplay
from stoix_like.systems.parts.exploration import persist_noise_keys
from stoix_like.systems.parts.flows import Flow, nearest_neighbour_entropy
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.systems.sac.anakin import ff_sac
from stoix_like.systems.sac.sac_types import SACParams
from stoix_like.utils.jax_utils import append_dims
from stoix_like.utils.replay import Batch

# Times at which the flow is learned: at the ends, the distribution of actions is degenerate.
_FIRST, _LAST = 1e-3, 1.0 - 1e-3
_MIN_TEMPERATURE = 1e-8  # where `ent_coef` is 0, the policy only has the actions of the largest value
# States of a batch, and actions of each, that the entropy is estimated from.
_ENTROPY_STATES, _ENTROPY_ACTIONS = 16, 32


@dataclass(frozen=True, kw_only=True)
class Config(ff_sac.BaseConfig):
    """Hyperparameters of SAC with a flow."""

    network_heads: ClassVar = policy_and_critics(ACTION_VECTOR, VALUE)
    replay: ChunkedReplay
    target: SoftTarget
    flow_steps: Annotated[int, between(1, INT32_MAX)]  # Euler steps of the flow
    num_samples: Annotated[int, between(1, INT32_MAX)]  # weighted actions per velocity
    num_candidates: Annotated[int, between(1, INT32_MAX)]  # actions that a greedy evaluation takes the likeliest from


class FlowSAC(ff_sac.SAC[Config]):
    """SAC with a flow; its methods see actions in units of half their range where they say so."""

    @property
    def flow(self) -> Flow:
        """The policy."""
        return Flow(self.actor, self.config.flow_steps)

    @property
    def actions(self) -> ActionRange:
        """The range of actions."""
        return action_range(self.action_space)

    def init_actor(self, key: jax.Array, observation: Observation, action: jax.Array) -> PyTree:
        return self.flow.init(key, observation, action)

    def pi(self, params: SACParams, observation: Observation) -> Distribution:
        """Return the mode of the policy: of several actions, always from the same noise, the one nearest to others."""
        number, size = self.config.num_candidates, jax.tree.leaves(observation)[0].shape[0]
        shape = self.action_space.shape
        noise = jax.random.normal(jax.random.key(0), (number, 1, *shape))
        noise = jnp.broadcast_to(noise, (number, size, *shape))
        actions = jax.vmap(lambda noise: self.flow.follow(params.actor_params, observation, noise))(noise)
        squares = jnp.sum(jnp.square(actions[:, None] - actions[None]).reshape(number, number, size, -1), axis=-1)
        # The distance to the nearest quarter, the action itself included: small where the density is large.
        distances = jnp.sort(squares, axis=1)[:, number // 4]
        best = jnp.argmin(distances, axis=0)
        action = jax.vmap(lambda actions, best: actions[best], in_axes=(1, 0))(actions, best)
        return Independent(Deterministic(self.actions.from_unit(action)), len(shape))

    def act(self, shared: OffPolicyShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Draw an action of each environment, from noise that persists if configured; or take the mode."""
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        if greedy:
            return state.carry, self.pi(shared.params, observation).mode(), ()
        keys = persist_noise_keys(state.carry, state.timestep, key, self.config.noise_correlation)
        noise = jax.vmap(lambda key: jax.random.normal(key, self.action_space.shape))(keys)
        return keys, self.actions.from_unit(self.flow.follow(shared.params.actor_params, observation, noise)), ()

    def evaluate_policy(
        self, params: SACParams, q_params: PyTree, observation: Observation, key: jax.Array
    ) -> tuple[PyTree, jax.Array]:
        """Compute the values `[B, C]` of one drawn action per observation, and no bonus for its entropy `[B]`."""
        noise = jax.random.normal(key, (len(jax.tree.leaves(observation)[0]), *self.action_space.shape))
        action = self.actions.from_unit(self.flow.follow(params.actor_params, observation, noise))
        return self.q_values(q_params, observation, action, key), jnp.zeros(len(action))

    def actor_loss(self, actor_params: PyTree, params: SACParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute squared errors to the mean velocity of weighted actions."""
        keys, observation, shape = jax.random.split(key, 5), batch.observation, batch.action.shape
        action = self.flow.follow(params.actor_params, observation, jax.random.normal(keys[0], shape))
        times = jax.random.uniform(keys[1], shape[:1], None, _FIRST, _LAST)
        time = append_dims(times, len(shape))
        place = (1.0 - time) * jax.random.normal(keys[2], shape) + time * action
        drawn = self.draw_origins(keys[3], place, time)
        values = jax.vmap(lambda action: self.value(params, observation, self.actions.from_unit(action)))(drawn)
        scores = values / jnp.maximum(self.temperature(params), _MIN_TEMPERATURE)
        weights = append_dims(jax.nn.softmax(scores, axis=0), drawn.ndim)
        velocity = (jnp.sum(weights * drawn, axis=0) - place) / (1.0 - time)
        errors = self.flow.velocity(actor_params, observation, place, times) - jax.lax.stop_gradient(velocity)
        loss = jnp.mean(append_dims(batch.weight, errors.ndim) * jnp.square(errors))
        return loss, {"actor_loss": loss, "entropy": self.entropy(params.actor_params, observation, keys[4])}

    def draw_origins(self, key: jax.Array, place: jax.Array, time: jax.Array) -> jax.Array:
        """Draw actions `[K, B, ...]` that lead through places `[B, ...]`, in units of half their range."""
        centre, deviation = place / time, (1.0 - time) / time
        low, high = (-1.0 - centre) / deviation, (1.0 - centre) / deviation
        normal = jax.random.truncated_normal(key, low[None], high[None], (self.config.num_samples, *place.shape))
        return jnp.clip(centre[None] + deviation[None] * normal, -1.0, 1.0)

    def entropy(self, actor_params: PyTree, observation: Observation, key: jax.Array) -> jax.Array:
        """Estimate the mean entropy of the policy in nats, from several actions in a few states."""
        few = jax.tree.map(lambda x: x[:_ENTROPY_STATES], observation)
        size = len(jax.tree.leaves(few)[0])
        noise = jax.random.normal(key, (_ENTROPY_ACTIONS, size, *self.action_space.shape))
        # Before they are clipped: samples that are equal at a bound would tell of no entropy at all.
        actions = jax.vmap(lambda noise: self.flow.end(actor_params, few, noise))(noise)
        entropies = nearest_neighbour_entropy(actions.reshape(_ENTROPY_ACTIONS, size, -1))
        return jnp.mean(entropies) + jnp.sum(jnp.log(self.actions.unit))


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build SAC with a flow."""
    space: Any = spec.action_space
    if not space.bounded:
        raise ConfigError("system=sac/ff_flow draws actions over all their range: use system=sac/ff_sac, or set bounds")
    actor = spec.networks.actor_network
    network: Any = FeedForwardCritic(actor.action_head, actor.pre_torso, actor.input_layer)
    return replace(ff_sac.make_variant(config, spec, FlowSAC), actor=network)


build, run_experiment, hydra_entry_point = entry_points("sac/ff_flow", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
