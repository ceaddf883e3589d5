from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stoix_like
from stoix_like.base_types import (
    Agent,
    Axes,
    Observation,
    OnlineAndTarget,
    System,
    SystemConfig,
    SystemSpec,
    Trajectory,
    Transition,
)
from stoix_like.policies.load import load_shared, open_run
from stoix_like.systems.parts import resets
from stoix_like.systems.parts.resets import PeriodicResets
from support.selections import first

KEY = jax.random.key(0)


class Params(NamedTuple):
    q_params: OnlineAndTarget
    log_alpha: jax.Array


class OptStates(NamedTuple):
    q_opt_state: Any


class Shared(NamedTuple):
    params: Params
    opt_states: OptStates
    steps: jax.Array
    lifetime: jax.Array  # of Disco103


def critic(kernels, bias=0.0):
    first, second, last = (np.asarray(kernel, np.float32) for kernel in kernels)

    def dense(kernel):
        return jax.device_put({"kernel": kernel, "bias": np.full(kernel.shape[1], bias)})

    torso = {"Dense_0": dense(first), "Dense_1": dense(second)}
    return {"params": {"networks_0": {"torso": torso, "critic_head": {"Dense_0": dense(last)}}}}


def shared_of(online, count, alpha):
    means = jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf) + count, online))
    moments = optax.ScaleByAdamState(jnp.asarray(count), means, means)
    schedule = optax.ScaleByScheduleState(jnp.asarray(count))
    params = Params(OnlineAndTarget(online, online), jnp.asarray(alpha))
    return Shared(params, OptStates((moments, schedule)), *(jnp.asarray(count) for _ in range(2)))


# Two hidden layers of two units.
OLD = shared_of(critic([[[1, -1], [1, 1]], [[1, -1], [5, 6]], [[2], [3]]]), 7.0, 0.5)
NEW = shared_of(critic([[[10, 11], [12, 13]], [[14, 15], [16, 17]], [[18], [19]]], bias=20.0), 0.0, 0.1)


def q_of(shared):
    return jax.tree.leaves(shared.params.q_params.online)


def test_a_full_reset_keeps_counters_and_schedules():
    after = resets._reset_all(OLD, NEW)
    jax.tree.map(np.testing.assert_array_equal, after.params, NEW.params)
    moments, schedule = after.opt_states.q_opt_state
    jax.tree.map(np.testing.assert_array_equal, moments, NEW.opt_states.q_opt_state[0])
    assert (schedule.count, after.steps, after.lifetime) == (7.0, 7.0, 0.0)


def test_a_reset_of_last_layers_takes_heads_and_optimisers():
    after = resets._reset_heads(OLD, NEW)
    for params in after.params.q_params:
        network = params["params"]["networks_0"]
        np.testing.assert_array_equal(network["critic_head"]["Dense_0"]["kernel"], [[18.0], [19.0]])
        np.testing.assert_array_equal(network["torso"]["Dense_0"]["kernel"], [[1, -1], [1, 1]])
    moments, schedule = after.opt_states.q_opt_state
    jax.tree.map(np.testing.assert_array_equal, moments, NEW.opt_states.q_opt_state[0])
    assert (after.params.log_alpha, schedule.count, after.steps, after.lifetime) == (0.5, 7.0, 7.0, 7.0)


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    resets: PeriodicResets
    lr: float = 0.1


class Counted(NamedTuple):
    params: Any
    opt_state: Any
    parts: Any = ()


def build_counting(config, spec):
    def init(key, timestep):
        return Agent(Counted(jnp.zeros(()), ()), ())

    def update(agent, trajectory, key):
        return agent._replace(shared=agent.shared._replace(params=agent.shared.params + 1.0)), {}

    return System(init, None, None, update, None, None)


@pytest.mark.parametrize(("ages", "expected"), first(1, [((6, 0), [4, 8]), ((6, 9), [4, 7]), ((2, 0), [8, 8])]))
def test_members_are_reset_at_their_own_times(ages, expected):
    """Eight updates with resets every ten: at an age of 6, four are left after the reset; at 9, seven.

    At 0, none is due, and at 2, the next update would start anew: what was learned is what the run ends with.
    """
    config, zeros = Config(rollout_length=1, resets=PeriodicResets(reset_every=10)), jnp.zeros((1, 1))
    observation, false = Observation(zeros[..., None]), zeros.astype(bool)
    steps = Transition(observation, zeros, zeros, false, false, observation, false, ())

    def system(lr):
        # Of its sizes and spaces nothing is read.
        spec = SystemSpec(None, None, SimpleNamespace(), Axes(), 1, 1, 1, True)
        return resets.with_resets(build_counting, config, {"lr": lr}, spec)

    def update(shared, lr):
        return system(lr).update(Agent(shared, ()), Trajectory(steps, ()), KEY)[0].shared

    rates = jnp.asarray([0.1, 0.2])
    shared = jax.vmap(lambda key, lr: system(lr).init(key, None).shared)(jax.random.split(KEY, 2), rates)
    part = shared.parts[resets.NAME]._replace(steps=jnp.asarray(ages, jnp.int32))
    shared = shared._replace(parts={resets.NAME: part})
    for _ in range(8):
        shared = jax.jit(jax.vmap(update))(shared, rates)
    assert shared.params.tolist() == expected
    assert shared.parts[resets.NAME].steps.tolist() == [(age + 7) % 10 + 1 for age in ages]


SMALL = [
    *("env=gymnax/pendulum", "arch.total_num_envs=4", "arch.num_evaluation=2", "arch.num_eval_episodes=2"),
    *("network.actor_network.pre_torso.layer_sizes=[8,8]", "network.q_network.pre_torso.layer_sizes=[8,8]"),
    *("system.total_buffer_size=1024", "system.total_batch_size=16", "system.warmup_steps=16", "system.epochs=2"),
    *("arch.absolute_metric=false", "logger=silent", "arch.max_eval_steps=20"),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "last_layers"])
def test_resets_are_exact_on_resume_and_at_their_time(kind, tmp_path):
    """Without learning, parameters change by resets alone: after steps 10 and 20 of 24, in updates of 2."""
    still = ["system.q_lr=1e-30", "system.actor_lr=1e-30"]
    reset = [f"system.reset={kind}", "system.reset_every=10"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    stoix_like.train("sac/ff_sac", [*SMALL, *reset, *still, "arch.total_timesteps=112"], run_dir=whole)
    stoix_like.train("sac/ff_sac", [*SMALL, *reset, *still, "arch.total_timesteps=96"], run_dir=parts)
    before = load_shared(open_run(parts), "last").shared
    stoix_like.resume(parts, ["arch.total_timesteps=112"])
    resumed, at_once = load_shared(open_run(parts), "last").shared, load_shared(open_run(whole), "last").shared
    assert (jax.random.key_data(resumed.parts["resets"].key) == jax.random.key_data(at_once.parts["resets"].key)).all()
    jax.tree.map(np.testing.assert_array_equal, resumed[:-1], at_once[:-1])
    # 96 - 64 = 32 steps are 8 updates, 16 gradient steps: one reset; 4 updates later, another one.
    assert int(before.parts["resets"].steps) == 6
    assert int(resumed.parts["resets"].steps) == 4
    assert any((a != b).any() for a, b in zip(q_of(before), q_of(resumed), strict=True))
