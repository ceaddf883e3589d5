import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Observation, Transition
from stoix_like.errors import ConfigError
from stoix_like.policies.make import make_policy
from stoix_like.systems.on_policy.networks import ActorCriticNetworks
from support.algorithms import make_algorithm
from support.comparisons import without_times
from support.compiled import run
from support.programs import make_program, train
from support.resumed import assert_resumed_equals_whole
from support.set_ups import loop_of, setup_of
from support.untrained import untrained

NETWORKS = ("actor", "critic")
SMALL = [
    *("arch.num_evaluation=1", "arch.absolute_metric=false", "arch.num_eval_episodes=8", "arch.total_num_envs=8"),
    *("system.rollout_length=12", "system.num_minibatches=2"),
]
PPO = [
    *("system=ppo/ff_ppo", "system.actor_lr=1e-2", "system.critic_lr=1e-2", "system.ent_coef=0"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[16]" for name in NETWORKS),
]
PQN = ["system.q_lr=1e-2", "network.actor_network.pre_torso.layer_sizes=[16]"]
MATCH, WAGES = ["env=own", "env._target_=support.games.Match"], ["env=own", "env._target_=support.games.Wages"]
BUDGET = ["arch.total_timesteps=24000", "system.epochs=2"]
HALF = ["system.gamma=0.5", "system.normalize_rewards=false", "system.normalize_observations=false"]
AGENTS = jax.device_put(Observation(np.eye(3), np.array([[True, True], [True, True], [True, False]])))


@pytest.mark.slow
def test_a_team_finds_the_best_actions_of_a_matrix_game_and_steps_count_games(tmp_path):
    """4000 // (8 x 12) = 41 updates; every game has three steps."""
    overrides = [*SMALL, *MATCH, *PPO[1:], "arch.total_timesteps=4000"]
    match = stoix_like.train("ppo/ff_ppo", overrides, run_dir=tmp_path / "run")
    assert match.eval_return == 24.0
    assert match.summary["env_steps"] == 41 * 96
    last = json.loads((match.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["eval/episode_length_mean"] == 3
    assert last["train/episodes"] == 41 * 96 / 3
    # Each agent is an episode of recorded data.
    header = stoix_like.collect(match.run_dir, 60, num_envs=4).header
    assert (header.steps, header.episodes, header.return_mean) == (60, 20, 24.0)
    # Whole games: a seventh step would be that of a third agent.
    assert stoix_like.collect(match.run_dir, 7, num_envs=4).header.episodes == 4
    assert "games of 2 agents, of which each episode is what one observed, did and earned" in header.notes[0]
    # Played games have the return of the team.
    visits = stoix_like.load_policy(match.run_dir, trust=True).play(episodes=5)
    assert visits.returns.tolist() == [24.0] * 5
    assert visits.finished.tolist() == [True] * 5
    assert np.unique(visits.episode).tolist() == list(range(10))


@pytest.mark.slow
def test_returns_of_training_are_those_of_samples_and_evaluations_are_greedy(tmp_path):
    """A team that learns nothing samples each pair of actions alike, for 3 a step; its mode always pays the same."""
    overrides = [*SMALL, *MATCH, *PPO[3:], "arch.total_timesteps=1920", "system.epochs=1", "system.actor_lr=1e-12"]
    result = stoix_like.train("ppo/ff_ppo", overrides, run_dir=tmp_path / "run")
    last = json.loads((result.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["train/episode_return_mean"] == pytest.approx(9.0, abs=1.2)
    assert result.eval_return in (0.0, 12.0, 24.0)
    assert last["eval/episode_return_std"] == 0.0


@pytest.fixture(scope="module")
def wages():
    overrides = [*SMALL, *WAGES, *PPO, *HALF, "network.share=false", "arch.total_timesteps=24000"]
    setup, program, arguments = make_program(overrides)
    before = jax.device_get(program.init(*arguments).shared.params)
    return make_algorithm(setup), before, train(overrides)[1].shared.params


def test_values_of_agents_are_bootstrapped_where_a_limit_cuts_the_game(wages):
    """Wages of 1, 2 and 3 per step are worth 2, 4 and 6 at a discount of one half."""
    algorithm, _, params = wages
    np.testing.assert_allclose(run(algorithm.networks.value, params, AGENTS), [2.0, 4.0, 6.0], atol=0.05)


def test_agents_with_networks_of_their_own_have_scales_of_their_own():
    """Those of agents whose rewards and advantages are 1, 10 and 1000 times as large are equal."""
    overrides = [*SMALL, *WAGES, *PPO, "network.share=false", "system.standardize_advantages=batch"]
    algorithm = make_algorithm(setup_of(*overrides))
    scale = np.tile([1.0, 10.0, 1000.0], 2)[None]
    values = jax.device_put(np.repeat(np.random.default_rng(0).normal(size=(5, 2)), 3, axis=1) * scale)
    found = np.asarray(run(algorithm.standardize, values, ("batch",))).reshape(-1, 3)
    np.testing.assert_allclose(found, found[:, :1] * np.ones(3), atol=1e-5)
    np.testing.assert_allclose([found.mean(), found.std()], [0, 1], atol=1e-5)
    flag = jnp.zeros((5, 6), bool)
    steps = Transition(None, None, values, flag, flag, None, flag, ())
    rewards = algorithm.rewards
    reward, _, returns = run(lambda steps: rewards.apply(rewards.init(), rewards.init_returns(6), steps), steps)
    by_agent = np.asarray(reward).reshape(-1, 3)
    np.testing.assert_allclose(by_agent, by_agent[:, :1] * np.ones(3), rtol=1e-4)
    assert returns.shape == (6,)


def test_agents_start_with_different_networks_of_their_own_and_a_dead_one_has_no_gradient(wages):
    """Its actor keeps the parameters that it starts with; its critic learns."""
    _, before, after = wages
    kernels = [leaf for leaf in jax.tree.leaves(before) if leaf.ndim == 3]
    assert all((kernel[0] != kernel[1]).any() for kernel in kernels)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).reshape(3, -1).max(1), before, after)
    actors = np.max(jax.tree.leaves(moved.actor_params), axis=0)
    assert (actors[:2] > 0).all()
    assert actors[2] == 0
    assert (np.max(jax.tree.leaves(moved.critic_params), axis=0) > 0).all()


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_values_of_a_team_are_sums_over_its_agents():
    """Value decomposition: wages of 1 + 2 + 3 per step are worth 12 to the team."""
    setup, state = train([*SMALL, *WAGES, "system=q_learning/ff_pqn_vdn", *PQN, *HALF[:2], *BUDGET])
    values = make_algorithm(setup).q(state.shared.params, AGENTS)
    np.testing.assert_allclose(values.max(-1).sum(), 12.0, atol=0.1)


@pytest.mark.parametrize("other", [None, "env.agent_ids=one_hot", "env.team_reward=true", "network.share=false"])
def test_a_shared_central_critic_that_cannot_tell_agents_apart_is_noted(other):
    given = ["arch.num_devices=1", *PPO, *WAGES, "+env.kwargs.world=true", "+observations=centralised"]
    notes = setup_of(*given, *filter(None, [other])).plan.notes
    assert any("the critic cannot tell them apart" in note for note in notes) == (other is None)


def test_the_critic_of_a_game_of_your_own_sees_what_all_agents_do():
    """Each of two agents observes who it is, `[2]`, and the world is both, `[4]`."""
    _, shared = untrained("arch.num_devices=1", *PPO, *MATCH, "+env.kwargs.world=true", "+observations=centralised")
    parts = shared.params[:2]
    inputs = [{leaf.shape[0] for leaf in jax.tree.leaves(part) if leaf.shape[1:] == (16,)} for part in parts]
    assert inputs == [{2}, {4}]


@pytest.mark.slow
def test_policies_of_games_know_wrappers_that_draw_for_each_row():
    policy = make_policy(*untrained(*PPO, *MATCH, "env.observation_noise=0.1", "arch.num_devices=1"), {})
    assert policy(jnp.eye(2)).shape == (2,)


CENTRALISED = [
    *("system=ppo/rec_ppo", *WAGES, "+env.kwargs.world=true", "+observations=centralised", "arch.num_devices=1"),
    *("arch.total_num_envs=4", "arch.total_timesteps=96", "arch.num_evaluation=4", "arch.num_eval_episodes=2"),
    *("system.rollout_length=6", "system.epochs=1", "system.num_minibatches=2", "arch.absolute_metric=false"),
    *("system.sequence_length=3", "arch.evaluation_greedy=false"),
    *(f"network.{name}_network.{torso}_torso.layer_sizes=[8]" for name in NETWORKS for torso in ("pre", "post")),
    *(f"network.{name}_network.rnn_layer.hidden_state_dim=8" for name in NETWORKS),
]


@pytest.mark.slow
def test_recurrent_agents_with_a_central_critic_resume_bit_identically(tmp_path):
    assert_resumed_equals_whole(lambda writer: loop_of(*CENTRALISED, writer=writer), tmp_path)


def trained(*overrides):
    run = loop_of(*CENTRALISED, *overrides)
    run.train()
    return without_times(run.history), jax.device_get(run.state.shared.params)


@pytest.mark.slow
def test_members_of_a_population_of_agents_are_the_runs_of_their_seeds():
    history, params = trained("arch.population.size=5", "arch.seed=3")
    for member in range(5):
        alone, own = trained(f"arch.seed={3 + member}")
        returns = [record["eval/episode_return_mean"][member] for record in history]
        assert returns == [record["eval/episode_return_mean"] for record in alone]
        of_member = jax.tree.map(lambda leaf, member=member: leaf[member], params)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), of_member, own)


@pytest.mark.slow
def test_agents_on_two_devices_are_those_of_two_update_batches():
    """Shards take the same keys wherever they lie, so that only sums may round differently."""
    _, batches = trained("arch.update_batch_size=2", "system.num_minibatches=1")
    _, devices = trained("arch.num_devices=2", "system.num_minibatches=1")
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), batches, devices)


