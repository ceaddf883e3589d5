"""Chunks of actions: the policy proposes several actions at once, which are executed without looking (Q-chunking).

    Q(s_t, a_t … a_{t+h-1}) = sum_{k < h} gamma^k r_{t+k} + gamma^h Q(s_{t+h}, chunk of the policy)

Source: Li, Zhou & Levine 2025, arXiv:2507.07969, equation 6. To an algorithm, a chunk is one action `[h, ...]` of a
larger space, and a sample of the replay buffer a window of h steps with the return of that window; environments and
buffers hold single actions. The policy replans when a chunk or an episode ends.

In a window that ends early, the actions after the end were not executed, and its return does not depend on them: they
stay as in the next stored steps. So critics learn that they have no effect, and only of actions that are usual.
The authors give such windows no weight, and states near a time limit then have no value. A truncated window bootstraps
from its true successor by `gamma^steps`, as if the policy had replanned there. Where episodes terminate at random,
chunks that survive are known by their last actions: their values are conditional on survival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Acted, Distribution, NetworkOutputs, Observation, PyTree, RolloutState, System
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.schema import between, flat_hints, get_value
from stoix_like.utils.jax_utils import select_members
from stoix_like.utils.replay import ReplayConfig, Step

# What a chunk larger than 1 refuses: key, its value without effect, and why.
_REFUSED = (
    ("n_step", 1, "chunks learn from as many rewards as they have actions"),
    ("noise_correlation", 0.0, "noise is new in every chunk"),
    ("max_exploration_noise", None, "all environments have the same noise"),
    ("critic_bc_coef", None, "data are read for one chunk, not for the next one"),
    ("symmetry", None, "it mirrors one action, not chunks"),
)


@dataclass(frozen=True, kw_only=True)
class ChunkedReplay(ReplayConfig):
    """Hyperparameters of a replay buffer of a system that may learn chunks of actions."""

    chunk: Annotated[int, between(1, 1000)] = 1  # actions that the policy proposes at once; 1: one in every step

    @property
    def return_steps(self) -> int:
        return max(self.n_step, self.chunk)

    @property
    def window_keys(self) -> str:
        return super().window_keys if self.chunk == 1 else f"system.chunk={self.chunk}"

    def policy_space(self, space: Any) -> Any:
        return space if self.chunk == 1 else Box(space.low, space.high, (self.chunk, *space.shape), space.dtype)

    def adapt(self, system: System, space: Any) -> System:
        return system if self.chunk == 1 else _with_chunks(system, self.chunk, space)

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        super().check(config, num_envs, num_shards)
        keys = flat_hints(type(config)) if self.chunk > 1 else {}
        for key, neutral, reason in _REFUSED:
            if key in keys and (value := get_value(config, key)) != neutral:
                use = "null" if neutral is None else neutral
                raise ConfigError(f"system.{key}={value} does not fit system.chunk={self.chunk}, {reason}: use {use}")

    def joined(self, windows: Step, axis: int) -> Step:
        """Join the actions of windows to one each, on an axis of one.

        `windows`: `[..., W, ...]`, with W on `axis` and B on the other one of the first two.
        """
        if self.chunk == 1:
            return windows
        action = jnp.moveaxis(windows.action, axis, 1)[:, : self.chunk]
        return windows._replace(action=jnp.expand_dims(action, axis))


class ChunkCarry(NamedTuple):
    """The state of acting by chunks."""

    actions: jax.Array  # `[N, h, ...]`, the next action first
    left: jax.Array  # `[N]` int32, how many of them have not been executed


class FirstAction(NamedTuple):
    """The distribution of the first action of a chunk."""

    chunk: Distribution

    def mode(self) -> jax.Array:
        """Return the first actions of the modes `[*batch, ...]`."""
        return jnp.take(self.chunk.mode(), 0, axis=len(self.chunk.batch_shape))

    def sample(self, *, seed: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw actions `[*sample_shape, *batch, ...]`."""
        chunks = self.chunk.sample(seed=seed, sample_shape=sample_shape)
        return jnp.take(chunks, 0, axis=len(sample_shape) + len(self.chunk.batch_shape))


def _with_chunks(system: System, length: int, space: Any) -> System:
    """Let a system that chooses chunks of a length execute them, one action per step. `space`: of chunks."""

    def acting(act: Any) -> Any:
        def step(shared: PyTree, state: RolloutState, key: jax.Array) -> Acted:
            actions, left = state.carry
            _, proposed, extras = act(shared, state._replace(carry=system.init_carry(left.shape[0])), key)
            replans = state.timestep.starts_episode | (left == 0)
            actions = select_members(proposed, actions, replans)
            left = jnp.where(replans, length, left) - 1
            return ChunkCarry(jnp.roll(actions, -1, axis=1), left), actions[:, 0], extras

        return step

    def init_carry(num_envs: int) -> ChunkCarry:
        return ChunkCarry(jnp.zeros((num_envs, *space.shape), space.dtype), jnp.zeros((num_envs,), jnp.int32))

    def inspect(shared: PyTree, observation: Observation) -> NetworkOutputs:
        assert system.inspect is not None
        policy, value = system.inspect(shared, observation)
        return NetworkOutputs(FirstAction(policy), value)

    acts = {"act": acting(system.act), "eval_act": acting(system.eval_act)}
    return system._replace(**acts, init_carry=init_carry, inspect=inspect)
