import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from stoix_like.base_types import Observation
from stoix_like.envs import Box, Dict, Vectorize, check, factory, wrappers
from stoix_like.envs.environment import transition
from stoix_like.envs.scenes.base import from_pictures
from stoix_like.envs.wrappers.agents import where_rows
from stoix_like.errors import ConfigError, FaultyEnvironmentError
from support.compiled import run
from support.custom_envs import Corridor
from support.games import Match, Steps, Wages
from support.recordings import still
from support.selections import first

GAMES = 3
KEYS = jax.random.split(jax.random.key(0), 2 * GAMES)
ACTIONS = jnp.asarray([0, 1, 2, 0, 1, 2])


def config(**values):
    return factory.EnvConfig(env_name="own", **values)


def test_agents_of_a_game_have_rows_together_with_their_own_rewards():
    """An array `[A, N]` taken for `[N, A]` would give the rewards 0, 2, 1 to the first agents."""
    env = wrappers.AgentRows(Vectorize(Steps()))
    state, first = run(env.reset, KEYS)
    assert first.observation.agent_view[:, 0].tolist() == [0, 1] * GAMES
    assert first.reward.tolist() == [0] * 2 * GAMES
    assert jax.tree.leaves(state)[0].shape == (GAMES,)
    _, timestep = run(env.step, KEYS, state, ACTIONS)
    assert timestep.reward.tolist() == ACTIONS.tolist()
    assert timestep.observation.agent_view[:, 0].tolist() == [1, 2] * GAMES


def test_a_game_takes_the_key_of_its_first_agent():
    env, games = wrappers.AgentRows(Vectorize(Steps())), Vectorize(Steps())
    _, first = run(env.reset, KEYS)
    _, expected = games.reset(KEYS[::2])
    np.testing.assert_array_equal(first.observation.agent_view[::2], expected.observation.agent_view[:, 0])
    np.testing.assert_array_equal(first.observation.agent_view[1::2, 1], expected.observation.agent_view[:, 1, 1])


def test_a_team_receives_the_sum_or_its_own_reward():
    env = wrappers.AgentRows(Vectorize(Steps()), team_reward=True)
    assert env.team_reward
    state, _ = env.reset(KEYS)
    assert env.step(KEYS, state, ACTIONS)[1].reward.tolist() == [1, 1, 2, 2, 3, 3]
    match = wrappers.AgentRows(Vectorize(Match()), team_reward=True)
    state, _ = match.reset(KEYS)
    # (0, 1), (1, 0) and (1, 1): what the team receives is not summed again.
    assert match.step(KEYS, state, jnp.asarray([0, 1, 1, 0, 1, 1]))[1].reward.tolist() == [8, 8, 4, 4, 0, 0]


def test_a_world_is_what_all_agents_of_a_game_observe():
    """Each of two agents observes the steps so far, plus its number, and a number that is drawn for the game."""
    env = factory.make_eval(config(kwargs={"world": True}, agent_ids="one_hot"), Steps)
    state, first = run(env.reset, KEYS)
    view = first.observation.agent_view
    drawn = view["own"][::2, 1]
    for row in range(2 * GAMES):
        game = drawn[row // 2]
        np.testing.assert_array_equal(view["own"][row], [row % 2, game, *np.eye(2)[row % 2]])
        np.testing.assert_array_equal(view["world"][row], [0, game, 1, game, *np.eye(2)[row % 2]])
    _, timestep = run(env.step, KEYS, state, ACTIONS)
    assert timestep.next_observation.agent_view["world"][:, [0, 2]].tolist() == [[1, 2]] * 2 * GAMES
    assert {name: space.shape for name, space in env.observation_space.spaces.items()} == {"own": (4,), "world": (6,)}


@pytest.mark.parametrize(("base", "own", "world"), [(Steps, 2, 4), (Wages, 3, 9)])
def test_a_constructor_that_passes_arguments_on_takes_a_world_if_a_base_names_it(base, own, world):
    """Two agents observe two numbers each; three agents of wages three each, and a world of their own game."""
    wide = type("Wide", (base,), {"__init__": lambda self, **kwargs: base.__init__(self, **kwargs)})
    spaces = factory.make_eval(config(kwargs={"world": True}), wide).observation_space.spaces
    assert (spaces["own"].shape, spaces["world"].shape) == ((own,), (world,))


def test_a_world_of_images_has_the_channels_of_all_agents():
    class Looking(Match):
        observation_space = IMAGE

        def reset(self, key):
            state, first = super().reset(key)
            images = jnp.stack([jnp.full(IMAGE.shape, value, IMAGE.dtype) for value in (3, 4)])
            return state, first._replace(observation=Observation(images), next_observation=Observation(images))

    env = wrappers.worlds.AddWorld(Vectorize(Looking()))
    view = run(env.reset, KEYS)[1].observation.agent_view
    space, channels = env.observation_space.spaces["world"], IMAGE.shape[-1]
    assert (space.dtype, space.shape) == (view["world"].dtype, view["world"].shape[2:])
    assert space.shape == (*IMAGE.shape[:-1], 2 * channels)
    assert view["world"][0, 1, 0, 0].tolist() == [3] * channels + [4] * channels


class Cells(Steps):
    def __init__(self, space):
        super().__init__()
        self.observation_space = space

    def observe(self, count, drawn):
        zeros = self.observation_space.sample(jax.random.key(0))
        return Observation(jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), zeros))


