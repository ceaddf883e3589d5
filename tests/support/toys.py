"""A system whose numbers can be followed by hand."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Agent, Axes, System, SystemConfig, SystemSpec


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """`gain` multiplies what is summed up; `sour_at` is the update whose metric becomes NaN."""

    gain: float = 1.0
    sour_at: float = -1.0
    forget_mean: bool = False


class Seen(NamedTuple):
    """The local side: how much was handed to `observe`, as a replay buffer would hold it."""

    steps: jax.Array
    action_sum: jax.Array


def build(config: Config, spec: SystemSpec) -> System:
    """A recorder; see `make_recorder`."""
    return make_recorder(spec.axes, config)


def make_recorder(axes: Axes, config: Any = None) -> System:
    """A system that adds up what it is handed.

    `shared` sums the rewards of all shards (or, with `forget_mean`, those of its own), `local` counts what `observe`
    saw. The learnt action is always 0, so that any other one was drawn by the warm-up.
    """
    config = config or Config(rollout_length=3)

    def init(key: jax.Array, timestep: Any) -> Agent:
        shared = {"reward": jnp.zeros(()), "updates": jnp.zeros((), jnp.int32)}
        return Agent(shared, Seen(jnp.zeros((), jnp.int32), jnp.zeros(())))

    def act(shared: Any, actor: Any, key: jax.Array) -> Any:
        return actor.carry + 1, jnp.zeros(actor.timestep.reward.shape, jnp.int32), {"carry": actor.carry}

    def observe(agent: Agent, trajectory: Any) -> Agent:
        action = trajectory.transitions.action
        return agent._replace(local=Seen(agent.local.steps + action.size, agent.local.action_sum + jnp.sum(action)))

    def update(agent: Agent, trajectory: Any, key: jax.Array) -> Any:
        reward = config.gain * jnp.mean(trajectory.transitions.reward)
        if not config.forget_mean:
            reward = axes.mean(reward)
        updates = agent.shared["updates"] + 1
        shared = {"reward": agent.shared["reward"] + reward, "updates": updates}
        noise = jnp.where(updates == config.sour_at, jnp.nan, 0.0)
        return Agent(shared, agent.local), {"reward": reward + noise, "first_carry": jnp.mean(trajectory.first_carry)}

    return System(init, act, observe, update, act, lambda num_envs: jnp.zeros((num_envs,)))


def overrides(**values: Any) -> list[str]:
    """Overrides that choose the recorder, with `values` of its own."""
    fields = {"name": "toy", "module": "toys", "rollout_length": 4, **values}
    written = ",".join(
        f"{name}:{str(value).lower() if isinstance(value, bool) else value}" for name, value in fields.items()
    )
    return ["~system", f"+system={{{written}}}"]
