from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils.replay import ReplayConfig
from support.compiled import run
from support.replayed import NUM_ENVS, SIX, Prioritised, empty, make, steps, windows


class Whole(ReplayConfig):
    whole_windows: ClassVar[bool] = True


# Windows of three. 0: 1 + 2/2 + 4/4, terminated. 1: 2 + 4/2, terminated. 2: 4, terminated.
# 3: 8 + 16/2, truncated after two steps: (1/2)^2 of the true successor of step 4.
THREE_STEPS = {0: [3, 0, 2.5], 1: [4, 0, 2.5], 2: [4, 0, 2.5], 3: [16, 0.25, 4.5]}
ONE_STEP = {number: [float(2**number), 0.5, number + 0.5] for number in range(5)} | {2: [4, 0, 2.5]}


@pytest.mark.parametrize("schema", [ReplayConfig, pytest.param(Prioritised, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("n_step", "targets"), [pytest.param(1, ONE_STEP, marks=pytest.mark.slow), (3, THREE_STEPS)])
def test_windows_end_with_their_episode_and_bootstrap_where_truncated(schema, n_step, targets):
    replay = make(schema, n_step=n_step)
    found = windows(replay, run(lambda: replay.add(empty(replay), steps(*SIX))))
    for number, target in targets.items():
        reward, discount, successor = target
        assert found[number] == [reward, discount, successor, 1.0]
        assert found[100 + number] == [reward, discount, successor + 100, 1.0]


@pytest.mark.parametrize("n_step", [1, 3])
def test_observations_stored_once_give_truncated_windows_weight_zero(n_step):
    """The successor is the next stored observation; after truncation that is another episode, so the weight is zero."""
    replay = make(n_step=n_step, store_next_observation=False)
    found = windows(replay, run(lambda: replay.add(empty(replay), steps(*SIX))))
    if n_step == 1:
        assert found[1] == [2, 0.5, 2, 1.0]
        assert found[2][:2] == [4, 0]
        assert found[2][3] == 1.0
        assert found[4][3] == 0.0
        # The successor of the last step is not stored yet.
        assert 5 not in found
    else:
        assert found[0] == [3, 0, 3, 1.0]
        # A window reads four stored steps: none can start at step 3.
        assert {number % 100 for number in found} == {0, 1, 2}
        more, zeros = range(6, 12), [0] * 6
        longer = [*SIX[0], *more], [*SIX[1], *(2**n for n in more)], [*SIX[2], *zeros], [*SIX[3], *zeros]
        found = windows(replay, run(lambda: replay.add(empty(replay), steps(*longer))))
        assert {number: found[number][3] for number in range(5)} == {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.0, 4: 0.0}


@pytest.mark.parametrize("schema", [ReplayConfig, pytest.param(Prioritised, marks=pytest.mark.slow)])
def test_windows_never_cross_the_write_position(schema):
    """The buffer holds 20 steps per environment: a window is always three successive ones of the last 20."""
    replay = make(schema, n_step=3, total_buffer_size=40)
    state, add = run(empty, replay), jax.jit(replay.add)
    for start in range(0, 60, 2):
        numbers = [start, start + 1]
        state = add(state, steps(numbers, numbers, [0, 0], [0, 0]))
        if start < 4:
            continue
        for number, (reward, discount, successor, _) in windows(replay, state, start).items():
            first = number % 100
            assert max(0, start + 2 - 20) <= first <= start + 1 - 2
            assert reward == first + (first + 1) / 2 + (first + 2) / 4
            assert (discount, successor) == (0.125, number + 2.5)


@pytest.mark.slow
def test_whole_windows_have_all_steps_in_order_with_their_extras():
    """Steps 0 to 3 of each environment; the episode is truncated after step 1, and extras are ten times the step."""
    replay = make(Whole, n_step=3)
    rollout = steps([0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 0, 0])
    extras = jnp.broadcast_to(10.0 * jnp.arange(4)[:, None], (4, NUM_ENVS))
    rollout = rollout._replace(transitions=rollout.transitions._replace(extras=extras))
    found = replay.sample_steps(jax.jit(replay.add)(empty(replay), rollout), jax.random.key(0))
    number = found.observation.agent_view[..., 0]
    assert set(np.asarray(number[0]).tolist()) == {0.0, 1.0, 100.0, 101.0}
    np.testing.assert_array_equal(number, number[:1] + jnp.arange(3)[:, None])
    np.testing.assert_array_equal(found.next_observation.agent_view[..., 0], number + 0.5)
    np.testing.assert_array_equal(found.reward, number % 100)
    np.testing.assert_array_equal(found.extras, 10 * (number % 100))
    np.testing.assert_array_equal(found.truncated, number % 100 == 1)
    np.testing.assert_array_equal(found.is_first, (number % 100 == 2) & (jnp.arange(3)[:, None] > 0))


def test_rewards_are_stored_scaled():
    replay = make(reward_scale=0.1)
    found = windows(replay, run(lambda: replay.add(empty(replay), steps(*SIX))))
    assert found[3][0] == pytest.approx(0.8)
