import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation, RolloutState, Trajectory, Transition
from stoix_like.systems.parts.normalizer import make_normalizer
from support.off_policy_runs import SEQUENCES, SMALL, algorithm, timestep, trained, training_loop
from support.programs import branches, make_program
from support.selections import first, select

SYSTEMS = [
    *(f"sac/ff_{name}" for name in ("sac", "sac_c51", "sac_discrete", "tqc", "crossq", "xqc", "flow")),
    *("ddpg/ff_ddpg", "ddpg/ff_td3", "ddpg/ff_d4pg", "ddpg/ff_td3_c51", "mpo/ff_mpo"),
]


def test_critics_start_with_different_parameters_and_targets_with_copies():
    agent = jax.jit(algorithm("ddpg/ff_td3").init)(jax.random.key(0), timestep([0], [False]))
    q_params = agent.shared.params.q_params
    jax.tree.map(np.testing.assert_array_equal, q_params.online, q_params.target)
    kernels = [leaf for leaf in jax.tree.leaves(q_params.online) if leaf.ndim == 2]
    assert len(kernels) == 4
    for one, other in zip(kernels[:2], kernels[2:], strict=True):
        assert one.shape == other.shape
        assert (one != other).all()


@pytest.mark.slow
@pytest.mark.parametrize("system", ["sac/ff_sac", "sac/ff_crossq", "ddpg/ff_td3"])
def test_placement_of_shards_on_devices_does_not_change_the_results(system):
    """Compare two shards on one device with one shard on each of two devices, with a delayed policy."""
    params = []
    for layout in (["arch.num_devices=1", "arch.update_batch_size=2"], ["arch.num_devices=2"]):
        options = ["system.policy_frequency=2", "system.normalize_observations=true", "arch.num_eval_episodes=2"]
        run = training_loop(system, *options, *layout)
        before = jax.device_get(run.state.shared.params)
        run.advance(3)
        params.append(jax.device_get(run.state.shared.params))
    # Sums over shards are in another order, which rounds differently.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *params)
    moved = jax.tree.map(lambda a, b: bool(np.abs(a - b).max() > 0), before, params[0])
    assert all(jax.tree.leaves(moved))


ATOMS = ["system.vmin=-3", "system.vmax=3"]
LEARNERS = [("ddpg/ff_ddpg", []), ("ddpg/ff_td3", []), ("ddpg/ff_d4pg", ATOMS), ("mpo/ff_mpo", [])]


@pytest.mark.parametrize(
    ("system", "overrides"), first(1, [*LEARNERS, ("sac/rec_sac", SEQUENCES), ("ddpg/rec_td3", SEQUENCES)])
)
def test_policy_learns_the_continuous_policy_probe(system, overrides):
    fast = ["system.actor_lr=1e-2", "system.q_lr=1e-2", "arch.num_devices=1", "arch.total_timesteps=12000"]
    run = trained(system, *fast, *overrides)
    tolerance = 0.1 if "/rec_" in system else 0.03
    assert run.history[-1]["eval/episode_return_mean"] == pytest.approx(0.0, abs=tolerance)


@pytest.mark.parametrize("system", select(SYSTEMS, quick=["sac/ff_sac"]))
def test_systems_see_normalised_observations_and_replay_stores_raw_ones(system):
    """Half of the observations are 3, the other half 7: mean 5, deviation 2."""
    probe = ["env=probe/policy"] if system.endswith("discrete") else []
    plain = algorithm(system, *probe)
    agent = dataclasses.replace(plain, normalizer=make_normalizer(True, Axes()))
    state = jax.jit(agent.init)(jax.random.key(0), timestep([0] * 8, [False] * 8))
    view = Observation(jnp.broadcast_to(jnp.asarray([3.0, 7.0] * 4)[None, :, None], (64, 8, 1)))
    action = jax.tree.map(lambda x: jnp.zeros((64, 8, *x.shape[2:]), x.dtype), state.local.buffer.experience.action)
    rows = jnp.zeros((64, 8))
    extras = (action, rows) if system.startswith("mpo") else ()  # actions and their log-probabilities
    steps = Transition(view, action, rows, rows > 0, rows > 0, view, rows > 0, extras)
    state = jax.jit(agent.observe)(state, Trajectory(steps, ()))
    draw = agent.replay.sample_steps if system.startswith("mpo") else agent.replay.sample
    raw, normalised = (
        jax.jit(draw)(state.local.buffer, jax.random.key(1)),
        jax.jit(agent.sample)(state, jax.random.key(1)),
    )
    for before, after in (
        (raw.observation, normalised.observation),
        (raw.next_observation, normalised.next_observation),
    ):
        assert set(np.unique(before.agent_view)) == {3.0, 7.0}
        np.testing.assert_allclose(after.agent_view, (before.agent_view - 5.0) / 2.0, rtol=1e-5)

    def greedy(agent, view):
        step = timestep([1, 1], [False, False])._replace(observation=Observation(jnp.asarray(view)[:, None]))
        act = jax.jit(functools.partial(agent.act, greedy=True))
        return act(state.shared, RolloutState((), step, ()), jax.random.key(0))[1]

    np.testing.assert_allclose(greedy(agent, [6.0, 1.0]), greedy(plain, [0.5, -2.0]), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["sac/ff_sac", "ddpg/ff_td3"])
def test_a_delayed_policy_is_a_branch_in_a_population(system):
    """Also where members have a replay buffer and so keep the axis of their lone shard."""

    def num_branches(frequency):
        overrides = ["env=probe/continuous_policy", "arch.population.size=3", f"system.policy_frequency={frequency}"]
        _, program, arguments = make_program([f"system={system}", *SMALL, *overrides])
        state = jax.eval_shape(program.init, *arguments)
        traced = jax.make_jaxpr(program.train)(state, arguments[0], np.int32(1), np.bool_(True), arguments[-1])
        predicates = branches(traced.jaxpr)
        assert set(predicates) <= {()}
        return len(predicates)

    assert num_branches(2) == num_branches(1) + 1
