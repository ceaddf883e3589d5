import jax
import jax.numpy as jnp
import numpy as np

from support.countable_envs import KEY, ZERO, play, ramp


def test_restart_and_transition_set_the_flags():
    first, *_, last = play(ramp(ends_after=6), [ZERO] * 6)
    assert (float(first.reward), bool(first.terminated), bool(first.truncated)) == (0.0, False, False)
    np.testing.assert_array_equal(first.observation.agent_view, first.next_observation.agent_view)
    assert not first.episode.finished
    # Step 6 both terminates and truncates: termination takes precedence.
    assert (bool(last.terminated), bool(last.truncated)) == (True, False)


def test_vectorize_does_not_reset():
    env = ramp(ends_after=1)
    state, timestep = env.reset(jax.random.split(KEY, 2))
    assert timestep.reward.shape == timestep.episode.finished.shape == (2,)
    for count in (1, 2):
        state, timestep = env.step(jax.random.split(KEY, 2), state, jnp.zeros((2, 2)))
        np.testing.assert_array_equal(timestep.observation.agent_view[:, 0, 0], [count, count])
    assert env.start_rollout(KEY, state) is state
