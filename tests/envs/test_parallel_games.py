import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Observation
from stoix_like.envs import factory
from stoix_like.envs.wrappers.agents import with_agent_ids
from stoix_like.errors import ConfigError, HostEnvironmentError
from stoix_like.policies.load import _of_agent
from stoix_like.policies.make import make_policy
from support.recordings import record
from support.untrained import untrained

pytest.importorskip("pettingzoo")

from gymnasium import spaces
from pettingzoo.utils.conversions import parallel_to_aec, parallel_wrapper_fn

from support.parallel_game import Alone, Errand, Kept, Known, Mixture, Painted, Push
from support.selections import first


def own(game=Errand, make=factory.make, **config):
    return make(factory.EnvConfig(env_name="own", **config), game)


def played(actions, game=Errand, num_rows=4, config=None, **kwargs):
    env = own(game, kwargs=kwargs, **config or {})
    keys = jax.random.split(jax.random.key(0), num_rows)
    state, timestep = jax.jit(env.reset)(keys)
    timesteps, step = [timestep], jax.jit(env.step)
    for action in actions:
        state, timestep = step(keys, state, np.asarray(action))
        timesteps.append(timestep)
    env.release(state)
    env.check()
    env.close()
    return timesteps


STEPS = [[1, 2, 0, 2], [1, 1, 0, 1], [0, 2, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0]]


def test_agents_are_rows_with_padded_views_and_masked_actions():
    timesteps = played(STEPS)
    views, masks = (
        [getattr(t.observation, name).tolist() for t in timesteps] for name in ("agent_view", "action_mask")
    )
    # The rows of a game are those of the short agent, whose view is padded, and of the long one.
    assert views[1] == [[1, 0], [1, 1]] * 2
    assert masks[0][:2] == [[True, True, False], [True, False, True]]
    assert masks[1][:2] == [[True, True, False], [True, True, True]]
    assert [t.reward.tolist() for t in timesteps[1:4]] == [[1, 2, 0, 2], [1, 1, 0, 1], [0, 2, 0, 0]]
    # An agent that left observes the state in which it leaves, then zeros, and has one action.
    assert (views[2][0], views[3][0]) == ([2, 0], [0, 0])
    assert masks[2][:2] == [[True, False, False], [True, True, True]]
    assert masks[3][0] == [True, False, False]


def changed(at, change, game=Errand, **attributes):
    """Return a game with a change of its observations, rewards, terminations, truncations and infos from a step on."""

    class Changed(game):
        def reset(self, seed=None, options=None):
            result = super().reset(seed, options)
            if at == 0:
                change(*result)
            return result

        def step(self, actions):
            result = super().step(actions)
            if self.count >= at:
                change(*result)
            return result

    return type("Changed", (Changed,), attributes)


@pytest.mark.parametrize(
    ("game", "message"),
    [
        (changed(0, lambda o, *_: o.update(long=np.float32(1))), r"observation of 'long' has shape \(\), and \(2,\)"),
        (changed(1, lambda o, *_: o.update(short=np.full(2, 1j)), Mixture), "complex128, and float32 is declared"),
        (changed(0, lambda o, *_: o.pop("long")), "no observation of 'long': return one of each agent that acts"),
        (changed(1, lambda o, *_: o.update(lnog=o.pop("long"))), "observation of 'lnog', no agent: .*'long'"),
        (changed(1, lambda o, r, *_: r.pop("long")), "no reward of 'long'"),
        (changed(1, lambda o, r, *_: r.update(long=np.ones(1))), r"reward of 'long' has shape \(1,\), and \(\)"),
        (changed(1, lambda o, r, t, *_: t.pop("short")), "no termination of 'short'"),
        (
            changed(1, lambda *result: result[-1].update(long={"action_mask": np.ones(2, bool)})),
            r"action_mask of 'long' has shape \(2,\), and \(3,\) is declared",
        ),
        (changed(1, lambda *_: None, Known, state=lambda game: np.zeros(1)), r"state\(\) has shape \(1,\), and \(2,\)"),
    ],
)
def test_what_a_game_returns_is_what_it_declares(game, message):
    with pytest.raises(HostEnvironmentError, match=message):
        played(STEPS, game, world=issubclass(game, Known))


