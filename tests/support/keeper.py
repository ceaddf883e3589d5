"""A system that keeps every rollout that it learns from, with the number of updates of the policy that acted."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import Agent, System, SystemConfig, SystemSpec
from support import toys

# Of runs with Sebulba.
LENGTH, ENVS, UPDATES = 5, 4, 6
RUN = [
    *("arch=sebulba", "env=gymnasium", "env.scenario.name=support.scripted:Scripted-v0", f"arch.total_num_envs={ENVS}"),
    *("arch.num_eval_episodes=2", "arch.absolute_metric=false", "arch.compile_cache=false", "logger=silent"),
]
KEEPER = [
    *toys.overrides(module="support.keeper", rollout_length=LENGTH),
    *(f"arch.total_timesteps={UPDATES * LENGTH * ENVS}", "arch.num_evaluation=2"),
]


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters common to all systems."""


def build(config: Config, spec: SystemSpec) -> System:
    """Build a keeper: `shared` counts updates, and `local` holds the rollouts `[updates, T, N, ...]`.

    Actions are random, the carry counts the steps of an environment, and `extras` is the count of updates.
    """

    def init(key: jax.Array, timestep: Any) -> Agent:
        steps = {
            "observation": timestep.observation.agent_view,
            "next_observation": timestep.observation.agent_view,
            **dict.fromkeys(("action", "updates"), jnp.zeros(timestep.reward.shape, jnp.int32)),
            "reward": timestep.reward,
            **dict.fromkeys(("terminated", "truncated", "is_first"), timestep.terminated),
        }
        shape = (spec.num_updates, config.rollout_length)
        kept = jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), steps)
        carries = jnp.zeros((spec.num_updates, *timestep.reward.shape), jnp.int32)
        return Agent({"updates": jnp.zeros((), jnp.int32)}, (kept, carries))

    def act(shared: Any, state: Any, key: jax.Array) -> Any:
        shape = state.timestep.reward.shape
        return state.carry + 1, jax.random.randint(key, shape, 0, 3), jnp.broadcast_to(shared["updates"], shape)

    def update(agent: Agent, trajectory: Any, key: jax.Array) -> Any:
        steps, updates = trajectory.transitions, agent.shared["updates"]
        taken = {
            "observation": steps.observation.agent_view,
            "next_observation": steps.next_observation.agent_view,
            "updates": steps.extras,
            **{name: getattr(steps, name) for name in ("action", "reward", "terminated", "truncated", "is_first")},
        }
        local = jax.tree.map(lambda kept, new: kept.at[updates].set(new), agent.local, (taken, trajectory.first_carry))
        return Agent({"updates": updates + 1}, local), {"reward": spec.axes.mean(jnp.mean(steps.reward))}

    def init_carry(num_envs: int) -> Any:
        return jnp.zeros((num_envs,), jnp.int32)

    return System(init, act, lambda agent, _: agent, update, act, init_carry)
