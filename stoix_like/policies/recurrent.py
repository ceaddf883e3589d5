"""Policies with a recurrent state, which the caller keeps between steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import entries
from stoix_like.policies.policy import Policy


class RecurrentPolicy(Policy):
    """A trained policy with a recurrent state, which the caller keeps between steps.

        state = policy.initial_state(batch)
        action, state = policy(observation, state, is_first)

    Everything else is as in `Policy`.
    """

    @functools.cached_property
    def _state_like(self) -> Any:
        return jax.eval_shape(lambda: self._system.init_carry(1))

    def initial_state(self, batch: int | Sequence[int] = ()) -> Any:
        """Return the state at the start of an episode."""
        leading = (batch,) if isinstance(batch, int | np.integer) else tuple(batch)
        state = self._system.init_carry(math.prod(leading))
        return jax.tree.map(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), state)

    def __call__(
        self, observation: Any, state: Any, is_first: Any = None, key: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """Choose actions.

        `observation`: `[..., *observation_space.shape]`.
        Returns the actions, `[..., *action_space.shape]`, and the state for the next call.
        """
        return self.apply(self.params, observation, state, is_first, key)

    def apply(
        self, params: Any, observation: Any, state: Any, is_first: Any = None, key: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """Choose actions with other parameters, as a pure function; see `FeedForwardPolicy.apply` and `__call__`."""
        batch, leading = self._batched(observation)
        flags = jnp.zeros(leading, bool) if is_first is None else jnp.asarray(is_first, bool)
        if flags.shape != leading:
            raise ValueError(f"is_first has shape {flags.shape}: this call takes {leading}, as the observation")
        state, key = self._flat_state(state, leading), self._key_of(key)
        action, state = self._compiled(self._with_params(params), batch, state, flags.reshape(-1), key)
        return jax.tree.map(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), (action, state))

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool | None = None
    ) -> tuple[np.ndarray, Any]:
        """Choose actions in a loop over environments on the host, as `predict` of sb3-contrib's RecurrentPPO does.

        A sampling policy draws from a stream of its own, the same after every load; pass keys to `__call__` for others.

        `state`: from the last call; None before the first one.
        `episode_start`: `[...]` bool, True where an observation is the first of its episode.
        Returns the actions `[..., *action_space.shape]` as a numpy array, and the state for the next call.
        """
        key, view = self._next_key(deterministic), self._view_of(observation)
        if state is None:
            leading = self._batched(view)[1]
            state = self.initial_state(leading)
            episode_start = np.ones(leading, bool) if episode_start is None else episode_start
        action, state = self(view, state, episode_start, key)
        return jax.tree.map(np.asarray, action), state

    @property
    def argument_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """`input_shapes`, the arrays of the state by number, and `is_first`."""
        leaves = jax.tree.leaves(self._state_like)
        states = {f"state.{i}": jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for i, leaf in enumerate(leaves)}
        return self.input_shapes | states | {"is_first": jax.ShapeDtypeStruct((), jnp.dtype(bool))}

    @property
    def result_names(self) -> list[str]:
        """`action` or its parts, and the arrays of the next state by number."""
        num_states = len(jax.tree.leaves(self._state_like))
        return [*entries(self.action_space, "action"), *(f"next_state.{i}" for i in range(num_states))]

    def act_on(self, arrays: Sequence[jax.Array], key: jax.Array) -> Any:
        """Choose actions from plain arrays, see `Exportable.act_on`; also returns the arrays of the next state."""
        split = len(self.input_shapes)
        observation, states, is_first = self.observation_of(arrays[:split]), arrays[split:-1], arrays[-1]
        state = jax.tree.unflatten(jax.tree.structure(self._state_like), states)
        action, state = self._act(self.shared, observation, state, is_first, key)
        return *jax.tree.leaves(action), *jax.tree.leaves(state)

    def random_arguments(self, key: jax.Array, batch: int) -> list[jax.Array]:
        leaves = jax.tree.leaves(self.initial_state(batch))
        own_key, first_key, *state_keys = jax.random.split(key, 2 + len(leaves))
        states = map(_random_like, state_keys, leaves)
        return [*super().random_arguments(own_key, batch), *states, jax.random.bernoulli(first_key, 0.3, (batch,))]

    def _act(
        self, shared: Any, observation: Observation, carry: Any, is_first: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any]:
        return self._act_from(shared, observation, carry, is_first, key)

    def _flat_state(self, state: Any, leading: tuple[int, ...]) -> Any:
        """Flatten the batch axes of a state to one."""
        wanted = jax.tree.map(lambda leaf: (*leading, *leaf.shape[1:]), self._state_like)
        found = jax.tree.map(lambda leaf: tuple(jnp.shape(leaf)), state)
        if found != wanted:
            raise ValueError(
                f"state has the shapes {found}: pass what policy.initial_state({leading}) returns, {wanted}"
            )
        return jax.tree.map(
            lambda leaf, like: jnp.asarray(leaf, like.dtype).reshape(-1, *like.shape[1:]), state, self._state_like
        )


def _random_like(key: jax.Array, leaf: jax.Array) -> jax.Array:
    """Draw numbers, or of integers, such as the last action, and of flags, 0 and 1."""
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return leaf + jax.random.normal(key, leaf.shape, leaf.dtype)
    return jax.random.bernoulli(key, 0.5, leaf.shape).astype(leaf.dtype)