def test_an_agent_that_returns_acts_again():
    class Back(Errand):
        def step(self, actions):
            result = super().step(actions)
            if self.count == 3:
                self.agents = list(self.possible_agents)
                result[0].update(self.observe())
            return result

    masks = [t.observation.action_mask[0].tolist() for t in played(STEPS[:3], Back)]
    assert [mask.count(True) for mask in masks] == [2, 2, 1, 2]


@pytest.mark.parametrize("cut", [True, False])
def test_a_game_ends_with_its_last_agent(cut):
    timesteps = played(STEPS, cut=cut)
    ends = [False, False, False, False, True, False]
    assert [(t.truncated if cut else t.terminated).tolist() for t in timesteps] == [[end] * 4 for end in ends]
    assert not any((t.terminated if cut else t.truncated).any() for t in timesteps)
    np.testing.assert_array_equal(timesteps[4].next_observation.agent_view[1], [4, 4])
    np.testing.assert_array_equal(timesteps[4].observation.agent_view[1], [0, 0])
    assert timesteps[4].episode.episode_return.tolist() == [8.0, 8.0, 4.0, 4.0]
    assert timesteps[4].episode.episode_length.tolist() == [4] * 4


@pytest.mark.parametrize("cut", [True, False])
def test_a_game_that_keeps_its_agents_ends_when_all_of_them_are_done(cut):
    """The last one to go on decides how; until then, the other one has one legal action."""
    timesteps = played([[1, 1]] * 4, Kept, 2, cut=cut)
    assert not any(t.terminated.any() or t.truncated.any() for t in timesteps[:4])
    assert [t.observation.action_mask[0].sum() for t in timesteps[:4]] == [2, 2, 1, 1]
    last = timesteps[4]
    assert (last.truncated if cut else last.terminated).tolist() == [True, True]
    assert last.next_observation.action_mask[1].all()


def test_a_class_with_the_methods_of_a_parallel_game_is_one():
    methods = {name: getattr(Errand, name) for name in dir(Errand) if not name.startswith("__")}
    plain = type("Plain", (), {**methods, "__init__": Errand.__init__})
    assert played([], plain)[0].observation.agent_view.shape == (4, 2)


def test_a_time_limit_truncates_the_game():
    timesteps = played([[0, 0]] * 3, num_rows=2, config={"time_limit": 3})
    assert [t.truncated.tolist() for t in timesteps] == [[False] * 2] * 3 + [[True] * 2]


def test_the_world_is_the_state_of_the_game():
    """The array of the state is the same in every step, and starts again before the last one is read."""
    timesteps = played(STEPS, Known, world=True)
    worlds = [t.next_observation.agent_view["world"].tolist() for t in timesteps[:5]]
    assert worlds == [[[count, 7]] * 4 for count in range(5)]
    assert timesteps[4].observation.agent_view["world"].tolist() == [[0, 7]] * 4
    assert timesteps[1].observation.agent_view["own"].tolist() == [[1, 0], [1, 1]] * 2


@pytest.mark.parametrize("state", [None, spaces.Box(0, 255, (4, 6, 3), np.uint8), spaces.Box(0, 9, (2,), np.uint8)])
def test_the_world_of_a_game_without_a_vector_of_floats_is_what_its_agents_observe(state):
    timesteps = played(STEPS, type("Bytes", (Known,), {"state_space": state}), world=True)
    # The short agent has left, and observes zeros.
    for step, world in ((1, [1, 0, 1, 1]), (3, [0, 0, 3, 3])):
        assert timesteps[step].observation.agent_view["world"].tolist() == [world] * 4


@pytest.mark.parametrize(
    ("game", "size"), [(Painted, 4), (parallel_wrapper_fn(lambda **kwargs: parallel_to_aec(Known(**kwargs))), 2)]
)
def test_constructors_that_take_any_argument_are_passed_no_world(game, size):
    assert played([], game, world=True)[0].observation.agent_view["world"].shape == (4, size)


def test_an_opponent_is_an_argument_of_the_game():
    opponents = []
    make = parallel_wrapper_fn(lambda opponent=None: opponents.append(opponent) or parallel_to_aec(Errand()))
    played([], make, opponent="tired")
    assert set(opponents) == {"tired"}


