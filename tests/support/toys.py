"""A system whose state can be computed by hand."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Agent, Axes, System, SystemConfig, SystemSpec


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of the recorder."""

    has_replay: ClassVar[bool] = True  # the observed sums stand in for a replay buffer
    gain: float = 1.0  # factor of the recorded rewards
    nan_at: float = -1.0  # the update whose metric becomes NaN
    forget_mean: bool = False  # do not average rewards over shards
    calls_host: bool = False  # pass rewards through a function of the host, which has no form for several shards


class ObservedSums(NamedTuple):
    """The local state: sums over the steps passed to `observe`, in place of a replay buffer."""

    steps: jax.Array
    action_sum: jax.Array
    acted_after: jax.Array


def build(config: Config, spec: SystemSpec) -> System:
    return make_recorder(spec.axes, config)


def make_recorder(axes: Axes, config: Any = None) -> System:
    """Build a system that sums its inputs.

    `shared` sums the mean rewards of all shards (with `forget_mean`, of one shard); `local` counts the steps passed to
    `observe`, and keeps the number of updates of the agent that last acted. `act` always returns 0, so that any other
    action is from the warm-up.
    """
    config = config or Config(rollout_length=3)

    def init(key: jax.Array, timestep: Any) -> Agent:
        shared = {"reward": jnp.zeros(()), "updates": jnp.zeros((), jnp.int32)}
        return Agent(shared, ObservedSums(jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros((), jnp.int32)))

    def act(shared: Any, state: Any, key: jax.Array) -> Any:
        shape = state.timestep.reward.shape
        updates = jnp.full(shape, (shared or {}).get("updates", 0))
        return state.carry + 1, jnp.zeros(shape, jnp.int32), {"carry": state.carry, "updates": updates}

    def observe(agent: Agent, trajectory: Any) -> Agent:
        steps, local = trajectory.transitions, agent.local
        sums = local.steps + steps.action.size, local.action_sum + jnp.sum(steps.action)
        return agent._replace(local=ObservedSums(*sums, jnp.max(steps.extras["updates"])))

    def update(agent: Agent, trajectory: Any, key: jax.Array) -> Any:
        reward = config.gain * jnp.mean(trajectory.transitions.reward)
        if config.calls_host:
            reward = jax.pure_callback(lambda same: same, jax.ShapeDtypeStruct((), jnp.float32), reward)
        if not config.forget_mean:
            reward = axes.mean(reward)
        updates = agent.shared["updates"] + 1
        shared = {"reward": agent.shared["reward"] + reward, "updates": updates}
        noise = jnp.where(updates == config.nan_at, jnp.nan, 0.0)
        return Agent(shared, agent.local), {"reward": reward + noise, "first_carry": jnp.mean(trajectory.first_carry)}

    return System(init, act, observe, update, act, lambda num_envs: jnp.zeros((num_envs,)))


def overrides(**values: Any) -> list[str]:
    """Return overrides that select the recorder, with `values` as its hyperparameters."""
    fields = {"name": "toy", "module": "support.toys", "rollout_length": 4, **values}
    written = ",".join(
        f"{name}:{str(value).lower() if isinstance(value, bool) else value}" for name, value in fields.items()
    )
    return ["~system", f"+system={{{written}}}"]
