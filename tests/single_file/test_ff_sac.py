import jax
import jax.numpy as jnp
import pytest

from stoix_like.single_file import ff_sac


@pytest.mark.slow
def test_a_truncated_step_bootstraps_from_its_successor_and_a_terminated_one_does_not():
    config = ff_sac.Config(num_envs=2, total_buffer_size=1024, layer_sizes=(4,), gamma=0.5, init_alpha=1e-9)
    sac = ff_sac.SAC(config)
    learner = jax.jit(sac.init)(jax.random.key(0), jax.random.key(1))
    ended = learner.replay.steps.terminated
    assert not jnp.any(ended)  # the pendulum is never done: its episodes are truncated after 200 steps
    values = jax.tree.map(jnp.zeros_like, learner.params.critics)
    for critic, value in (("networks_0", 4.0), ("networks_1", 2.0)):
        values["params"][critic]["critic_head"]["Dense_0"]["bias"] += value
    params = learner.params._replace(critics=values, targets=values)

    def loss(terminated):
        step = jax.tree.map(lambda x: x[:1], learner.replay.steps)
        step = step._replace(reward=jnp.ones(1), terminated=jnp.array([terminated]))
        return sac.critic_loss(values, params, step, jnp.zeros((1, 1)))

    # The smaller of the values 4 and 2 of the successor counts: the target is 1 + 2 / 2 = 2, and 1 without it.
    assert jnp.allclose(loss(False), 0.5 * (2.0**2 + 0.0**2))
    assert jnp.allclose(loss(True), 0.5 * (3.0**2 + 1.0**2))
