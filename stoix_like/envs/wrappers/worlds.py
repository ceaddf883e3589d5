"""Observations of all agents of a game, in addition to each agent's own."""

from __future__ import annotations

import jax

from stoix_like.base_types import PyTree
from stoix_like.envs.environment import EnvFacts, VectorEnvironment
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.scenes.views import find_scene
from stoix_like.envs.worlds import with_world, world_space
from stoix_like.envs.wrappers.base import ObservationWrapper


class AddWorld(ObservationWrapper):
    """A wrapper that adds the observations of all agents to each agent's own."""

    def __init__(self, env: VectorEnvironment) -> None:
        super().__init__(env)
        space, keys = env.observation_space, jax.random.split(jax.random.key(0), env.num_agents)
        self.observation_space = world_space(space, jax.eval_shape(lambda: with_world(jax.vmap(space.sample)(keys))))

    def scene(self) -> Scene | None:
        drawn = getattr(type(getattr(self.unwrapped, "env", self.unwrapped)), "scene", None)
        if drawn is not EnvFacts.scene:
            return super().scene()
        # The images of the observation, which may be flattened with the world.
        return find_scene(self.observation_space)

    def view(self, view: PyTree) -> PyTree:
        return jax.vmap(with_world)(view)
