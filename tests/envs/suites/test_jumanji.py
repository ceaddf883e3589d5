import dataclasses
import functools

import jax
import jax.numpy as jnp
import jumanji
import numpy as np
import pytest

from stoix_like.envs import Discrete, make, make_eval
from stoix_like.envs.suites.jumanji import scenarios
from support import conformance

pytestmark = pytest.mark.slow

env_config = functools.partial(conformance.env_config, "jumanji")
# Episodes that legal moves never end within three steps.
LIMITED = ("Snake-v1", "RubiksCube-v0", "Cleaner-v0", "Maze-v0", "MMST-v0", "PacMan-v1", "RobotWarehouse-v0",
           "SlidingTilePuzzle-v0", "Tetris-v0")  # fmt: skip


def first_legal(env):
    space = env.action_space

    def act(timestep):
        mask = timestep.observation.action_mask
        if mask is None:
            return jnp.zeros((len(timestep.reward), *space.shape), jnp.int32)
        if isinstance(space, Discrete):
            return jnp.argmax(mask, -1)
        parts = jnp.split(mask, np.cumsum(space.nvec)[:-1], -1)
        return jnp.stack([jnp.argmax(part, -1) for part in parts], -1)

    return act


# Environments of several agents, and arguments that make their programs small.
BY_AGENT = {
    "Cleaner-v0": {"num_rows": 5, "num_cols": 5, "num_agents": 2, "by_agent": True},
    "Connector-v3": {"grid_size": 5, "num_agents": 2},
    "LevelBasedForaging-v0": {"grid_size": 5, "fov": 5, "num_food": 1},
    "MultiCVRP-v0": {"num_customers": 6},
    "RobotWarehouse-v0": {
        **{"shelf_rows": 1, "column_height": 3, "num_agents": 2, "request_queue_size": 2},
        "by_agent": True,
    },
    "SearchAndRescue-v0": {"num_targets": 3},
}


@pytest.mark.parametrize("name", [name for name in scenarios() if name not in BY_AGENT or "by_agent" in BY_AGENT[name]])
def test_protocol(name):
    # Snake is the cheapest.
    conformance.check("jumanji", name, **({} if name == "Snake-v1" else {"num_steps": 200}))


@pytest.mark.parametrize("name", ["Snake-v1", "Tetris-v0", "Knapsack-v1", "Cleaner-v0"])
def test_an_episode_equals_one_of_the_bare_suite(name):
    # Legal moves may never end these.
    kwargs = {"time_limit": 20} if name in LIMITED else {}
    env, bare = make(env_config(name, kwargs=kwargs)), jumanji.make(name, **kwargs)
    num_steps = 50
    first, actions, steps = conformance.rollout(env, num_steps, num_envs=1)
    with jax.numpy_rank_promotion("allow"):
        reset_key, steps_key = jax.random.split(jax.random.key(0))
        state, timestep = jax.jit(bare.reset)(jax.random.key_data(jax.random.split(reset_key, 1)[0]))
        keys = jax.vmap(lambda key: jax.random.split(key, 1)[0])(conformance.keys_of_steps(steps_key, num_steps)[1])
        step = jax.jit(lambda state, action, key: bare.step(with_key(state, key), action))
        check_observation(first.observation, timestep.observation, 0)
        for t in range(num_steps):
            action = actions[t, 0]
            if name == "Tetris-v0":
                action = np.asarray(divmod(action, 10))
            state, timestep = step(state, action, keys[t])
            np.testing.assert_allclose(steps.reward[t, 0], timestep.reward, rtol=1e-6)
            assert (steps.terminated | steps.truncated)[t, 0] == timestep.last()
            if timestep.last():
                return
            check_observation(jax.tree.map(lambda x, t=t: x[t], steps.next_observation), timestep.observation, 0)
    pytest.fail("the episode did not end")


def with_key(state, key):
    key = jax.random.key_data(key)
    return state._replace(key=key) if hasattr(state, "_replace") else dataclasses.replace(state, key=key)


