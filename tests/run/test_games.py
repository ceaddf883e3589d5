"""Tests of runs in games of several agents."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Observation
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.run.set_up.setup import set_up
from stoix_like.systems.on_policy.networks import ActorCriticNetworks
from support.algorithms import make_algorithm
from support.composed import compose_config
from support.programs import make_program, train

SMALL = [
    *("arch.num_evaluation=1", "arch.absolute_metric=false", "arch.num_eval_episodes=8", "arch.total_num_envs=8"),
    *("system.rollout_length=12", "system.num_minibatches=2"),
]
PPO = [
    *("system=ppo/ff_ppo", "system.actor_lr=1e-2", "system.critic_lr=1e-2", "system.ent_coef=0"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[16]" for name in ("actor", "critic")),
]
PQN = ["system.q_lr=1e-2", "network.actor_network.pre_torso.layer_sizes=[16]"]
MATCH, WAGES = ["env=own", "env._target_=support.games.Match"], ["env=own", "env._target_=support.games.Wages"]
BUDGET = ["arch.total_timesteps=24000", "system.epochs=2"]
HALF = ["system.gamma=0.5", "system.normalize_rewards=false", "system.normalize_observations=false"]
AGENTS = Observation(jnp.eye(3), jnp.asarray([[True, True], [True, True], [True, False]]))


@pytest.fixture(scope="module")
def match(tmp_path_factory):
    overrides = [*SMALL, *MATCH, *PPO[1:], "arch.total_timesteps=4000"]
    return stoix_like.train("ppo/ff_ppo", overrides, run_dir=tmp_path_factory.mktemp("runs") / "run")


def test_a_team_finds_the_best_actions_of_a_matrix_game(match):
    """The action of each agent is right only with that of the other; 3 steps of 8."""
    assert match.eval_return == 24.0


def test_steps_count_games(match):
    """4000 // (8 x 12) = 41 updates; every game has three steps."""
    assert match.summary["env_steps"] == 41 * 96
    last = json.loads((match.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["eval/episode_length_mean"] == 3
    assert last["train/episodes"] == 41 * 96 / 3


@pytest.fixture(scope="module")
def wages():
    """Train networks of each agent's own in the game that a limit cuts; return the algorithm and the parameters."""
    overrides = [*SMALL, *WAGES, *PPO, *HALF, "network.share=false", "arch.total_timesteps=24000"]
    setup, program, arguments = make_program(overrides)
    before = jax.device_get(program.init(*arguments).shared.params)
    return make_algorithm(setup), before, train(overrides)[1].shared.params


def test_values_of_agents_are_bootstrapped_where_a_limit_cuts_the_game(wages):
    """Wages of 1, 2 and 3 per step are worth 2, 4 and 6 at a discount of one half; without bootstrapping, 1.75 times."""
    algorithm, _, params = wages
    np.testing.assert_allclose(algorithm.networks.value(params, AGENTS), [2.0, 4.0, 6.0], atol=0.05)


def test_a_dead_agent_has_no_gradient(wages):
    """With networks of its own, its actor keeps the parameters that it starts with; its critic learns."""
    _, before, after = wages
    moved = jax.tree.map(lambda a, b: np.abs(a - b).reshape(3, -1).max(1), before, after)
    actors = np.max(jax.tree.leaves(moved.actor_params), axis=0)
    assert (actors[:2] > 0).all()
    assert actors[2] == 0
    assert (np.max(jax.tree.leaves(moved.critic_params), axis=0) > 0).all()


def test_agents_start_with_different_networks_of_their_own(wages):
    _, before, _ = wages
    kernels = [leaf for leaf in jax.tree.leaves(before) if leaf.ndim == 3]
    assert all((kernel[0] != kernel[1]).any() for kernel in kernels)


def test_policies_of_own_networks_are_those_of_each_agent_apart(wages):
    """Log-probabilities, entropies and modes of rows `[T, N * A]` are those of one agent with its parameters."""
    algorithm, _, params = wages
    networks, obs = algorithm.networks, jax.tree.map(lambda x: jnp.tile(x, (2, 2) + (1,) * (x.ndim - 1)), AGENTS)
    obs = jax.tree.map(lambda x: x.reshape(2, 6, -1), obs)
    policy, action = networks.policy(params, obs), jnp.asarray([[0, 1, 0, 1, 1, 0], [1, 1, 0, 0, 0, 0]])
    assert policy.batch_shape == (2, 6)
    assert policy.sample(seed=jax.random.key(0)).shape == (2, 6)
    for agent in range(3):
        of_agent = jax.tree.map(lambda leaf, agent=agent: leaf[agent], params)
        one = ActorCriticNetworks.policy(networks, of_agent, jax.tree.map(lambda x, agent=agent: x[:, agent::3], obs))
        close = partial(np.testing.assert_allclose, rtol=1e-6)
        close(policy.log_prob(action)[:, agent::3], one.log_prob(action[:, agent::3]))
        close(policy.entropy(seed=jax.random.key(0))[:, agent::3], one.entropy(seed=jax.random.key(0)))
        close(policy.mode()[:, agent::3], one.mode())


def test_the_values_of_a_team_are_sums_over_its_agents():
    """Value decomposition: wages of 1 + 2 + 3 per step are worth 12 to the team."""
    setup, state = train([*SMALL, *WAGES, "system=q_learning/ff_pqn_vdn", *PQN, *HALF[:2], *BUDGET])
    values = make_algorithm(setup).q(state.shared.params, AGENTS)
    np.testing.assert_allclose(values.max(-1).sum(), 12.0, atol=0.1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*WAGES, *PPO, "network.share=2"], "network.share=2 must be true or false"),
        (["network.share=false"], "network.share=false has no effect: gymnax/CartPole-v1 has one agent"),
        ([*WAGES, "system=ppo/rec_ppo", "network.share=false"], "system=ppo/rec_ppo has the same networks for all"),
        ([*WAGES, "system=search/ff_az"], "plans the actions of one agent"),
        (["env.team_reward=true"], "env.team_reward=true has no effect: gymnax/CartPole-v1 has one agent"),
        ([*WAGES, *PPO, "system.num_minibatches=5"], "system.num_minibatches=5 must divide"),
    ],
)
def test_what_does_not_fit_games_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        set_up(parse_config(compose_config(["arch.num_devices=1", *overrides])))
