"""Mirrored copies of the steps of a rollout, for robots and tasks with symmetries."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree, Transition
from stoix_like.envs.own import resolve
from stoix_like.errors import ConfigError
from stoix_like.systems.actor_critic import OnPolicyTransition
from stoix_like.utils.jax_utils import merge_leading_dims

Symmetry = Callable[[PyTree, PyTree], list[tuple[PyTree, PyTree]]]
"""A function `(agent_view, action) -> [(mirrored view, mirrored action), ...]`, one pair per symmetry."""


def no_symmetry(view: PyTree, action: PyTree) -> list[tuple[PyTree, PyTree]]:
    """Return no copies."""
    del view, action
    return []


def make_symmetry(path: str | None) -> Symmetry:
    """Import the function that mirrors steps.

    A policy that is symmetric takes the mirrored action where the original step has the action. So PPO learns from the
    copies with the log-probabilities, advantages and value targets of the originals.

    Source: Mittal et al. 2024, "Symmetry considerations for learning task symmetric robot policies", section III-C.

    Args:
        path: import path of a function `(agent_view, action) -> [(view, action), ...]` of arrays with any leading axes;
            views are those of the environment, before normalisation. None for no copies.

    Returns:
        The function, which checks the shapes.

    Raises:
        ConfigError: the function cannot be imported or called.
    """
    if path is None:
        return no_symmetry
    function = resolve(path, "system.symmetry")
    if not callable(function):
        raise ConfigError(f"system.symmetry={path} is not a function of an observation and an action: name one")

    def mirror(view: PyTree, action: PyTree) -> list[tuple[PyTree, PyTree]]:
        pairs = [tuple(pair) for pair in function(view, action)]
        wanted = jax.tree.map(jnp.shape, (view, action))
        for pair in pairs:
            found = jax.tree.map(jnp.shape, pair)
            if found != wanted:
                raise ConfigError(f"system.symmetry={path} returns shapes {found}, not {wanted}: keep the shapes")
        return pairs

    return mirror


def append_mirrored(
    symmetry: Symmetry,
    steps: Transition,
    batch: OnPolicyTransition,
    normalize: Callable[[Observation], Observation],
) -> OnPolicyTransition:
    """Append the mirrored copies of steps, with the log-probabilities, advantages and targets of the originals.

    Args:
        symmetry: the function, from `make_symmetry`.
        steps: `[T, N]`, as the environments returned them.
        batch: `[B]`, the same steps, B = T N.
        normalize: normalises observations.

    Returns:
        `[B * (1 + copies)]` steps.

    Raises:
        ConfigError: observations have action masks.
    """
    batches = [batch]
    for view, action in symmetry(steps.observation.agent_view, steps.action):
        if steps.observation.action_mask is not None:
            raise ConfigError("system.symmetry: action masks have no mirrored copies: use null")
        copies = normalize(steps.observation._replace(agent_view=view)), action
        obs, action = jax.tree.map(lambda x: merge_leading_dims(x, 2), copies)
        batches.append(batch._replace(obs=obs, action=action))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *batches) if len(batches) > 1 else batch
