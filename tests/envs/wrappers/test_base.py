import jax.numpy as jnp
import numpy as np
from countable_envs import KEY, ZERO, ramp

from stoix_like.envs import wrappers


def test_native_state_removes_wrapper_state():
    counted = wrappers.CountSteps(wrappers.StackFrames(wrappers.FlattenObservation(wrappers.TimeLimit(ramp(), 9)), 2))
    env = wrappers.ScaleReward(wrappers.RecordEpisode(counted), 2.0)
    state, _ = env.reset(KEY[None])
    for _ in range(3):
        state, _ = env.step(KEY[None], state, jnp.asarray(ZERO)[None])
    np.testing.assert_array_equal(env.native_state(state), [3])
