"""Learning from the policy of another run: kickstarting of a policy, and labels for a clone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Distribution, Observation, PyTree, SystemSpec
from stoix_like.envs.spaces import Space
from stoix_like.schema import Part, at_least
from stoix_like.systems.parts.action_vectors import clip_to_bounds

# Beyond the numbers of the keys that others split off.
_STREAM = 2**31 - 2


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(Part):
    """A teacher."""

    teacher: str | None = None  # directory or address of a run; its best policy teaches; None: no teacher


@dataclass(frozen=True, kw_only=True)
class Kickstarting(TeacherConfig):
    """Hyperparameters of a policy that learns from a teacher in addition to its rewards."""

    teacher_coef: Annotated[float, at_least(0.0)] = 1.0  # initial weight of the teacher's cross-entropy, in nats
    final_teacher_coef: Annotated[float, at_least(0.0)] = 0.0  # this weight at the end of the run, changed linearly

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        if self.teacher is None:
            return {}
        return {"weight of the teacher": float(self.weight(updates / num_updates))}

    def weight(self, fraction: Any) -> Any:
        """Return the weight after a fraction of the run, which may be traced."""
        return self.teacher_coef + (self.final_teacher_coef - self.teacher_coef) * jnp.minimum(1.0, fraction)


class Teacher(NamedTuple):
    """The policy of another run."""

    policy: Callable[[PyTree, Observation], Distribution]  # `(params, raw observation [B, ...]) -> distribution`
    params: PyTree  # what it acts with
    action_space: Space  # the space of its actions

    def labels(self, observation: Observation) -> jax.Array:
        """Return the most likely actions for observations `[T, N, ...]`, clipped to the bounds of their space."""
        return clip_to_bounds(self.action_space, self.actions(observation))

    def actions(self, observation: Observation, key: jax.Array | None = None) -> jax.Array:
        """Return actions for observations `[T, N, ...]`: drawn with a key, or the most likely ones."""

        def act(observation: Observation, key: jax.Array | None) -> jax.Array:
            pi = self.policy(self.params, observation)
            return pi.mode() if key is None else pi.sample(seed=key)

        length = len(jax.tree.leaves(observation)[0])
        keys = None if key is None else jax.random.split(key, length)
        return jax.lax.map(lambda inputs: act(*inputs), (observation, keys))


class Lessons(NamedTuple):
    """Lessons of a teacher; the identity without one."""

    init: Callable[[], PyTree] = lambda: ()  # `() -> count`, of updates
    ask: Callable[[PyTree, Observation, jax.Array], tuple[PyTree, PyTree]] = lambda count, observation, key: (count, ())
    # `(loss, metrics, pi, lesson) -> (loss, metrics)`, with the cross-entropy of the teacher's actions.
    add: Callable[..., tuple[jax.Array, dict[str, jax.Array]]] = lambda loss, metrics, pi, lesson: (loss, metrics)


def make_lessons(config: Kickstarting | None, spec: SystemSpec) -> Lessons:
    """Build the lessons of a teacher: the cross-entropy of its actions, with the gradient of the divergence.

        L = c E[-log pi(a)],   a ~ pi_teacher

    Source: Schmitt et al. 2018, "Kickstarting deep reinforcement learning", arXiv:1803.03835, equation 4.
    """
    if config is None or config.teacher is None:
        return Lessons()

    def ask(count: jax.Array, observation: Observation, key: jax.Array) -> tuple[jax.Array, PyTree]:
        action = spec.teacher.actions(observation, jax.random.fold_in(key, _STREAM))
        weight = jnp.broadcast_to(config.weight(count / spec.num_updates), action.shape[:2])
        return count + 1, (action, weight)

    def add(loss: jax.Array, metrics: dict[str, jax.Array], pi: Distribution, lesson: PyTree) -> Any:
        action, weight = lesson
        cross_entropy = -pi.log_prob(action)
        metrics = metrics | {"teacher_cross_entropy": jnp.mean(cross_entropy)}
        return loss + jnp.mean(weight * cross_entropy), metrics

    return Lessons(lambda: jnp.zeros((), jnp.int32), ask, add)
