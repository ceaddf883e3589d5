import jax
import jax.numpy as jnp
import pytest

from stoix_like.single_file import rec_ppo


@pytest.mark.slow
def test_a_successor_continues_from_the_state_of_its_step_and_the_next_episode_does_not():
    ppo = rec_ppo.RecurrentPPO(rec_ppo.Config(num_envs=1, rollout_length=3, gamma=0.5, gae_lambda=0.0))
    learner = jax.jit(ppo.init)(jax.random.key(0), jax.random.key(1))
    obs = jax.random.normal(jax.random.key(2), (3, 1, 4))
    next_obs = jax.random.normal(jax.random.key(3), (3, 1, 4))
    truncated = jnp.array([[False], [True], [False]])
    is_first = jnp.array([[True], [False], [True]])
    step = rec_ppo.Step(obs, jnp.ones((3, 1)), truncated & False, truncated, next_obs)
    _, _, target = ppo.advantages(learner, rec_ppo.Transition(obs, is_first, None, None, step), step.reward)

    def value(*sequence):
        """Return the last value of one episode, from its first observation on."""
        starts = jnp.arange(len(sequence)) == 0
        outputs = (learner.params["critic"], jnp.zeros((1, 64)), jnp.stack(sequence), starts[:, None])
        return ppo.critic.apply(*outputs)[1][-1, 0, 0]

    expected = [value(obs[0], next_obs[0]), value(obs[0], obs[1], next_obs[1]), value(obs[2], next_obs[2])]
    assert jnp.allclose(target[:, 0], 1.0 + 0.5 * jnp.stack(expected), atol=1e-6)
