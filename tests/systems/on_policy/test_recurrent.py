import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import ActorCriticHiddenStates, Agent, Observation, Trajectory, Transition
from stoix_like.networks import utils
from stoix_like.networks.base import RecurrentCritic
from stoix_like.systems.on_policy.actor_critic import OnPolicyLocal
from stoix_like.systems.on_policy.recurrent import Sequences
from support.accumulator import column
from support.algorithms import make_algorithm
from support.resumed import assert_resumed_equals_whole
from support.set_ups import loop_of, setup_of, trained

NETWORKS = [
    f"network.{name}_network.{part}"
    for name in ("actor", "critic")
    for part in ("pre_torso.layer_sizes=[8]", "post_torso.layer_sizes=[8]", "rnn_layer.hidden_state_dim=8")
]
RUN = ["arch.compile_cache=false", "arch.absolute_metric=false", "arch.num_evaluation=1", "arch.num_devices=1"]
SHARED = ["network=rnn_shared", *(override for override in NETWORKS if "critic" not in override)]
SIZES = [*RUN, "system.rollout_length=8", "arch.total_num_envs=4"]
SMALL = [*NETWORKS, *SIZES]


def training_loop(*overrides, writer=None, networks=NETWORKS):
    return loop_of(*networks, *SIZES, *overrides, writer=writer)


class Same(nn.Module):
    def __call__(self, x):
        return x


class First(nn.Module):
    def __call__(self, x):
        return x[..., 0]


class SumCell(nn.Module):
    features: int
    dtype: Any = None

    def __call__(self, state, x):
        return state + x, state + x

    @nn.nowrap
    def initialize_carry(self, rng, input_shape):
        return jnp.zeros(input_shape)


OBSERVATIONS, SUCCESSORS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0], [2.0, 4.0, 100.0, 16.0, 200.0, 64.0]
IS_FIRST, TRUNCATED, TERMINATED = [0, 0, 0, 1, 0, 1], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]


@pytest.fixture
def agent(monkeypatch):
    """Return recurrent PPO whose values are the sums of the observations of an episode."""
    monkeypatch.setitem(utils.RNN_CELLS, "sum", SumCell)
    overrides = ["system=ppo/rec_ppo", "system.rollout_length=6", "arch.total_num_envs=1", "system.num_minibatches=1"]
    lengths = ["system.sequence_length=2", "system.gamma=0.5", "system.gae_lambda=0", "env=probe/value"]
    overrides += ["system.normalize_rewards=false"]
    found = make_algorithm(setup_of(*SMALL, *overrides, *lengths))
    critic = RecurrentCritic(First(), Same(), 1, "sum", Same())
    networks = dataclasses.replace(found.networks, critic=critic)
    config = dataclasses.replace(found.config, standardize_advantages=False)
    return dataclasses.replace(found, networks=networks, config=config)