@pytest.mark.parametrize(
    ("kinds", "high"),
    [
        # Bytes beside numbers have no bounds, and numbers have those of all agents or none.
        (((np.uint8, 255), (np.float32, 1)), np.inf),
        (((np.float32, 1), (np.float32, 2)), np.inf),
        (((np.float32, 2), (np.float32, 2)), 2),
    ],
)
def test_bounds_of_observations_are_those_of_all_agents_or_none(kinds, high):
    space = own(Mixture, kwargs={"kinds": kinds}).observation_space
    assert (space.dtype, np.max(space.high), np.min(space.low)) == (np.float32, high, -high)


def test_an_agent_without_a_legal_action_has_all_of_its_own():
    timesteps = played([[1, 2, 1, 2]], Mixture)
    assert timesteps[0].observation.agent_view[:2].tolist() == [[255, 127], [1, 0.5]]
    for timestep in timesteps:
        assert timestep.observation.action_mask[:2].tolist() == [[True, True, False], [True, True, True]]


def test_one_agent_is_an_environment_like_any_other():
    timesteps = played([[2, 1], [1, 0], [0, 0], [0, 0]], Alone, 2)
    assert timesteps[1].observation.agent_view.tolist() == [[1, 1], [1, 1]]
    assert timesteps[0].observation.action_mask.tolist() == [[True, False, True]] * 2
    assert [t.reward.tolist() for t in timesteps[1:3]] == [[2, 1], [1, 0]]
    assert timesteps[4].truncated.tolist() == [True, True]
    assert timesteps[4].episode.episode_return.tolist() == [3, 1]
    view = played([[2, 1]], Alone, 2, world=True)[1].observation.agent_view
    assert {name: rows.tolist() for name, rows in view.items()} == {"own": [[1, 1]] * 2, "world": [[1, 1]] * 2}


def test_observations_by_name_have_the_numbers_and_legal_actions_of_agents():
    env = own(agent_ids="one_hot")
    view = with_agent_ids(env, env.unwrapped.view_of(Errand().reset()[0])).agent_view
    np.testing.assert_array_equal(view, [[0, 0, 1, 0], [0, 0, 0, 1]])
    assert view.shape[1:] == env.observation_space.shape
    one, two = np.zeros(1, np.float32), np.zeros(2, np.float32)
    seen = {"short": one, "long": {"observation": two, "action_mask": np.asarray([0, 1, 0])}}
    assert env.unwrapped.view_of(seen).action_mask.tolist() == [[True, True, False], [False, True, False]]
    for seen, words in (
        ({"shrt": one}, "of 'shrt', no agent: .*'short'"),
        ({"short": one + 0j}, "of 'short' .*complex"),
    ):
        with pytest.raises(ValueError, match=f"observation {words}"):
            env.unwrapped.view_of(seen)
    env.close()


@pytest.mark.slow
def test_the_policy_of_one_agent_predicts_its_action_alone():
    setup, shared = untrained(
        "system=ppo/ff_ppo", "env=own", "env._target_=support.parallel_game.Errand", "network.share=false"
    )
    game, policies = Errand().reset()[0], [make_policy(*_of_agent(setup, shared, agent), {}) for agent in range(2)]
    for agent, policy in enumerate(policies):
        policy.agent = agent
        action, _ = policy.predict(game)
        # The short agent observes one number, padded with 0, and has two of the three actions.
        row = Observation(np.zeros(2, np.float32), np.asarray([True, True, agent == 1]))
        assert action.shape == ()
        assert action == policy(row) == policy.predict(row)[0]
        policy.close()


@pytest.mark.parametrize("game", first(1, ["Errand", "Known"]))
def test_a_policy_needs_no_world_that_only_its_critic_sees(game):
    """The world of an errand is four numbers, and that of a known one two; each with those of two agents."""
    world = ["+env.kwargs.world=true", "+observations=centralised", "env.agent_ids=one_hot"]
    setup, shared = untrained("system=ppo/ff_ppo", "env=own", f"env._target_=support.parallel_game.{game}", *world)
    size = setup.env.observation_space.spaces["world"].shape[0]
    assert size == {"Errand": 4, "Known": 2}[game] + 2
    assert size in {leaf.shape[0] for leaf in jax.tree.leaves(shared.params.critic_params)}
    policy = make_policy(setup, shared, {})
    own = np.array([[0, 0, 1, 0], [0, 0, 0, 1]], np.float32)
    rows = Observation({"own": own}, np.asarray([[True, True, False], [True, False, True]]))
    start = Errand().reset()[0]
    seen = {"short": start["short"], "long": {"observation": start["long"], "action_mask": np.array([1, 0, 1])}}
    assert policy.predict(seen)[0].tolist() == policy(rows).tolist()
    policy.close()


