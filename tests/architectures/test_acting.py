from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.acting import noisy_act, random_act
from stoix_like.base_types import LastAction, Observation, RolloutState
from stoix_like.envs.environment import restart
from stoix_like.envs.spaces import Box, Dict, Discrete, Mixed

NUM_ENVS = 1000


def acted(explore, space, action, mask=None):
    """Return what an exploring `act` returns in environments with a mask, where `act` takes one action everywhere."""
    observation = Observation(
        jnp.zeros((NUM_ENVS, 1)), None if mask is None else jnp.tile(jnp.array(mask), (NUM_ENVS, 1))
    )
    state = RolloutState((), jax.vmap(restart)(observation), LastAction((), jnp.zeros(())))

    def act(shared, state, key):
        actions = jnp.tile(jnp.asarray(action), (NUM_ENVS, *[1] * np.ndim(action)))
        return LastAction("memory", actions), actions, {"key": key}

    carry, actions, extras = explore(act, SimpleNamespace(action_space=space))((), state, jax.random.key(3))
    np.testing.assert_array_equal(carry.action, actions)
    assert (carry.state, set(extras)) == ("memory", {"key"})
    return np.asarray(actions)


def test_a_share_of_the_actions_is_random_and_legal():
    mask = [True, True, False, True]
    actions = acted(lambda act, env: random_act(act, env, 0.3), Discrete(4), 2, mask)
    # 300 ± 45 of 1000 are replaced, by three legal ones alike; the standard deviation is sqrt(1000 * 0.3 * 0.7) = 14.5.
    counts = np.bincount(actions, minlength=4)
    assert abs(counts[2] - 700) < 60
    assert (abs(counts[[0, 1, 3]] - 100) < 45).all()
    everywhere = acted(random_act, Discrete(4), 2, mask)
    assert 2 not in everywhere
    # The same key draws the same random actions.
    np.testing.assert_array_equal(everywhere[actions != 2], actions[actions != 2])


def test_vectors_are_replaced_whole():
    actions = acted(lambda act, env: random_act(act, env, 0.5), Box(-1.0, 1.0, (3,)), [9.0, 9.0, 9.0])
    replaced = (actions != 9.0).sum(axis=1)
    assert set(replaced) == {0, 3}
    assert abs((replaced == 3).mean() - 0.5) < 0.07


def test_noise_is_in_halves_of_the_range_and_clipped():
    space = Box(np.array([0.0, -1.0], np.float32), np.array([8.0, 1.0], np.float32), (2,))
    actions = acted(lambda act, env: noisy_act(act, env, 0.1), space, [4.0, 1.0])
    # Deviation 0.1 * 4 of the first entry; half of the second ones exceed their bound.
    assert abs(actions[:, 0].std() - 0.4) < 0.04
    assert abs(actions[:, 0].mean() - 4.0) < 0.05
    assert abs((actions[:, 1] == 1.0).mean() - 0.5) < 0.07
    assert actions[:, 1].max() == 1.0


# The largest float32 stands for no bound.
@pytest.mark.parametrize("high", [np.inf, np.finfo(np.float32).max])
def test_choices_and_unbounded_entries(high):
    space = Mixed(Dict({"a": Discrete(3), "b": Box(-9.0, high, (1,))}))
    actions = acted(lambda act, env: noisy_act(act, env, 0.5), space, [2.0, 0.0])
    assert (actions[:, 0] == 2.0).all()
    assert abs(actions[:, 1].std() - 0.5) < 0.05
