from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Observation
from stoix_like.data.files import content_hash, read_data
from stoix_like.envs import Box, Discrete, Vectorize
from stoix_like.envs.environment import Environment, restart, transition
from stoix_like.errors import ConfigError
from stoix_like.lab.analysis import learned
from stoix_like.lab.collect import _episodes, _identity
from stoix_like.policies import visits
from stoix_like.policies.formats import numpy_policy
from stoix_like.policies.visits import Player, Rows
from stoix_like.versions import versions
from support.countable_envs import KEY
from support.masked import MaskedParts
from support.trained_runs import SMALL


@pytest.fixture(scope="module")
def recorded(pendulum, tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "data.npz"
    return stoix_like.collect(pendulum, 90, num_envs=3, out=out), out


def test_whole_episodes_with_true_successors_are_written(recorded):
    data, out = recorded
    # The first batch of three has 60 steps, and two episodes of the second one are enough.
    assert data.episode_lengths.tolist() == [20] * 5
    assert len(data.valid) == 105
    rows = np.flatnonzero(data.valid)
    # The velocity of Pendulum after each row: v + (15 sin(angle) + 3 torque) * 0.05, clipped.
    _, sine, velocity = data.observation.agent_view.T
    following = np.clip(velocity + (15 * sine + 3 * data.action[:, 0]) * 0.05, -8, 8)
    np.testing.assert_allclose(velocity[rows + 1], following[rows], rtol=1e-4, atol=1e-4)
    assert (np.flatnonzero(data.truncated) % 21 == 19).all()
    assert not data.terminated.any()
    assert len(np.unique(data.episode_returns)) == 5
    header, found = data.header, read_data(out)
    assert (header.environment, header.system, header.policy) == ("gymnax/Pendulum-v1", "ppo/ff_ppo", "best")
    assert (header.arguments, len(header.run), header.versions) == ({"time_limit": 20}, 64, versions())
    assert "env steps; seed 0" in header.notes[0]
    assert found.header.to_json() == header.to_json()
    for name, array in data.arrays().items():
        np.testing.assert_array_equal(found.arrays()[name], array)


@pytest.mark.parametrize(
    ("replay", "evaluation", "recorded"),
    [
        (False, False, {"time_limit": 9}),
        (False, True, {"time_limit": 9, "randomization": "my.fn"}),
        (True, False, {"time_limit": 9, "randomization": "my.fn"}),
    ],
)
def test_evaluations_without_randomisation_record_data_without_it(replay, evaluation, recorded, tmp_path):
    (tmp_path / "config.yaml").touch()
    config = SimpleNamespace(
        env=SimpleNamespace(randomize_evaluation=evaluation),
        env_arguments={"time_limit": 9, "randomization": "my.fn"},
        scenario_name="suite/Arm-v0",
        system_name="sac/ff_sac",
        versions={},
    )
    header = _identity(SimpleNamespace(setup=SimpleNamespace(config=config), run_dir=tmp_path), "best", replay)
    assert header.arguments == recorded


def rows(lengths, end, num_rows=6):
    """Return rows of episodes, whose observations are 10 times their number and the step."""
    step, length = np.arange(num_rows)[None], np.array(lengths)[:, None]
    valid = step < length
    view = 10 * np.arange(len(lengths))[:, None] + step
    ends = (step == length - 1) & (end == "terminated")
    return Rows(view, 7 * valid, 7 * valid, ends, np.zeros_like(ends), valid)


def test_episodes_are_kept_by_their_number_and_not_by_their_length():
    data, cut = _episodes(rows([3, 1, 4, 1], "terminated"), 4)
    assert data.observation.tolist() == [0, 1, 2, 3, 10, 11]
    assert data.reward.tolist() == [7, 7, 7, 0, 7, 0]
    assert data.action.tolist() == [7, 7, 7, 0, 7, 0]
    assert np.flatnonzero(data.terminated).tolist() == [2, 4]
    assert cut == 0
    # One more step needs one more episode, and more than all steps need all.
    assert _episodes(rows([3, 1, 4, 1], "terminated"), 5)[0].observation.tolist()[-5:] == [20, 21, 22, 23, 24]
    assert _episodes(rows([3, 1], "terminated"), 100)[0].valid.sum() == 4
    # Those that nothing ends within the limit of steps are truncated.
    data, cut = _episodes(rows([5, 5], "never"), 6)
    assert (np.flatnonzero(data.truncated).tolist(), cut) == ([4, 10], 2)


class Lasting(Environment):
    """Episodes of 100 or of 1,000 steps; the view is the length of the episode."""

    observation_space = Box(0.0, 1000.0, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        length = jnp.where(jax.random.bernoulli(key, 0.1), 1000, 100)
        return (jnp.zeros((), jnp.int32), length), restart(self.view(length))

    def step(self, key, state, action):
        count, length = state
        return (count + 1, length), transition(self.view(length), 1.0, count + 1 >= length, False)

    def view(self, length):
        return Observation(length.astype(jnp.float32)[None])


def test_no_longer_episodes_are_played_than_the_first_that_have_enough_steps():
    system = SimpleNamespace(init_carry=lambda num_envs: ())
    player = Player(
        Vectorize(Lasting()), system, lambda shared, state, key: ((), jnp.zeros(32, int), ()), 32, max_steps=2000
    )
    whole = player.play((), KEY)
    lengths = whole.valid.sum(axis=1)
    assert set(lengths) == {100, 1000}
    # Up to the first long episode, without it and with it.
    before = int(np.argmax(lengths == 1000)) * 100
    assert before > 0
    for steps, rows_played in ((before - 1, 129), (before + 1, 1025)):
        found = player.play((), KEY, steps)
        assert found.valid.shape[1] == rows_played
        kept, expected = (_episodes(played, steps) for played in (found, whole))
        jax.tree.map(np.testing.assert_array_equal, kept, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"policy": "worst"}, "policy=worst is unknown: use best, last, sampled, random, mix:0.3"),
        ({"policy": "mix:1.5"}, "policy=mix:1.5 is unknown"),
        ({"policy": "12"}, "which=12 is unknown"),
        ({"seed": -1}, "seed=-1 is out of range"),
        ({"replay": True, "policy": "random"}, "replay=True takes what was stored"),
        ({"format": "csv"}, "format=csv is unknown: use npz or minari"),
        ({"format": "minari", "out": "pendulum.npz"}, "out=pendulum.npz: names of Minari end with a version"),
        ({"out": "missing/data.npz"}, "out=missing/data.npz: there is no directory missing: create it"),
        ({"member": 3}, "member=3 does not exist"),
    ],
)
def test_wrong_arguments_are_refused(pendulum, arguments, message):
    with pytest.raises(ConfigError, match=message):
        stoix_like.collect(pendulum, **arguments)


