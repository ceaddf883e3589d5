import jax
import jax.numpy as jnp

from stoix_like.single_file import ff_dqn


def test_a_truncated_step_bootstraps_from_its_successor_and_a_terminated_one_does_not():
    dqn = ff_dqn.DQN(ff_dqn.Config(max_episode_steps=12, num_envs=4, total_buffer_size=1024, gamma=0.5))
    learner = jax.jit(dqn.init)(jax.random.key(0), jax.random.key(1))
    steps = jax.tree.map(lambda x: x[: int(learner.replay.size)], learner.replay.steps)
    following = jnp.concatenate([steps.obs[4:], learner.obs])
    ended = jnp.any(steps.next_obs != following, axis=-1)
    # Steps whose successor is not the next observation ended an episode; only some of them terminated it.
    assert jnp.any(ended & ~steps.terminated)
    assert jnp.any(ended & steps.terminated)
    assert not jnp.any(~ended & steps.terminated)
    values = jax.tree.map(jnp.zeros_like, learner.params)
    values["params"]["action_head"]["Dense_0"]["bias"] += jnp.array([4.0, 2.0])
    truncated, terminated = (
        ff_dqn.Transition(steps.obs[:1], jnp.array([1]), jnp.ones(1), jnp.array([flag]), steps.next_obs[:1])
        for flag in (False, True)
    )
    # The value of the action is 2, and the best value of the successor 4: 1 + 4 / 2 - 2 = 1, and 1 - 2 = -1.
    assert dqn.loss(values, values, truncated) == 0.5 * 1.0**2
    assert dqn.loss(values, jax.tree.map(lambda x: 2 * x, values), truncated) == 0.5 * 3.0**2
    assert dqn.loss(values, values, terminated) == 0.5 * (-1.0) ** 2
