"""A system whose numbers can be followed by hand, and the pieces to run it with."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Agent, Axes, System


class Seen(NamedTuple):
    """The local side of `make_recorder`: how much was handed to `observe`, as a replay buffer would hold it."""

    steps: jax.Array
    action_sum: jax.Array


def make_recorder(axes: Axes, forget_mean: bool = False) -> System:
    """A system that adds up what it is handed.

    `shared` sums the rewards of all shards (or, with `forget_mean`, those of its own), `local` counts what `observe`
    saw. The learnt action is always 0, so that any other one was drawn by the warm-up.
    """

    def init(key: jax.Array, timestep: Any) -> Agent:
        return Agent(
            {"reward": jnp.zeros(()), "updates": jnp.zeros((), jnp.int32)},
            Seen(jnp.zeros((), jnp.int32), jnp.zeros(())),
        )

    def act(shared: Any, actor: Any, key: jax.Array) -> Any:
        return actor.carry + 1, jnp.zeros(actor.timestep.reward.shape, jnp.int32), {"carry": actor.carry}

    def observe(agent: Agent, trajectory: Any) -> Agent:
        action = trajectory.transitions.action
        return agent._replace(local=Seen(agent.local.steps + action.size, agent.local.action_sum + jnp.sum(action)))

    def update(agent: Agent, trajectory: Any, key: jax.Array) -> Any:
        reward = jnp.mean(trajectory.transitions.reward)
        if not forget_mean:
            reward = axes.mean(reward)
        shared = {"reward": agent.shared["reward"] + reward, "updates": agent.shared["updates"] + 1}
        return Agent(shared, agent.local), {"reward": reward, "first_carry": jnp.mean(trajectory.first_carry)}

    return System(init, act, observe, update, act, lambda num_envs: jnp.zeros((num_envs,)))
