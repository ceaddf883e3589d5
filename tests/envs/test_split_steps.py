import jax
import numpy as np
import pytest

from stoix_like.envs import make
from stoix_like.envs.split_steps import SplitSteps
from support.scripted import config

ENVS = 4


@pytest.mark.slow
def test_a_split_step_equals_the_step_of_the_environment():
    env = make(config(sticky_actions=0.5, frame_stack=2, step_count=True, reward_clip=10.0))
    split, keys = SplitSteps(env), jax.random.split(jax.random.key(3), ENVS)
    step, host_action_of, finish = jax.jit(env.step), jax.jit(split.host_action), jax.jit(split.finish)
    batch, repeated = split.host.open(ENVS), 0
    expected = jax.jit(env.reset)(keys)
    got = jax.jit(split.start)(keys, batch.reset(split.host.seeds(keys)))
    for number in range(25):
        jax.tree.map(np.testing.assert_array_equal, got[1], expected[1])
        step_keys = jax.random.split(jax.random.key(number), ENVS)
        action = jax.random.randint(jax.random.key(100 + number), (ENVS,), 0, 3)
        host_action = host_action_of(step_keys, got[0], action)
        repeated += int((host_action != action).sum())
        expected = step(step_keys, expected[0], action)
        got = finish(step_keys, got[0], action, batch.step(host_action))
    assert repeated
    env.close()
