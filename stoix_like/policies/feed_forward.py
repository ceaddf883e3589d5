"""Policies without a recurrent state, as functions from observations to actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import entries
from stoix_like.policies.exportable import as_result
from stoix_like.policies.policy import Policy


class FeedForwardPolicy(Policy):
    """A trained policy that depends only on the current observation: `action = policy(observation)`."""

    def __call__(self, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """Choose actions.

        `observation`: `[..., *observation_space.shape]`, with any batch axes.
        Returns the actions, `[..., *action_space.shape]`.
        """
        return self.apply(self.params, observation, key)

    def apply(self, params: Any, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """Choose actions with other parameters, as a pure function; statistics stay the policy's own.

        It can be transformed by jax: jitted, differentiated, and mapped over parameters.

        Returns the actions, `[..., *action_space.shape]`.
        """
        batch, leading = self._batched(observation)
        action = self._compiled(self._with_params(params), batch, self._key_of(key))
        return jax.tree.map(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), action)

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool | None = None
    ) -> tuple[np.ndarray, None]:
        """Choose actions in a loop over environments on the host, as `predict` of stable-baselines3 does.

        A sampling policy draws from a stream of its own, the same after every load; pass keys to `__call__` for others.

        `observation`: `[..., *shape]`, as a suite on the host returns it.
        `state`: None, since the policy has no recurrent state; as is `episode_start`.
        """
        key = self._next_key(deterministic)
        return jax.tree.map(np.asarray, self(self._view_of(observation), key)), None

    @property
    def argument_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """`input_shapes`."""
        return self.input_shapes

    @property
    def result_names(self) -> list[str]:
        """`action`, or the names of its parts."""
        return list(entries(self.action_space, "action"))

    def act_on(self, arrays: Sequence[jax.Array], key: jax.Array) -> Any:
        return as_result(self._act(self.shared, self.observation_of(arrays), key))

    def mode_on(self, arrays: Sequence[jax.Array]) -> Any:
        """It is possible where the system implements `inspect`."""
        if self._system.inspect is None:
            return super().mode_on(arrays)
        policy, _ = self._system.inspect(self.shared, self.observation_of(arrays))
        return as_result(self._env.native_action(policy.mode()))

    def _act(self, shared: Any, observation: Observation, key: jax.Array) -> jax.Array:
        carry = self._system.init_carry(jax.tree.leaves(observation)[0].shape[0])
        return self._act_from(shared, observation, carry, None, key)[0]
