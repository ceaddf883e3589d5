import jax
import numpy as np

from stoix_like.single_file import ff_dqn
from support.compiled import run


def test_a_truncated_step_bootstraps_from_its_successor_and_a_terminated_one_does_not():
    dqn = ff_dqn.DQN(ff_dqn.Config(max_episode_steps=12, num_envs=4, total_buffer_size=1024, gamma=0.5))
    learner = jax.device_get(run(lambda *keys: dqn.init(*keys)._replace(key=()), jax.random.key(0), jax.random.key(1)))
    steps = jax.tree.map(lambda x: x[: int(learner.replay.size)], learner.replay.steps)
    following = np.concatenate([steps.obs[4:], learner.obs])
    ended = np.any(steps.next_obs != following, axis=-1)
    # Steps whose successor is not the next observation ended an episode; only some of them terminated it.
    assert np.any(ended & ~steps.terminated)
    assert np.any(ended & steps.terminated)
    assert not np.any(~ended & steps.terminated)
    values = jax.tree.map(np.zeros_like, learner.params)
    values["params"]["action_head"]["Dense_0"]["bias"] += np.float32([4.0, 2.0])
    truncated, terminated = (
        ff_dqn.Transition(steps.obs[:1], np.array([1]), np.ones(1), np.array([flag]), steps.next_obs[:1])
        for flag in (False, True)
    )
    loss = jax.jit(dqn.loss)
    # The value of the action is 2, and the best value of the successor 4: 1 + 4 / 2 - 2 = 1, and 1 - 2 = -1.
    assert loss(values, values, truncated) == 0.5 * 1.0**2
    assert loss(values, jax.tree.map(lambda x: 2 * x, values), truncated) == 0.5 * 3.0**2
    assert loss(values, values, terminated) == 0.5 * (-1.0) ** 2
