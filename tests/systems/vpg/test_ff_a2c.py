import jax
import numpy as np
import pytest

from support.on_policy_runs import training_loop


def updated(*overrides):
    loop = training_loop("arch.num_devices=1", "system.standardize_advantages=false", *overrides)
    for _ in range(3):
        loop.advance(1)
    return jax.device_get(loop.state.shared.params)


@pytest.mark.slow
def test_reinforce_is_a2c_with_a_lambda_of_one():
    """Both bootstrap only where the rollout ends or an episode is truncated."""
    env = ["env=gymnax/cartpole", "env.time_limit=12", "system.ent_coef=0.01"]
    a2c, reinforce = updated("system=vpg/ff_a2c", "system.gae_lambda=1", *env), updated("system=vpg/ff_reinforce", *env)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), a2c, reinforce)
    shorter = updated("system=vpg/ff_a2c", "system.gae_lambda=0.5", *env)
    assert max(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), a2c, shorter))) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["ff_ppo", "ff_dpo", "ff_ppo_penalty"])
def test_a2c_is_ppo_with_one_gradient_step_per_rollout(variant):
    """Huang et al. 2022, arXiv:2205.09123: at a ratio of one, every surrogate objective has the policy gradient."""
    same = ["env=gymnax/cartpole", "system.ent_coef=0.01", "system.gae_lambda=0.9", "system.normalize_rewards=false"]
    one_step = ["system.epochs=1", "system.num_minibatches=1", "system.clip_value=false"]
    a2c, ppo = updated("system=vpg/ff_a2c", *same), updated(f"system=ppo/{variant}", *same, *one_step)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), a2c, ppo)
