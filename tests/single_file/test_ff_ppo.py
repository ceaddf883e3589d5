import jax
import jax.numpy as jnp

from stoix_like.single_file import ff_ppo


def test_a_truncated_episode_has_a_value_beyond_its_end_and_a_terminated_one_has_none():
    ppo = ff_ppo.PPO(ff_ppo.Config(gamma=0.5, gae_lambda=1.0))
    flags = jnp.array([[False], [True], [False]])
    reward, obs = jnp.ones((3, 1)), jnp.zeros((3, 1, 4))
    params = {"critic": jax.tree.map(jnp.zeros_like, jax.jit(ppo.critic.init)(jax.random.key(0), obs))}
    params["critic"]["params"]["critic_head"]["Dense_0"]["bias"] += 4.0

    def targets(terminated, truncated):
        step = ff_ppo.Step(obs, reward, terminated, truncated, obs)
        return ppo.advantages(params, ff_ppo.Transition(obs, None, None, step), reward)[1][:, 0].tolist()

    # All values are 4: 1 + 4 / 2 = 3 for the last step and for the truncated one, which starts no other return.
    assert targets(~flags & False, flags) == [1 + 3 / 2, 3, 3]
    # A terminated step has its reward alone.
    assert targets(flags, ~flags & False) == [1 + 1 / 2, 1, 3]