@pytest.mark.slow
def test_the_same_seed_records_the_same_bytes(pendulum, recorded, tmp_path):
    for seed in (0, 1):
        stoix_like.collect(pendulum, 90, num_envs=3, out=tmp_path / f"{seed}.npz", seed=seed)
    assert content_hash(tmp_path / "0.npz") == content_hash(recorded[1]) != content_hash(tmp_path / "1.npz")


@pytest.mark.slow
def test_policies_explore_as_they_are_told(pendulum, recorded):
    def record(**arguments):
        return stoix_like.collect(pendulum, 400, num_envs=20, **arguments)

    def differs(data, other):
        """Return the share of steps with other actions among the first, which start in the same states."""
        return (data.action[::21] != other.action[::21]).mean()

    kinds = ("best", "last", "sampled", "random", "mix:0.3")
    best, last, sampled, random, mixed = (record(policy=policy) for policy in kinds)
    noisy = record(noise=0.1)
    assert differs(sampled, last) == 1.0
    assert differs(random, best) == differs(noisy, best) == 1.0
    assert 0.05 < differs(mixed, best) < 0.6
    # Uniform torques between -2 and 2 have the deviation 4 / sqrt(12).
    torque = random.action[random.valid]
    assert torque.std() == pytest.approx(4 / np.sqrt(12), rel=0.1)
    assert abs(torque).max() <= 2.0
    assert (noisy.action - best.action)[::21].std() == pytest.approx(0.2, rel=0.6)
    assert noisy.header.policy == "best+noise:0.1"
    assert (random.header.notes, mixed.header.policy) == (("seed 0",), "mix:0.3")


@pytest.mark.slow
def test_members_and_discrete_actions(members):
    with pytest.raises(ConfigError, match="noise=0.1 has no effect on gymnax/CartPole-v1: use policy=mix:0.3"):
        stoix_like.collect(members, noise=0.1)
    data = stoix_like.collect(members, 200, member=1, policy="mix:0.5", num_envs=4)
    assert data.action.dtype == np.int32
    assert set(np.unique(data.action)) == {0, 1}
    # The position after a step: x + 0.02 velocity.
    x, velocity = data.observation.agent_view[:, 0], data.observation.agent_view[:, 1]
    at = np.flatnonzero(data.valid)
    np.testing.assert_allclose(x[at + 1], x[at] + 0.02 * velocity[at], atol=1e-5)
    other = stoix_like.collect(members, 200, member=0, policy="mix:0.5", num_envs=4)
    assert other.header.return_mean != data.header.return_mean


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo/ff_ppo", "ppo/rec_ppo"])
@pytest.mark.parametrize("env", ["gymnasium/cartpole", "gymnax/cartpole"])
def test_environments_on_the_host_and_recurrent_policies(system, env, tmp_path):
    """Episodes differ in length; those that are kept do not depend on it, and all of them end."""
    if env.startswith("gymnasium"):
        pytest.importorskip("gymnasium")
    small = [*SMALL, f"env={env}", "arch.total_timesteps=128", "arch.num_evaluation=1"]
    stoix_like.train(system, small, run_dir=tmp_path / "run")
    data = stoix_like.collect(tmp_path / "run", 300, policy="sampled", num_envs=4)
    assert data.header.steps >= 300 > data.header.steps - data.episode_lengths[-1]
    assert len(np.unique(data.episode_lengths)) > 3
    np.testing.assert_array_equal(data.episode_returns, data.episode_lengths)
    x, velocity = data.observation.agent_view[:, 0], data.observation.agent_view[:, 1]
    at = np.flatnonzero(data.valid)
    np.testing.assert_allclose(x[at + 1], x[at] + 0.02 * velocity[at], atol=1e-5)
    # Episodes start near the origin, and end where the cart or the pole has left its bounds.
    starts = np.append(0, np.flatnonzero(~data.valid)[:-1] + 1)
    ends = ~data.valid
    assert abs(data.observation.agent_view[starts]).max() <= 0.05
    assert (abs(data.observation.agent_view[ends][:, 2]) > 0.2095).mean() > 0.9
    assert data.terminated.sum() == data.header.episodes