VECTOR, IMAGE = Box(-1.0, 1.0, (3,)), Box(0.0, 1.0, (4, 4, 1))


def test_numbers_of_agents_are_appended_to_nested_vectors():
    cells = Cells(Dict({"cars": Dict({"place": VECTOR, "map": IMAGE})}))
    env = wrappers.AgentRows(Vectorize(cells), agent_ids="one_hot")
    view = run(env.reset, KEYS)[1].observation.agent_view["cars"]
    np.testing.assert_array_equal(view["place"][:, 3:], np.tile(np.eye(2), (GAMES, 1)))
    assert env.observation_space.spaces["cars"].spaces["place"].shape == (5,)
    assert view["map"].shape[1:] == (4, 4, 1)


def test_an_agent_is_drawn_as_it_sees_also_where_the_world_is_flattened():
    """A view has 16 numbers, and the world 32; of two stacked ones, the newest has a 1 in its first cell."""
    env = factory.make_drawn(config(kwargs={"world": True}, flatten_observation=True), Cells(IMAGE))
    view = np.zeros((1, 2 * 48))
    view[0, 48] = 1
    axes = Figure().add_subplot()
    env.scene().draw(axes, still(None, view))(0)
    bright = np.asarray(axes.images[0].get_array()).sum(-1) > 1
    assert np.argwhere(bright).tolist() == [[0, 0]]


def test_a_drawing_of_its_own_stays_that_of_a_game_with_a_world():
    scene = from_pictures(lambda state: state, fps=3)
    drawn = type("Drawn", (Cells,), {"scene": lambda self: scene})
    assert wrappers.worlds.AddWorld(Vectorize(drawn(IMAGE))).scene() is scene


@pytest.mark.parametrize("space", [IMAGE, Dict({"own": IMAGE, "world": VECTOR}), Dict({"own": Dict({"map": IMAGE})})])
def test_numbers_of_agents_need_a_vector(space):
    with pytest.raises(ConfigError, match=r"env\.agent_ids=one_hot appends to vectors of floats.* observe none"):
        wrappers.AgentRows(Vectorize(Cells(space)), agent_ids="one_hot")


def test_options_of_agents_are_refused_where_there_is_one():
    with pytest.raises(ConfigError, match="has one agent: leave it out"):
        factory.make(config(agent_ids="one_hot"), Corridor())


def test_where_rows_selects_rows_and_games():
    one, other = ({"row": sign * np.arange(1, 5), "game": sign * np.arange(1, 3)} for sign in (1, -1))
    chosen = run(where_rows, *jax.device_put((np.array([True, True, False, False]), one, other)))
    assert {name: leaf.tolist() for name, leaf in chosen.items()} == {"row": [1, 2, -3, -4], "game": [1, -2]}


def played(env, num_steps, num_agents=2):
    keys = jax.random.split(jax.random.key(0), num_agents)
    state, timestep = jax.jit(env.reset)(keys)
    timesteps, step = [timestep], jax.jit(env.step)
    for seed in range(num_steps):
        keys = jax.random.split(jax.random.key(seed), num_agents)
        state, timestep = step(keys, state, np.ones(num_agents, int))
        timesteps.append(timestep)
    return timesteps


