"""Tests of PPO with a KL penalty."""

import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.config import parse_config
from stoix_like.loggers import MultiLogger
from stoix_like.run.set_up.setup import set_up
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.systems.ppo.anakin.ff_ppo_penalty import MAX_KL_COEF, MIN_KL_COEF, adapt_coefficient
from support.composed import compose_config
from support.resumed import assert_resumed_equals_whole

HEAD = "network.actor_network.action_head._target_"


SMALL = [
    *(f"network.{name}_network.pre_torso.layer_sizes=[16]" for name in ("actor", "critic")),
    *("arch.compile_cache=false", "arch.absolute_metric=false", "arch.num_evaluation=1", "arch.total_num_envs=16"),
    *("system.rollout_length=16", "system.actor_lr=1e-2", "system.critic_lr=1e-2", "system.max_grad_norm=10"),
]


def training_loop(*overrides, writer=None):
    return TrainingLoop(set_up(parse_config(compose_config([*SMALL, *overrides]))), MultiLogger([]), writer)


@pytest.mark.parametrize(
    ("kl_coef", "kl", "expected"),
    [
        (1.0, 0.0151, 2.0),
        (1.0, 0.0149, 1.0),
        (1.0, 0.0067, 1.0),
        (1.0, 0.0066, 0.5),
        (1.0, jnp.inf, 2.0),
        (MAX_KL_COEF, 1.0, MAX_KL_COEF),
        (MIN_KL_COEF, 0.0, MIN_KL_COEF),
        (0.0, 1.0, MIN_KL_COEF),
    ],
)
def test_the_penalty_doubles_above_its_target_and_halves_below(kl_coef, kl, expected):
    assert adapt_coefficient(jnp.asarray(kl_coef), jnp.asarray(kl), 0.01) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["env=probe/multi_discrete"],
        ["env=probe/continuous_policy", "system.normalize_observations=true"],
        ["env=gymnax/pendulum", f"{HEAD}=stoix_like.networks.heads.BetaDistributionHead"],
    ],
)
def test_a_larger_penalty_keeps_the_policy_nearer(overrides):
    """A population of two fixed coefficients; the divergence is that from the policy before the update."""
    members = ["arch.population.hyperparams={kl_coef: [0.0, 100.0]}", "system.adapt_kl_coef=false"]
    loop = training_loop("system=ppo/ff_ppo_penalty", *members, *overrides, "arch.num_devices=1")
    metrics = loop.advance(1)
    free, penalised = metrics["train/kl"]
    assert free > 10.0 * penalised > 0.0
    np.testing.assert_array_equal(loop.state.shared.own.kl_coef, [0.0, 100.0])


@pytest.mark.slow
@pytest.mark.optimized
def test_a_resumed_run_with_an_adaptive_penalty_and_learning_rate_is_bit_identical(tmp_path):
    overrides = ["system=ppo/ff_ppo_penalty", "arch.total_timesteps=1024", "arch.num_evaluation=4"]
    overrides += ["system.desired_kl=1e-4", "system.decay_learning_rates=false", "network=mlp_quantiles"]
    whole = assert_resumed_equals_whole(lambda writer: training_loop(*overrides, writer=writer), tmp_path)
    assert float(whole.state.shared.own.kl_coef) != whole.setup.config.system.kl_coef
    assert float(whole.state.shared.parts["learning_rate"]) != pytest.approx(whole.setup.config.system.actor_lr)
