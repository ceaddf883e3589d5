"""Tests of recurrent SAC and TD3: what the states of sequences are, and what is stored of a rollout."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import ActorCriticHiddenStates, Observation, RolloutState, Trajectory, Transition
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.systems.off_policy.recurrent import RecurrentNetwork, RecurrentParams, ReplayedSequences, Successors
from stoix_like.systems.parts import recurrent
from stoix_like.utils.replay import SequenceBatch, Step
from support.accumulator import IS_FIRST, NEXT_VIEWS, REWARDS, TRUNCATED, VIEWS, Accumulator, column, observed
from support.composed import compose_config
from support.off_policy_runs import algorithm, timestep, trained

SYSTEMS = ["sac/rec_sac", "ddpg/rec_td3"]
SMALL = [
    *("system.sequence_period=4", "system.burn_in_length=1", "system.sequence_length=4", "system.warmup_steps=64"),
    *(f"network.{name}_network.rnn_layer.hidden_state_dim=8" for name in ("actor", "q")),
]


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
    return network.apply(RecurrentParams(weight, ()), Successors(sequences) if successors else sequences)


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
    assert float(jax.grad(lambda weight: outputs(weight, True, False).sum())(1.0)) == pytest.approx(18.0)


@pytest.mark.parametrize(
    ("system", "override", "message"),
    [
        ("sac/rec_sac", "+system.prioritised=true", "unknown key 'system.prioritised'"),
        ("spo/ff_spo", "+system.prioritised=true", "unknown key 'system.prioritised'"),
        ("sac/rec_sac", "+system.n_step=3", r"system\.n_step=3 has no effect here"),
        ("sac/rec_sac", "+system.noise_correlation=0.5", r"system\.noise_correlation=0\.5 has no effect here"),
        ("ddpg/rec_td3", "+system.max_exploration_noise=0.5", r"system\.max_exploration_noise=0\.5 has no effect here"),
        *(
            (system, "+system.store_next_observation=" + value, f"store_next_observation={value.title()} has no effect")
            for system, value in (("search/ff_az", "true"), ("search/ff_mz", "true"), ("spo/ff_spo", "false"))
        ),
    ],
)
def test_what_sequences_do_not_support_is_refused(system, override, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(compose_config([f"system={system}", override])).system.check(8, 1)


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("stored", [True, False])
def test_batches_are_the_steps_after_the_burn_in(system, stored):
    """Without stored successors, truncated steps have no weight."""
    agent = algorithm(system, *SMALL, f"system.store_next_observation={stored}", "system.gamma=0.5")
    more = [] if stored else [4]
    flags = column([0, 0, 0, 0, 1, *(0 for _ in more)], bool)
    truncated = column([*TRUNCATED, *(0 for _ in more)], bool)
    steps = Step(
        observed([*VIEWS, *more]),
        column([*REWARDS, *more])[..., None],
        column([*REWARDS, *more]),
        flags,
        truncated,
        observed(NEXT_VIEWS) if stored else None,
    )
    is_first = column([*IS_FIRST, *(0 for _ in more)], bool)
    drawn = SequenceBatch(steps, is_first, jnp.asarray([10.0]), jnp.ones((1, 1)), None)
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
    agent = algorithm(system, *SMALL, "system.rollout_length=8")
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


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_recurrent_policy_learns_the_continuous_policy_probe(system):
    fast = ["system.actor_lr=1e-2", "system.q_lr=1e-2", "arch.num_devices=1", "arch.total_timesteps=12000"]
    run = trained(system, *SMALL, *fast)
    assert run.history[-1]["eval/episode_return_mean"] == pytest.approx(0.0, abs=0.1)
