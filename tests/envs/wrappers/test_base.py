import jax.numpy as jnp
import numpy as np

from stoix_like.envs import wrappers
from support.compiled import run
from support.countable_envs import KEY, ZERO, ramp


def test_native_state_removes_wrapper_state():
    counted = wrappers.CountSteps(wrappers.StackFrames(wrappers.FlattenObservation(wrappers.TimeLimit(ramp(), 9)), 2))
    env = wrappers.ScaleReward(wrappers.RecordEpisode(counted), 2.0)
    state, _ = run(env.reset, KEY[None])
    for _ in range(3):
        state, _ = run(env.step, KEY[None], state, jnp.asarray(ZERO)[None])
    np.testing.assert_array_equal(env.native_state(state), [3])


def test_a_wrapper_with_steps_of_its_own_may_end_episodes_unless_it_says_otherwise():
    class Halved(wrappers.RewardWrapper):
        def reward(self, reward):
            return reward / 2.0

    class Impatient(Halved):
        def step(self, keys, state, action):
            state, timestep = super().step(keys, state, action)
            return state, timestep._replace(truncated=timestep.reward < 0.0)

    class Blind(Halved):
        keeps_ends = True

        def step(self, keys, state, action):
            return super().step(keys, state, 0 * action)

    assert [wrapper.keeps_ends for wrapper in (Halved, Impatient, Blind)] == [True, False, True]
    assert [wrapper.keeps_ends for wrapper in (wrappers.AddTime, wrappers.TimeLimit)] == [True, False]
