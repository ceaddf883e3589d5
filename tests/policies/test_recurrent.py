import jax
import numpy as np
import pytest

from stoix_like.base_types import Observation, RolloutState
from stoix_like.policies.make import make_policy
from stoix_like.policies.recurrent import RecurrentPolicy
from support import toys
from support.tiny_dreamer import TINY
from support.trained_runs import SMALL
from support.untrained import untrained


def test_a_system_with_a_carry_has_a_recurrent_policy():
    setup, shared = untrained(*SMALL[4:], *toys.overrides(rollout_length=4), "env=probe/value")
    assert isinstance(make_policy(setup, shared, {}), RecurrentPolicy)


def cell(cell_type):
    rnn = "network.actor_network.rnn_layer"
    return ["system=ppo/rec_ppo", f"{rnn}.cell_type={cell_type}", f"{rnn}.num_layers=2", f"{rnn}.hidden_state_dim=8"]


def recurrent_policy(*overrides, greedy=True):
    setup, shared = untrained(*overrides, "arch.total_num_envs=4", "env=gymnax/pendulum")
    return make_policy(setup, shared, {}, greedy=greedy), setup, shared


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [*map(cell, ("optimised_lstm", "lru", "s5", "mlstm", "gtrxl")), TINY],
    ids=lambda each: each[1].rpartition("=")[2],
)
def test_a_recurrent_policy_continues_from_its_state(overrides, tmp_path):
    """Along random observations, actions are those of `eval_act`, and a first observation resets the state."""
    policy, setup, shared = recurrent_policy(*overrides)
    views = np.asarray(policy.random_observations(jax.random.key(1), 12).agent_view).reshape(4, 3, -1)
    system, carry, state = setup.build_system(), policy._system.init_carry(3), policy.initial_state(3)
    eval_act = jax.jit(system.eval_act)
    exported = jax.export.deserialize(policy.export(tmp_path / "policy").read_bytes())
    _, first = setup.env.reset(jax.random.split(jax.random.key(0), 3))
    stored, sb3_state = jax.tree.leaves(state), None
    for t, view in enumerate(views):
        is_first = np.array([t == 0, t in (0, 2), False])
        length, observation = np.where(is_first, 0, 7), Observation(view)
        timestep = first._replace(observation=observation, episode=first.episode._replace(episode_length=length))
        carry, action, _ = eval_act(shared, RolloutState((), timestep, carry), jax.random.key(0))
        found, state = policy(view, state, is_first)
        np.testing.assert_allclose(found, 2 * np.clip(action, -1, 1), rtol=1e-4, atol=1e-5)
        called, sb3_state = policy.predict(view, sb3_state, episode_start=is_first, deterministic=True)
        np.testing.assert_array_equal(called, found)
        also, *stored = exported.call(view, *stored, is_first, np.zeros(2, np.uint32))
        np.testing.assert_allclose(also, found, rtol=1e-4, atol=1e-5)
    again, _ = policy(views[-1][1], jax.tree.map(lambda leaf: leaf[1], policy.initial_state((3,))))
    alone, _ = policy(views[-1][1], policy.initial_state())
    np.testing.assert_allclose(again, alone, rtol=1e-5)
    assert np.abs(found[1] - again).max() > 1e-5


@pytest.mark.slow
def test_a_recurrent_policy_refuses_other_states():
    policy, *_ = recurrent_policy(*cell("gru"), greedy=False)
    view = np.zeros((3, 3), np.float32)
    with pytest.raises(ValueError, match=r"state has the shapes .*\(2, 8\).* pass what policy.initial_state\(\(3,\)\)"):
        policy(view, policy.initial_state(2), key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"is_first has shape \(2,\): this call takes \(3,\)"):
        policy(view, policy.initial_state(3), np.zeros(2, bool), jax.random.key(0))
    with pytest.raises(ValueError, match="key=None, but this policy samples actions"):
        policy(view, policy.initial_state(3))
