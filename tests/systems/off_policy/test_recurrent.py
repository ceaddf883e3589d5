import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import ActorCriticHiddenStates, Observation, RolloutState, Trajectory, Transition
from stoix_like.systems.off_policy.recurrent import RecurrentNetwork, RecurrentParams, ReplayedSequences, Successors
from stoix_like.systems.parts import recurrent
from support.accumulator import IS_FIRST, NEXT_VIEWS, REWARDS, VIEWS, Accumulator, column, observed, replayed
from support.compiled import run
from support.off_policy_runs import SEQUENCES, algorithm, timestep

SYSTEMS = ["sac/rec_sac", "ddpg/rec_td3"]


class Cells(Accumulator):
    """The accumulator, with its state as the only output."""

    def apply(self, *args, **kwargs):
        states, pi = super().apply(*args, **kwargs)
        return states, pi.preferences[..., :1]


HEAD = SimpleNamespace(apply=lambda params, embedding, *inputs: embedding[:, 0])


def outputs(weight, stored, successors):
    """Return what a network of the weight computes after a burn-in of one step, from the state 10."""
    more = [] if stored else [4]
    views, is_first = observed([*VIEWS, *more]), column([*IS_FIRST, *(0 for _ in more)], bool)
    states = ActorCriticHiddenStates((), jnp.asarray([10.0]))
    sequences = ReplayedSequences(views, is_first, observed(NEXT_VIEWS) if stored else None, states)
    network = RecurrentNetwork(Cells(), HEAD, 1, lambda states: states.critic_hidden_state)
    sequences = Successors(sequences) if successors else sequences
    return run(lambda weight: network.apply(RecurrentParams(weight, ()), sequences), weight)


@pytest.mark.parametrize("stored", [True, False])
def test_states_continue_to_true_successors_and_are_reset_at_starts(stored):
    """Weight 2: the burn-in gives 12, and the states after it are 16, 22 | 10, 12. See `ERRORS` of R2D2's tests.

    The true successor of the truncated step is 7, from 22: 36. Where it is not stored, that of the next episode stands
    in its place, for a weight of zero.
    """
    np.testing.assert_allclose(outputs(2.0, stored, successors=False), [16.0, 22.0, 10.0, 12.0])
    truncated = 36.0 if stored else 10.0
    np.testing.assert_allclose(outputs(2.0, stored, successors=True), [22.0, truncated, 12.0, 20.0])


def test_no_gradient_flows_through_the_burn_in():
    """After it, the states are 11 + 2 w, 11 + 5 w | 5 w and 6 w: with the burn-in, the first ones would add 1 each."""
    slope = run(jax.grad(lambda weight: outputs(weight, True, False).sum()), jnp.asarray(1.0))
    assert float(slope) == pytest.approx(18.0)


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("stored", [True, False])
def test_batches_are_the_steps_after_the_burn_in(system, stored):
    """Without stored successors, truncated steps have no weight."""
    agent = algorithm(system, *SEQUENCES, f"system.store_next_observation={stored}", "system.gamma=0.5")
    drawn = replayed(stored, action=REWARDS, terminated=[0, 0, 0, 0, 1])
    agent = dataclasses.replace(agent, replay=agent.replay._replace(sample=lambda *args: drawn))
    state = SimpleNamespace(
        local=SimpleNamespace(buffer=()), shared=SimpleNamespace(statistics=(), return_statistics=())
    )
    batch = agent.sample(state, jax.random.key(0))
    assert batch.reward.tolist() == batch.action[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert batch.discount.tolist() == [0.5, 0.5, 0.5, 0.0]
    assert batch.weight.tolist() == ([1.0] * 4 if stored else [1.0, 0.0, 1.0, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_stored_states_are_those_of_both_networks(system):
    """Step by step through two rollouts, with an episode that starts in each, both networks meet the stored states."""
    agent = algorithm(system, *SEQUENCES, "system.rollout_length=8")
    views = jax.random.normal(jax.random.key(1), (16, 8, 1))
    first = jnp.zeros((16, 8), bool).at[0].set(True).at[6, 2].set(True).at[11, 3].set(True)
    state = jax.jit(agent.init)(jax.random.key(0), timestep([0] * 8, [False] * 8))
    carry, critic = agent.init_carry(8), agent.critics.cells.initialize_carry(8)
    expected = []
    for start in (0, 8):
        rows, carries = jnp.zeros((8, 8)), []
        for step in range(start, start + 8):
            expected.append((carry, critic))
            now = timestep([0] * 8, [False] * 8)
            length = jnp.where(first[step], 0, 1)
            now = now._replace(
                observation=Observation(views[step]), episode=now.episode._replace(episode_length=length)
            )
            carry, _, extras = agent.act(state.shared, RolloutState((), now, carry), jax.random.key(step))
            carries.append(extras)
            critic, _ = recurrent.step(
                agent.critics.cells, state.shared.params.q_params.online.cells, critic, now.observation, first[step]
            )
        view = Observation(views[start : start + 8])
        extras = jax.tree.map(lambda *leaves: jnp.stack(leaves), *carries)
        steps = Transition(view, rows[..., None], rows, rows > 0, rows > 0, view, first[start : start + 8], extras)
        state = agent.observe(state, Trajectory(steps, carries[0]))
    stored = state.local.buffer.experience.carry
    for block in range(4):
        for found, wanted in zip(stored, expected[4 * block], strict=True):
            np.testing.assert_allclose(found[:, block], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.local.critic_hidden_state, critic, rtol=1e-5, atol=1e-6)