def test_automatic_resets_restart_games_in_the_step_that_ends_them():
    timesteps = played(factory.make(config(), Steps()), 5)
    assert [t.terminated.tolist() for t in timesteps] == [[ends, ends] for ends in (0, 0, 1, 0, 1, 0)]
    assert [t.observation.agent_view[:, 0].tolist() for t in timesteps] == [[n, n + 1] for n in (0, 1, 0, 1, 0, 1)]
    assert timesteps[2].next_observation.agent_view[:, 0].tolist() == [2, 3]
    assert [t.episode.episode_length.tolist() for t in timesteps] == [[n, n] for n in (0, 1, 2, 1, 2, 1)]
    # The agents of a game are reset with one key.
    assert timesteps[2].observation.agent_view[0, 1] == timesteps[2].observation.agent_view[1, 1]


def test_a_time_limit_truncates_games_and_episodes_have_returns_of_team_and_agents():
    timesteps = played(factory.make(config(time_limit=2), Wages(terminates=True)), 3, num_agents=3)
    assert [t.truncated.tolist() for t in timesteps] == [[cut] * 3 for cut in (False, False, True, False)]
    assert not any(t.terminated.any() for t in timesteps)
    assert timesteps[2].episode.episode_return.tolist() == [12.0] * 3
    assert timesteps[2].episode.measures["agent_return"].tolist() == [2.0, 4.0, 6.0]


class OneView(Steps):
    def observe(self, count, drawn):
        return jax.tree.map(lambda leaf: leaf[0], super().observe(count, drawn))


class OneReward(Steps):
    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        return state, timestep._replace(reward=jnp.sum(timestep.reward))


class OwnEnds(Steps):
    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        ends = jnp.broadcast_to(timestep.terminated, (2,))
        return state, transition(timestep.observation, timestep.reward, ends, ends, {"odd": 0})


@pytest.mark.parametrize(
    ("game", "fault"),
    [
        (OneView, "give every array of it a leading axis of 2"),
        (OneReward, r"return one of each agent, \[2\], or declare team_reward = True"),
        (OwnEnds, "a game ends for all of its agents, return a scalar"),
    ],
)
def test_what_is_wrong_with_a_game_is_reported(game, fault):
    check.check_environment(Steps())
    with pytest.raises(FaultyEnvironmentError, match=fault):
        check.check_environment(game())


@pytest.mark.parametrize(
    ("values", "starts", "lengths"),
    first(
        3,
        [
            ({"auto_reset": "pool", "pool_size": 4}, 4, {2}),
            ({"auto_reset": "optimistic"}, 4, {2}),
            ({"auto_reset": "cached"}, GAMES, {2}),
            ({"staggered_starts": True, "time_limit": 5}, 12, {1, 2}),
            ({"sticky_actions": 0.5}, 12, {2}),
            ({"action_repeat": 2}, 24, {1}),
            ({"random_start_steps": 1}, 12, {1, 2}),
        ],
    ),
)
def test_games_stay_whole_in_every_wrapper(values, starts, lengths):
    """The agents of a game end together, see the same number drawn for it, and count the same steps.

    `starts` is the number of different games, or the least of it; `lengths` are those of the episodes that ended.
    """
    env, num_steps = factory.make(config(**values), Steps), 9

    def step(carry, key):
        state, _ = carry
        action = jax.random.randint(key, (2 * GAMES,), 0, 3)
        after = env.step(jax.random.split(key, 2 * GAMES), state, action)
        return after, after[1]

    keys = jax.random.split(jax.random.key(1), num_steps)
    steps = jax.jit(lambda: jax.lax.scan(step, env.reset(KEYS), keys)[1])()
    games = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(num_steps, GAMES, 2, *leaf.shape[2:]), steps)
    for flag in (games.terminated, games.truncated, games.episode.episode_length, games.episode.episode_return):
        np.testing.assert_array_equal(flag[..., 0], flag[..., 1])
    for view in (games.observation.agent_view, games.next_observation.agent_view):
        np.testing.assert_array_equal(view[..., 0, :] + np.asarray([1, 0]), view[..., 1, :])
    ended = (games.terminated | games.truncated)[..., 0]
    drawn = np.unique(games.observation.agent_view[ended][:, 0, 1])
    assert len(drawn) == starts if "auto_reset" in values else len(drawn) >= starts
    assert set(games.episode.episode_length[ended].ravel().tolist()) == lengths