@pytest.mark.parametrize("name", ["Game2048-v1", "Tetris-v0"])
def test_random_events_are_those_of_the_key_of_the_step(name):
    """A state that is used again, as a start or by a search, does not hold what follows."""
    env = make_eval(env_config(name))
    one = jnp.stack([jax.random.key(0)] * 16)
    state, timestep = env.reset(one)
    action = first_legal(env)(timestep)

    def distinct(keys):
        board = env.step(keys, state, action)[1].observation.agent_view
        return len(np.unique(np.concatenate([leaf.reshape(16, -1) for leaf in jax.tree.leaves(board)], -1), axis=0))

    assert distinct(one) == 1
    # Two kinds of tiles in several places, or one of seven pieces.
    assert distinct(jax.random.split(jax.random.key(1), 16)) >= 3


def check_observation(found, native, n):
    native = {name: getattr(native, name) for name in native._fields}
    np.testing.assert_array_equal(found.action_mask[n], np.ravel(native.pop("action_mask")))
    native.pop("step_count", None)
    views = found.agent_view if isinstance(found.agent_view, dict) else dict.fromkeys(native, found.agent_view)
    assert views.keys() == native.keys()
    for name, value in native.items():
        np.testing.assert_allclose(views[name][n], value)


@pytest.mark.parametrize("name", LIMITED)
def test_time_limit_truncates(name):
    act = first_legal(make(env_config(name)))
    conformance.check_time_limit("jumanji", name, 3, actions=act, kwargs={"time_limit": 3})


def test_end_of_the_task_at_the_time_limit_terminates():
    """A snake that always moves up leaves the board after some steps, whatever the limit."""

    def ends(limit):
        env = make_eval(env_config("Snake-v1", kwargs={"time_limit": limit}))
        key = jax.random.split(jax.random.key(2), 1)

        def step(state, _):
            state, timestep = env.step(key, state, jnp.zeros((1,), jnp.int32))
            return state, (timestep.terminated[0], timestep.truncated[0])

        return [np.asarray(flag) for flag in jax.jit(lambda: jax.lax.scan(step, env.reset(key)[0], length=12)[1])()]

    terminated, truncated = ends(100)
    last = int(np.argmax(terminated))
    assert last > 1
    assert not truncated[: last + 1].any()
    terminated, truncated = ends(last + 1)
    assert terminated[last]
    assert not truncated[: last + 1].any()
    terminated, truncated = ends(last)
    assert truncated[last - 1]
    assert not terminated[:last].any()


@pytest.mark.parametrize("name", [name for name in BY_AGENT if name not in ("MultiCVRP-v0", "SearchAndRescue-v0")])
def test_agents_are_truncated_together(name):
    """With legal actions, nothing ends these games so early but their limit; a few of them may be solved by chance."""
    kwargs = {**BY_AGENT[name], "time_limit": 4}
    _, _, steps = conformance.check_games("jumanji", name, 8, kwargs=kwargs)
    assert (steps.episode.episode_length[steps.truncated] == 4).all()
    assert steps.truncated.any()
    conformance.check_carry(make_eval(env_config(name, kwargs=kwargs)))


def test_a_search_terminates_at_its_limit():
    """Its rewards shrink with each step, to nothing at the limit: there is no value beyond."""
    env = make(env_config("SearchAndRescue-v0", kwargs={"num_targets": 30, "time_limit": 4}))
    _, _, steps = conformance.player(env, 8, 2)(jax.random.key(0))
    assert steps.terminated.tolist() == [[(t + 1) % 4 == 0] * 2 for t in range(8)]
    assert not steps.truncated.any()
    conformance.check_carry(make_eval(env_config("SearchAndRescue-v0", kwargs={"num_targets": 3, "time_limit": 4})))