@pytest.mark.slow
def test_values_of_successors_continue_from_the_state_of_their_step(agent):
    """An episode that started with 10 is truncated at 17, a second one terminates at 24, a third one starts with 32.

    Sums:       11, 13, 17;  8, 24;  32.    Successors: 13, 17, 17 + 100;  24, 24 + 200;  32 + 64.
    Targets are half the values of the successors, and 0 where the episode terminated.
    """
    views, successor = column(OBSERVATIONS)[..., None], Observation(column(SUCCESSORS)[..., None])
    action, zero = column([0] * 6, jnp.int32), column([0] * 6)
    terminated, truncated, is_first = (column(flags, bool) for flags in (TERMINATED, TRUNCATED, IS_FIRST))
    steps = Transition(Observation(views), action, zero, terminated, truncated, successor, is_first, zero)
    actor = jax.jit(agent.init)(jax.random.key(0), example(views))
    first_carry = jax.random.normal(jax.random.key(1), (1, 8))
    before = Agent(actor.shared, OnPolicyLocal(critic_hidden_state=jnp.full((1, 1), 10.0)))
    after, batch, _ = agent.targets(before, Trajectory(steps, first_carry), jax.random.key(2))
    # Three sequences of two steps.
    np.testing.assert_allclose(batch.value, [[11, 13], [17, 8], [24, 32]])
    np.testing.assert_allclose(batch.target, [[6.5, 8.5], [58.5, 12], [0, 48]])
    np.testing.assert_allclose(batch.obs.hidden_states.critic_hidden_state, [[10], [13], [8]])
    np.testing.assert_allclose(after.local.critic_hidden_state, [[32]])
    # The actor's states before each sequence are those of a step-by-step rollout.
    policy, params, state = agent.networks.actor, actor.shared.params.actor_params, first_carry
    for t in range(6):
        if t % 2 == 0:
            np.testing.assert_allclose(batch.obs.hidden_states.policy_hidden_state[t // 2], state[0], rtol=1e-5)
        inputs = Observation(views[t]), steps.is_first[t]
        state, _ = policy.apply(params, state, inputs, method="step")


def example(views, env="env=probe/value"):
    setup = setup_of(*SMALL, "system=ppo/rec_ppo", env)
    _, timestep = setup.env.reset(jax.random.split(jax.random.key(0), views.shape[1]))
    return timestep._replace(observation=Observation(views[0]))


@pytest.mark.slow
@pytest.mark.parametrize(("sequence_length", "overrides"), [("null", NETWORKS), ("2", NETWORKS), ("2", SHARED)])
def test_the_first_probability_ratio_is_one(sequence_length, overrides):
    """In every rollout, also one that starts within an episode, and in every sequence."""
    one_step = ["system.epochs=1", "system.num_minibatches=1", f"system.sequence_length={sequence_length}"]
    rates = ["system.actor_lr=0.1", "env.time_limit=13", "system.normalize_observations=true"]
    loop = training_loop("system=ppo/rec_ppo", *one_step, *rates, networks=overrides)
    for _ in range(3):
        metrics = loop.advance(1)
        assert metrics["train/clip_fraction"] == 0.0
        assert metrics["train/approx_kl"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_policy_and_value_share_torsos_and_cells():
    """In one pass, they compute what each computes alone; gradients of both reach the cells, one step back in time."""
    agent = make_algorithm(setup_of(*SHARED, *SIZES, "system=ppo/rec_ppo"))
    views = jax.random.normal(jax.random.key(1), (3, 2, 4))
    params = jax.jit(agent.init)(jax.random.key(0), example(views, "env=gymnax/cartpole")).shared.params
    assert set(params.critic_params["params"]) == {"critic_head"}
    state = jax.random.normal(jax.random.key(2), (2, 8))
    starts = jnp.asarray([[0, 0], [0, 1], [0, 0]], bool)

    @jax.jit
    def compute(params, views):
        sequences = Sequences(Observation(views), starts, ActorCriticHiddenStates(state, state))
        pi, values = agent.networks.both(params, sequences)
        alone = agent.networks.policy(params, sequences)
        variables = {"params": params.actor_params["params"] | params.critic_params["params"]}
        _, values_alone = agent.networks.critic.apply(variables, state, (Observation(views), starts))
        return values[1].sum(), (pi.logits, alone.logits, values, values_alone)

    (grads, by_view), (logits, logits_alone, values, values_alone) = jax.jit(
        jax.grad(compute, argnums=(0, 1), has_aux=True)
    )(params, views)
    np.testing.assert_allclose(logits, logits_alone, rtol=1e-5)
    np.testing.assert_allclose(values, values_alone, rtol=1e-5)
    largest = jax.tree.map(lambda x: np.abs(x).max(), jax.device_get(grads.actor_params["params"]))
    sizes = {name: max(jax.tree.leaves(part)) for name, part in largest.items()}
    assert sizes.pop("action_head") == 0.0
    assert min(sizes.values()) > 0.0
    # The second step of the second environment starts an episode.
    assert (np.abs(by_view).max(-1) > 0.0).tolist() == [[True, False], [True, True], [False, False]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "cell_type", "expected"),
    [
        (["ppo/rec_ppo"], "gru", 1.0),
        (["ppo/rec_ppo"], "lru", 1.0),
        (["impala/rec_impala"], "optimised_lstm", 1.0),
        (["ppo/rec_ppo", "network=rnn_shared"], "gru", 1.0),
        (["ppo/ff_ppo"], None, 0.5),
    ],
)
def test_only_memory_repeats_the_first_cue(system, cell_type, expected):
    """Whole rollouts of 16 steps hold three episodes, sequences of 4 steps less than one."""
    cells = [f"network.{name}_network.rnn_layer.cell_type={cell_type}" for name in ("actor", "critic")]
    networks = [*NETWORKS, *cells]
    if "network=rnn_shared" in system:
        networks = [override for override in networks if "critic" not in override]
    recurrent = [*networks, f"system.sequence_length={4 if cell_type == 'lru' else 'null'}"]
    budget = ["arch.total_timesteps=65536", "arch.total_num_envs=16", "system.rollout_length=16"]
    rates = ["system.actor_lr=1e-2", "system.critic_lr=1e-2", "arch.num_eval_episodes=256"]
    overrides = [*RUN, *budget, *rates, *(recurrent if cell_type else ())]
    loop = trained(f"system={system[0]}", *system[1:], "env=probe/repeat_first", *overrides)
    assert loop.history[-1]["eval/episode_return_mean"] == pytest.approx(expected, abs=0.12 if expected < 1 else 0.05)


@pytest.mark.slow
@pytest.mark.optimized
def test_a_resumed_run_is_bit_identical(tmp_path):
    overrides = ["system=ppo/rec_ppo", "arch.total_timesteps=256", "arch.num_evaluation=4", "env.time_limit=50"]

    def check(resumed):
        assert np.abs(resumed.state.shards.local.critic_hidden_state).max() > 0.0

    assert_resumed_equals_whole(
        lambda writer: training_loop(*overrides, "system.sequence_length=4", writer=writer), tmp_path, check
    )
