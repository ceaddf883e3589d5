"""Learning with a symmetry of the task: mirror images of transitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation, PyTree, SystemSpec
from stoix_like.envs.spaces import Discrete, Mixed, bounds
from stoix_like.errors import ConfigError
from stoix_like.schema import Part
from stoix_like.systems.parts.action_vectors import clip_to_bounds
from stoix_like.utils.jax_utils import merge_leading_dims, select_members
from stoix_like.utils.replay import Batch, Replay

_KEY = "system.symmetry"
_FORM = "it must be a function (observation, action) -> (observation, action) of one example that undoes itself"
# Examples that a symmetry is checked on.
_EXAMPLES = 64
# Beyond the numbers of the keys that others split off.
_STREAM = 2**31 - 3


@dataclass(frozen=True, kw_only=True)
class SymmetryConfig(Part):
    """A symmetry of the task."""

    symmetry: str | None = None  # import path of a function that mirrors an observation and an action; None: off

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Refuse states without a known mirror image, and a limit that would count the asymmetry of the policy."""
        if self.symmetry is None:
            return
        if any(head.recurrent for head in config.network_heads.values()):
            raise ConfigError(
                f"{_KEY}={self.symmetry}: states of recurrent networks have no known mirror image: use null, or a"
                " feed-forward system"
            )
        if getattr(config, "target_kl", None) is not None and getattr(config, "stops_early", True):
            raise ConfigError(
                f"system.target_kl={config.target_kl} would count the asymmetry of the policy as a divergence, with"
                f" {_KEY}={self.symmetry}: use system.desired_kl"
            )


class Mirror(NamedTuple):
    """Functions of a symmetry; identities without one."""

    replay: Callable[[Replay], Replay] = lambda replay: replay  # `(replay) -> replay`, with images for half the samples
    # `(steps [T, N], raw observations, normalise) -> steps`, with the normalised mirror images of the observations.
    pair: Callable[..., Any] = lambda steps, observation, normalize: steps
    join: Callable[[Any], Any] = lambda minibatch: minibatch  # appends the mirror images to a minibatch: `[2 B]`


def make_mirror(config: SymmetryConfig | None, spec: SystemSpec) -> Mirror:
    """Build the functions of a symmetry, which is imported and checked when the program is traced.

    Half of what a replay buffer returns is replaced by its mirror image, as if the buffer held all images, too.
    Minibatches of rollouts are joined by theirs (DUP of Abdolhosseini et al. 2019, "On learning symmetric locomotion").
    An image has the log-probability, the advantage, the old value and the target of its original: it is a step of the
    mirrored behaviour policy, for which the probability ratio is exact (Mittal et al. 2024, arXiv:2403.04359).
    """
    if config is None or config.symmetry is None:
        return Mirror()
    mirror = partial(_mirror, config.symmetry, spec)

    def sample(replay: Replay, state: Any, key: jax.Array, *exponent: Any) -> Batch:
        batch = replay.sample(state, key, *exponent)
        observation, action = mirror(batch.observation, batch.action)
        next_action, is_known = batch.next_action or (batch.action, None)
        next_observation, next_action = mirror(batch.next_observation, next_action)
        image = batch._replace(observation=observation, action=action, next_observation=next_observation)
        image = image._replace(next_action=batch.next_action and (next_action, is_known))
        is_image = jax.random.bernoulli(jax.random.fold_in(key, _STREAM), 0.5, batch.reward.shape)
        return select_members(image, batch, is_image)

    def pair(steps: Any, observation: Observation, normalize: Callable[[Observation], Observation]) -> Any:
        image, _ = mirror(*jax.tree.map(lambda x: merge_leading_dims(x, 2), (observation, steps.action)))
        return steps._replace(image=normalize(jax.tree.map(lambda x, y: x.reshape(y.shape), image, observation)))

    def join(batch: Any) -> Any:
        _, action = mirror(batch.obs, batch.action)
        lesson = batch.lesson and (mirror(batch.obs, batch.lesson[0])[1], batch.lesson[1])
        image = batch._replace(obs=batch.image, action=action, lesson=lesson, image=())
        return jax.tree.map(lambda *pair: jnp.concatenate(pair), batch._replace(image=()), image)

    return Mirror(lambda replay: replay._replace(sample=partial(sample, replay)), pair, join)


def _mirror(path: str, spec: SystemSpec, observation: Observation, action: jax.Array) -> tuple[Observation, jax.Array]:
    """Mirror examples `[B, ...]`, by a function that proves to be a symmetry of elements of the spaces."""
    from stoix_like.user_code import import_object, refusing  # systems without a symmetry start without it

    function = import_object(path, _KEY, _FORM)
    with refusing(f"{_KEY}={path} failed", _FORM):
        with jax.ensure_compile_time_eval():
            fault = _fault(jax.vmap(function), spec, observation)
        if fault is not None:
            raise ConfigError(f"{_KEY}={path} {fault}: {_FORM}")
        return jax.vmap(function)(observation, action)


def _fault(mirror: Callable[..., Any], spec: SystemSpec, like: Observation) -> str | None:
    """Return the fault of a function as a symmetry of examples; None without one."""
    keys = jax.random.split(jax.random.key(0), _EXAMPLES)
    views, action = jax.vmap(spec.observation_space.sample)(keys), jax.vmap(spec.action_space.sample)(keys)
    zeros = jax.tree.map(lambda x: jnp.zeros((_EXAMPLES, *x.shape[1:]), x.dtype), like)
    mask = None if like.action_mask is None else jax.random.bernoulli(keys[0], 0.5, zeros.action_mask.shape)
    observation = zeros._replace(agent_view=views, action_mask=mask)
    image = mirror(observation, action)
    types = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (image, (observation, action))]
    if types[0] != types[1]:
        return "changes the structure, shapes or dtypes"
    if not _equal(mirror(*image), (observation, action)):
        return "does not undo itself"
    if not (_equal(mirror(zeros, action)[1], image[1]) and _equal(mirror(observation, action[::-1])[0], image[0])):
        return "mirrors an action by the observation, or the other way round"
    space, actions = spec.action_space, image[1]
    clipped = clip_to_bounds(space, actions) if isinstance(space, Mixed) else jnp.clip(actions, *bounds(space))
    if not _equal(clipped, actions):
        return "mirrors actions out of their space"
    if mask is not None and isinstance(space, Discrete):
        rows = jnp.arange(_EXAMPLES)
        if not _equal(mask[rows, action], image[0].action_mask[rows, image[1]]):
            return "mirrors the action mask in another way than actions"
    return None


def _equal(tree: PyTree, other: PyTree) -> bool:
    return all(jax.tree.leaves(jax.tree.map(lambda x, y: np.allclose(x, y, rtol=1e-5, atol=1e-5), tree, other)))