@pytest.mark.parametrize("network", ["env.flatten_observation=true", "+network.observations.actor=agent_view.world"])
def test_an_actor_that_reads_the_state_of_a_game_refuses_observations_by_agent(network):
    overrides = ["env._target_=support.parallel_game.Known", "+env.kwargs.world=true", network]
    if network.startswith("+"):
        overrides.append("+network.observations.critic=agent_view.world")
    policy = make_policy(*untrained("system=ppo/ff_ppo", "env=own", *overrides), {})
    with pytest.raises(ValueError, match="the actor reads the game's state, which observations by agent lack"):
        policy.predict(Errand().reset()[0])
    policy.close()


def test_games_are_drawn_up_to_the_state_that_ends_them():
    """Of 4 x 1280 pixels, every second one is kept, in both directions."""
    env = own(Painted, factory.make_drawn)
    recording = record(env, 9, lambda shared, state, key: (state.carry, jnp.zeros(2, int), ()))
    env.close()
    assert env.scene().fps == 4
    assert recording.states.shape == (5, 2, 640, 3)
    assert recording.states[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    # One with pictures needs no render mode.
    plain = type("Plain", (Errand,), {"render": lambda self: np.zeros((4, 6, 3), np.uint8)})
    assert own(plain, factory.make_drawn).scene().fps == 30


@pytest.mark.parametrize(("game", "reason"), [(Errand, r" \(NotImpl.*\)"), (partial(Painted, length=4), "")])
def test_games_without_pictures_are_refused_and_closed(game, reason, monkeypatch):
    closed = []
    monkeypatch.setattr(Painted, "render", lambda self: None)
    monkeypatch.setattr(Errand, "close", lambda self: closed.append(self))
    with pytest.raises(ConfigError, match=rf"cannot be drawn{reason}: render\(\) must return a picture \[H, W, 3\]"):
        own(game, factory.make_drawn)
    # The one that tells the spaces, and the one to draw.
    assert len(closed) == 2


def test_a_game_whose_drawing_hangs_is_refused(monkeypatch):
    goes_on = threading.Event()
    monkeypatch.setattr(Painted, "render", lambda self: goes_on.wait())
    with pytest.raises(ConfigError, match="env.timeout=0.2: drawing Painted takes longer, or hangs"):
        own(Painted, factory.make_drawn, timeout=0.2)
    goes_on.set()


def test_agents_act_by_their_part_of_a_vector():
    timesteps = played([[[0.5, 2.0], [-1.0, 2.0]] * 2], Push)
    assert timesteps[1].reward.tolist() == [0.5, 1.0] * 2


@pytest.mark.parametrize(
    ("game", "config", "words"),
    [
        (Push, {"kwargs": {"highs": ((3,), (1, 2))}}, "Push: short acts in .*, and boxes with equal bounds, can be"),
        (Errand, {"vectorization": "async"}, "env.vectorization=async has no effect on Errand.*: use sync"),
        (Errand, {"vectorization": "envpool"}, "env.vectorization=envpool has no effect on Errand.*: use sync"),
        (Errand(), {}, "Errand is built already: pass its class"),
    ],
)
def test_what_does_not_fit_a_game_is_refused(game, config, words):
    with pytest.raises(ConfigError, match=words):
        own(game, **config)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["anakin", "sebulba"])
def test_agents_on_the_host_learn(arch, tmp_path):
    """The largest rewards: 1 in each of two steps, and 2 in each of four; evaluations play whole games."""
    overrides = [f"arch={arch}", "arch.total_timesteps=8192", "arch.total_num_envs=8", "arch.num_evaluation=1"]
    overrides += ["system.rollout_length=32", "system.actor_lr=3e-3", "arch.num_eval_episodes=4"]
    result = stoix_like.train("ppo/ff_ppo", overrides, env=Errand, run_dir=tmp_path / "run")
    assert result.eval_return == 10.0
    game = Errand()
    policy = stoix_like.load_policy(tmp_path / "run", env=Errand)
    assert policy.predict(game.reset()[0])[0].tolist() == [1, 2]
