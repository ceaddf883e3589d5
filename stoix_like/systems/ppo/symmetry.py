"""Mirrored copies of the steps of a rollout, for robots and tasks with symmetries."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree, Transition
from stoix_like.envs.spaces import ObservationSpace, Space
from stoix_like.errors import ConfigError
from stoix_like.systems.actor_critic import OnPolicyTransition
from stoix_like.user_code import guarded, import_object
from stoix_like.utils.jax_utils import merge_leading_dims

Symmetry = Callable[[PyTree, PyTree], list[tuple[PyTree, PyTree]]]
"""A function `(agent_view, action) -> [(mirrored view, mirrored action), ...]`, one pair per symmetry."""
_KEY, _FORM = "system.symmetry", "(agent_view, action) -> [(view, action), ...] that keeps shapes"


def no_symmetry(view: PyTree, action: PyTree) -> list[tuple[PyTree, PyTree]]:
    """Return no copies."""
    del view, action
    return []


def make_symmetry(path: str | None, observation_space: ObservationSpace, action_space: Space) -> Symmetry:
    """Import the function that mirrors steps.

    A policy that is symmetric takes the mirrored action where the original step has the action. So PPO learns from the
    copies with the log-probabilities, advantages and value targets of the originals.

    Source: Mittal et al. 2024, "Symmetry considerations for learning task symmetric robot policies", section III-C.

    Args:
        path: import path of a function `(agent_view, action) -> [(view, action), ...]` of arrays with any leading axes;
            views are those of the environment, before normalisation. None for no copies.
        observation_space: the space of views.
        action_space: the space of actions.

    Returns:
        The function.

    Raises:
        ConfigError: the function cannot be imported, fails, or returns other shapes.
    """
    if path is None:
        return no_symmetry
    function = import_object(path, _KEY, f"it must be the import path of a function {_FORM}")

    def mirror(view: PyTree, action: PyTree) -> list[tuple[PyTree, PyTree]]:
        original = jax.tree.map(jnp.shape, (view, action))

        def fault(pairs: list[tuple[PyTree, PyTree]]) -> str | None:
            if not isinstance(pairs, list | tuple):
                return f"returns a {type(pairs).__name__}"
            copies = [jax.tree.map(jnp.shape, tuple(pair)) for pair in pairs]
            wrong = [shapes for shapes in copies if shapes != original]
            return f"returns shapes {wrong[0]}, not {original}" if wrong else None

        return [tuple(pair) for pair in guarded(function, _KEY, path, _FORM, fault)(view, action)]

    def sample(space: ObservationSpace | Space) -> PyTree:
        return jax.vmap(jax.vmap(space.sample))(jax.random.split(jax.random.key(0), (2, 3)))

    # Refused before anything compiles.
    jax.eval_shape(lambda: mirror(sample(observation_space), sample(action_space)))
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