@pytest.mark.slow
def test_exported_agents_act_like_the_policy(tmp_path):
    stoix_like.train("ppo/rec_ppo", CENTRALISED[1:], run_dir=tmp_path / "run")
    policy = stoix_like.load_policy(tmp_path / "run", greedy=True, trust=True)
    assert set(policy.input_shapes) == {"agent_view.own", "action_mask"}
    act = jax.export.deserialize(policy.export(tmp_path / "policy.stablehlo").read_bytes()).call
    state = policy.initial_state(3)
    view = Observation({"own": AGENTS.agent_view, "world": jnp.zeros((3, 9))}, AGENTS.action_mask)
    action, after = policy(view, state, np.ones(3, bool))
    key = jax.random.key_data(jax.random.key(0))
    found = act(AGENTS.agent_view, AGENTS.action_mask, *jax.tree.leaves(state), np.ones(3, bool), key)
    np.testing.assert_array_equal(found[0], action)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), list(found[1:]), jax.tree.leaves(after))


@pytest.mark.slow
def test_own_networks_export_one_agent_at_a_time(tmp_path):
    overrides = [*SMALL, *WAGES, *PPO[1:], "network.share=false", "arch.total_timesteps=400"]
    stoix_like.train("ppo/ff_ppo", overrides, run_dir=tmp_path / "run")
    policy = stoix_like.load_policy(tmp_path / "run", trust=True, agent=1)
    policy.export(tmp_path / "policy.stablehlo")
    with pytest.raises(ConfigError, match="this is only the policy of agent 1: load it without agent to play games"):
        policy.play(1)
    together = stoix_like.load_policy(tmp_path / "run", trust=True)
    assert policy(jax.tree.map(lambda x: x[1], AGENTS)) == together(AGENTS)[1]
    with pytest.raises(ConfigError, match="export the policy of one agent"):
        together.export(tmp_path / "all.stablehlo")
    with pytest.raises(ValueError, match="each of 3 agents has networks of its own"):
        together(jax.tree.map(lambda x: x[1], AGENTS))
    for agent in (3, True, 1.0):
        with pytest.raises(ConfigError, match=f"agent={agent} does not exist: use 0 to 2"):
            stoix_like.load_policy(tmp_path / "run", trust=True, agent=agent)


OWN = ["network.share=false", "arch.total_timesteps=800", "arch.num_evaluation=1", "arch.total_num_envs=8"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["ppo/ff_ppo_penalty"],
        ["ppo/ff_dpo", "system.vtrace=true"],
        ["vpg/ff_a2c", "arch.population.size=2"],
        ["ppo/ff_ppo", "arch.num_devices=2", "arch.update_batch_size=2", "+env.kwargs.world=true"],
        ["ppo/ff_ppo", "env._target_=support.games.Push", "system.sde_sample_freq=4"],
    ],
    ids=" ".join,
)
def test_own_networks_train_in_every_form(overrides, tmp_path):
    system, *others = overrides
    given = [*WAGES, *OWN, "system.rollout_length=4", *others]
    minibatches = [] if system == "vpg/ff_a2c" else ["system.num_minibatches=2"]
    result = stoix_like.train(system, [*given, *minibatches], run_dir=tmp_path / "run")
    assert np.isfinite(result.summary["eval/episode_return_mean"]).all()
    policy = stoix_like.load_policy(tmp_path / "run", trust=True)
    inspected = policy.inspect(policy.random_observations(jax.random.key(0), 3))
    assert inspected.value.shape == (3,)
