import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import make
from stoix_like.envs.suites import memory
from support.conformance import env_config

# YAML reads 1e1 as a float.
RECALL = {
    "repeat_first": {"length": 6.0, "num_symbols": 3},
    "repeat_previous": {"delay": 2.0, "length": 7, "num_symbols": 3},
    "count_recall": {"num_symbols": 3, "copies": 2.0},
    "autoencode": {"length": 4, "num_symbols": 3},
}


def seen(name, view):
    """Return the first symbol that a view shows, None for none, and the entries after it."""
    size = RECALL[name]["num_symbols"]
    return (int(np.argmax(view[:size])) if view[:size].any() else None), view[size:]


def answers(name, history):
    """Return the right action after the views of an episode so far, None where there is no question."""
    symbols = [seen(name, view)[0] for view in history]
    if name == "repeat_first":
        return symbols[0]
    if name == "repeat_previous":
        return symbols[-3] if len(symbols) > 2 else None
    if name == "count_recall":
        return symbols.count(int(np.argmax(seen(name, history[-1])[1])))
    return symbols[len(history) - 5] if history[-1][-1] else None


@pytest.mark.parametrize("name", RECALL)
def test_memory_of_the_views_earns_one_and_wrong_answers_minus_one(name):
    env = make(env_config("memory", name, kwargs=RECALL[name])).unwrapped
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    for seed, wrong in itertools.product(range(3), (False, True)):
        keys = jax.random.split(jax.random.key(seed), 1)
        state, timestep = reset(keys)
        history, earned, ended = [np.asarray(timestep.observation.agent_view[0])], 0.0, False
        while not ended:
            right = answers(name, history)
            action = 0 if right is None else (right + wrong) % env.action_space.n
            state, timestep = step(keys, state, jnp.full((1,), action))
            assert (right is None) == (float(timestep.reward[0]) == 0.0)
            earned, ended = earned + float(timestep.reward[0]), bool(timestep.terminated[0])
            history.append(np.asarray(timestep.observation.agent_view[0]))
        assert earned == pytest.approx(-1.0 if wrong else 1.0)


def test_t_maze_rewards_the_turn_that_the_cue_tells_and_charges_detours():
    env = memory.TMaze(length=3.0, penalty=0.25)
    step = jax.jit(env.step)
    for seed in range(4):
        for turn in (1, 2):
            state, timestep = env.reset(jax.random.key(seed))
            goal = 1 + int(np.argmax(timestep.observation.agent_view[:2]))
            rewards, views = [], []
            # A bump, the corridor, and one step straight on at the junction.
            for action in (2, 0, 0, 0, 0, turn):
                state, timestep = step(jax.random.key(9), state, jnp.asarray(action))
                rewards.append(float(timestep.reward))
                views.append(timestep.observation.agent_view)
            assert rewards == [-0.25, 0.0, 0.0, 0.0, -0.25, 1.0 if turn == goal else -1.0]
            assert (bool(timestep.terminated), bool(timestep.truncated)) == (True, False)
            # Beyond the first place, views of both mazes are alike.
            np.testing.assert_array_equal(views[1:5], [[0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]])
