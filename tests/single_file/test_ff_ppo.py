import jax
import numpy as np

from stoix_like.single_file import ff_ppo


def test_a_truncated_episode_has_a_value_beyond_its_end_and_a_terminated_one_has_none():
    ppo = ff_ppo.PPO(ff_ppo.Config(gamma=0.5, gae_lambda=1.0))
    flags = np.array([[False], [True], [False]])
    reward, obs = np.ones((3, 1), np.float32), np.zeros((3, 1, 4), np.float32)
    shapes = jax.eval_shape(ppo.critic.init, jax.random.key(0), obs)
    params = {"critic": jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)}
    params["critic"]["params"]["critic_head"]["Dense_0"]["bias"] += 4.0
    advantages = jax.jit(ppo.advantages)

    def targets(terminated, truncated):
        step = ff_ppo.Step(obs, reward, terminated, truncated, obs)
        return np.ravel(advantages(params, ff_ppo.Transition(obs, None, None, step), reward)[1]).tolist()

    # All values are 4: 1 + 4 / 2 = 3 for the last step and for the truncated one, which starts no other return.
    assert targets(~flags & False, flags) == [1 + 3 / 2, 3, 3]
    # A terminated step has its reward alone.
    assert targets(flags, ~flags & False) == [1 + 1 / 2, 1, 3]
