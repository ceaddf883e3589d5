import jax
import jax.numpy as jnp
import pytest

from stoix_like.single_file import ff_pqn


@pytest.mark.slow
def test_a_truncated_episode_has_a_value_beyond_its_end_and_a_terminated_one_has_none():
    pqn = ff_pqn.PQN(ff_pqn.Config(gamma=0.5, q_lambda=1.0))
    flags = jnp.array([[False], [True], [False]])
    obs = jnp.zeros((3, 1, 4))
    params = jax.tree.map(jnp.zeros_like, jax.jit(pqn.network.init)(jax.random.key(0), obs))
    params["params"]["action_head"]["Dense_0"]["bias"] += jnp.array([4.0, 2.0])

    def targets(terminated, truncated):
        step = ff_pqn.Step(obs, jnp.ones((3, 1)), terminated, truncated, obs)
        return pqn.targets(params, step)[:, 0].tolist()

    # The best value is 4: 1 + 4 / 2 = 3 for the last step and for the truncated one, which starts no other return.
    assert targets(~flags & False, flags) == [1 + 3 / 2, 3, 3]
    # A terminated step has its reward alone.
    assert targets(flags, ~flags & False) == [1 + 1 / 2, 1, 3]