@pytest.mark.parametrize("name", list(BY_AGENT))
def test_games_of_agents_equal_those_of_the_bare_suite(name):
    """Rows are agents: each has its own view, mask and reward, or that of the team, at the step of its action."""
    num_steps = 15
    env = make_eval(env_config(name, kwargs=BY_AGENT[name]))
    bare = env.unwrapped.env._env
    keys = jax.random.split(jax.random.key(1), env.num_agents)
    sample = jax.vmap(env.action_space.sample)

    @jax.jit
    def ours():
        def step(carry, key):
            state, timestep = carry
            action = sample(jax.random.split(key, env.num_agents), timestep.observation.action_mask)
            after = env.step(keys, state, action)
            return after, (action, after[1])

        start = env.reset(keys)
        return start[1], *jax.lax.scan(step, start, jax.random.split(jax.random.key(2), num_steps))[1]

    def check_views(rows, native):
        for key in {"agents_view", "searcher_views"} & set(getattr(native, "_fields", None) or vars(native)):
            np.testing.assert_allclose(rows[key] if isinstance(rows, dict) else rows, getattr(native, key), rtol=1e-5)

    def masks(observation):
        mask = getattr(observation, "action_mask", None)
        return None if mask is None else np.asarray(mask, bool)

    first, actions, steps = jax.tree.map(np.asarray, ours())
    with jax.numpy_rank_promotion("allow"):
        state, timestep = bare.reset(jax.random.key_data(keys[0]))
        bare_step = jax.jit(bare.step)
        np.testing.assert_array_equal(first.observation.action_mask, masks(timestep.observation))
        check_views(first.observation.agent_view, timestep.observation)
        for t in range(num_steps):
            state, timestep = bare_step(with_key(state, keys[0]), actions[t])
            np.testing.assert_allclose(
                steps.reward[t], np.broadcast_to(timestep.reward, env.num_agents), rtol=1e-5, atol=1e-6
            )
            successor = jax.tree.map(lambda leaf, t=t: leaf[t], steps.next_observation.agent_view)
            check_views(successor, timestep.observation)
            assert (steps.terminated | steps.truncated)[t, 0] == timestep.last()
            if timestep.last():
                break
            if masks(timestep.observation) is not None:
                found = steps.next_observation.action_mask[t]
                rows = masks(timestep.observation)
                np.testing.assert_array_equal(found[rows.any(-1)], rows[rows.any(-1)])


def test_agents_see_themselves_first():
    connector = make_eval(env_config("Connector-v3", kwargs=BY_AGENT["Connector-v3"]))
    keys = jax.random.split(jax.random.key(0), 2)
    one, two = np.asarray(connector.reset(keys)[1].observation.agent_view)
    for own, other in ((1, 4), (2, 5), (3, 6)):
        np.testing.assert_array_equal(one == own, two == other)
        np.testing.assert_array_equal(one == other, two == own)
    cvrp = make_eval(env_config("MultiCVRP-v0", kwargs=BY_AGENT["MultiCVRP-v0"]))
    view = cvrp.reset(keys)[1].observation.agent_view
    np.testing.assert_array_equal(view["vehicles"]["coordinates"][0], view["vehicles"]["coordinates"][1, ::-1])
    np.testing.assert_array_equal(view["nodes"]["coordinates"][0], view["nodes"]["coordinates"][1])
    assert (cvrp.team_reward, connector.team_reward) == (True, False)


def test_the_world_of_agents():
    kwargs = {**BY_AGENT["RobotWarehouse-v0"], "world": True}
    env = make_eval(env_config("RobotWarehouse-v0", kwargs=kwargs))
    view = env.reset(jax.random.split(jax.random.key(0), 2))[1].observation.agent_view
    np.testing.assert_array_equal(view["world"], np.stack([np.ravel(view["own"])] * 2))
    assert env.observation_space.spaces["world"].shape == (132,)


def test_sizes_are_arguments():
    snake = make(env_config("Snake-v1", kwargs={"num_rows": 5.0, "num_cols": "6"}))
    assert snake.observation_space.shape == (5, 6, 5)
    assert snake.action_space == Discrete(4)