@pytest.mark.slow
def test_random_actions_are_legal_and_parts_stand_side_by_side(tmp_path):
    """In step t, the choices t mod 2 and t are illegal; an illegal one costs 1 and ends the episode of three steps."""
    small = ["logger=silent", "arch.total_num_envs=4", "system.rollout_length=16", "system.num_minibatches=2"]
    overrides = [*small, "arch.total_timesteps=64", "arch.num_evaluation=1", "arch.num_eval_episodes=2"]
    stoix_like.train("ppo/ff_ppo", overrides, env=MaskedParts, run_dir=tmp_path / "run")
    data = stoix_like.collect(tmp_path / "run", 30, policy="random", num_envs=4, out=tmp_path / "data.npz", trust=True)
    assert data.episode_lengths.tolist() == [3] * 10
    assert not data.reward.any()
    step = np.tile(np.arange(4), 10)
    first, second = (data.action[:, column][data.valid] for column in (0, 3))
    assert not (first == step[data.valid] % 2).any()
    assert not (second == step[data.valid]).any()
    assert len(np.unique(data.action[:, 1])) > 20
    np.testing.assert_array_equal(data.observation.action_mask[:, 0], step % 2 != 0)
    np.testing.assert_array_equal(
        read_data(tmp_path / "data.npz").observation.action_mask, data.observation.action_mask
    )


def test_every_step_of_an_episode_draws_numbers_of_its_own():
    system = SimpleNamespace(init_carry=lambda num_envs: ())
    act = lambda shared, state, key: ((), jax.random.randint(key, (32,), 0, 2), ())  # noqa: E731
    played = Player(Vectorize(Lasting()), system, act, 32, max_steps=256).play((), KEY)
    long = played.valid.sum(axis=1) == 256
    assert long.any()
    assert not np.array_equal(played.action[long, :128], played.action[long, 128:256])


def test_returns_of_agents_with_rewards_of_their_own_are_summed(monkeypatch):
    monkeypatch.setattr(visits.Player, "__init__", lambda self, *args: None)
    monkeypatch.setattr(visits.Player, "play", lambda self, shared, key: rows([3, 1], "terminated"))
    system, found = SimpleNamespace(eval_act=None), []
    for has_team in (False, True):
        env = SimpleNamespace(num_agents=2, team_reward=has_team)
        found += visits.play(env, system, (), 1, 9, 0).returns.tolist()
    assert found == [28.0, 21.0]


@pytest.mark.slow
def test_actions_keep_the_start_that_the_environment_counts_from(tmp_path, monkeypatch):
    """The environment refuses actions outside of `Discrete(3, start=-1)`."""
    given = ["env=gymnasium", "env.scenario.name=support.scripted:Scripted-v0", "arch.num_eval_episodes=2"]
    options = [*given, "arch.total_timesteps=64", "arch.num_evaluation=1", "arch.total_num_envs=2", "logger=silent"]
    run_dir = stoix_like.train("ppo/ff_ppo", [*options, "system.rollout_length=16"], run_dir=tmp_path / "run").run_dir
    data = stoix_like.collect(run_dir, 60, policy="random", out=tmp_path / "data.npz")
    assert set(data.action.tolist()) == {-1, 0, 1}
    offline = [*given, "arch=offline", "arch.num_evaluation=1", f"system.data={tmp_path / 'data.npz'}"]
    stoix_like.train("offline/bc", [*offline, "arch.total_timesteps=8", "logger=silent"], run_dir=tmp_path / "bc")
    policy = stoix_like.load_policy(run_dir)
    assert policy.action_space == Discrete(3, start=-1)
    views = data.observation.agent_view
    actions, _ = policy.predict(views)
    assert set(actions.tolist()) <= {-1, 0, 1}
    np.testing.assert_array_equal(numpy_policy.load(policy.export(tmp_path / "policy.npz"))(views), actions)
    played = policy.play(2)
    drawn = []
    monkeypatch.setattr(learned, "histogram", lambda values, *args, **kwargs: drawn.append(values))
    for draw in learned._action_histograms(policy, played):
        draw()
    assert 0 <= drawn[0].min() <= drawn[0].max() <= 2
