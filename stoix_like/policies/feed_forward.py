"""Policies without a recurrent state, as functions from observations to actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import element_names
from stoix_like.policies.exportable import as_result
from stoix_like.policies.policy import Policy


class FeedForwardPolicy(Policy):
    """A trained policy whose actions depend only on the current observation: `action = policy(observation)`."""

    def __call__(self, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """Choose actions.

        Args:
            observation: `[..., *observation_space.shape]`, with any batch axes; an array, or a dictionary of arrays
                where the space is a `Dict`, or an `Observation` if the environment has an action mask or counts steps.
            key: a typed PRNG key; optional for a greedy policy.

        Returns:
            The actions, `[..., *action_space.shape]`.

        Raises:
            ValueError: if the observation has a wrong shape, dtype or field, or a sampling policy gets no key.
        """
        return self.apply(self.params, observation, key)

    def apply(self, params: Any, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """Choose actions with other parameters, as a pure function; statistics remain those of the policy.

        It can be transformed by jax: jitted, differentiated, and mapped over parameters.

        Args:
            params: a tree with the structure of `params`.
            observation: see `__call__`.
            key: see `__call__`.

        Returns:
            The actions, `[..., *action_space.shape]`.

        Raises:
            ValueError: see `__call__`.
        """
        batch, leading = self._batched(observation)
        action = self._compiled(self._with_params(params), batch, self._key_of(key))
        return jax.tree.map(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), action)

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool | None = None
    ) -> tuple[np.ndarray, None]:
        """Choose actions in a loop over environments on the host, as `predict` of stable-baselines3 does.

        A sampling policy draws from a stream of its own, the same after every load; pass keys to `__call__` for others.

        Args:
            observation: `[..., *shape]`, as a suite on the host returns it: an image of an Atari game has its frames
                first, an integer of gymnasium is not one-hot, and that of a game is by agent; the run's wrappers apply,
                as far as they are functions of one observation. Of other suites, and in other forms, as in `__call__`.
                The policy of one agent returns only its action.
            state: None, since the policy has no recurrent state; as is `episode_start`.
            episode_start: ignored.
            deterministic: must agree with `greedy`; by default, it does.

        Returns:
            The actions `[..., *action_space.shape]` as a numpy array, or a dictionary or tuple of them, and None.

        Raises:
            ValueError: see `__call__`; or `deterministic` disagrees with the policy, or the environment's dtype does
                not hold an observation.
        """
        key = self._next_key(deterministic)
        return jax.tree.map(np.asarray, self(self._view_of(observation), key)), None

    @property
    def argument_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """See `Exportable.argument_shapes`: `input_shapes`."""
        return self.input_shapes

    @property
    def result_names(self) -> list[str]:
        """See `Exportable.result_names`: `action`, or the names of its parts."""
        return element_names(self.action_space)

    def act_on(self, arrays: Sequence[jax.Array], key: jax.Array) -> Any:
        """See `Exportable.act_on`."""
        return as_result(self._act(self._shared, self.observation_of(arrays), key))

    def mode_on(self, arrays: Sequence[jax.Array]) -> Any:
        """See `Exportable.mode_on`; it is possible where the system implements `inspect`."""
        if self._system.inspect is None:
            return super().mode_on(arrays)
        policy, _ = self._system.inspect(self._shared, self.observation_of(arrays))
        return as_result(self._env.native_action(policy.mode()))

    def _act(self, shared: Any, observation: Observation, key: jax.Array) -> jax.Array:
        carry = self._system.init_carry(jax.tree.leaves(observation)[0].shape[0])
        return self._act_from(shared, observation, carry, None, key)[0]
