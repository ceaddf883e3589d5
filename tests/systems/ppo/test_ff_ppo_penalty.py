import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.acting import start_episodes
from stoix_like.architectures.rollout import rollout
from stoix_like.base_types import Axes
from stoix_like.systems.ppo.anakin.ff_ppo_penalty import MAX_KL_COEF, MIN_KL_COEF, adapt_coefficient
from support.algorithms import make_algorithm, with_methods
from support.on_policy_runs import SMALL, training_loop
from support.resumed import assert_resumed_equals_whole
from support.set_ups import setup_of

HEAD = "network.actor_network.action_head._target_"
RATE = ["system=ppo/ff_ppo_penalty", "system.desired_kl=0.01", "system.decay_learning_rates=false"]


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
@pytest.mark.parametrize("rate", [False, True], ids=["penalty", "rate"])
def test_a_resumed_run_with_an_adaptive_penalty_or_learning_rate_is_bit_identical(rate, tmp_path):
    adaptive = ["system.desired_kl=1e-4", "system.adapt_kl_coef=false"] if rate else ["system.desired_kl=null"]
    overrides = [*RATE, *adaptive, "arch.total_timesteps=1024", "arch.num_evaluation=4", "network=mlp_quantiles"]
    whole = assert_resumed_equals_whole(lambda writer: training_loop(*overrides, writer=writer), tmp_path)
    shared, config = whole.state.shared, whole.setup.config.system
    assert float(shared.parts["rate_factor"] if rate else shared.own.kl_coef) != (1.0 if rate else config.kl_coef)


def test_rates_that_adapt_report_the_divergence_that_they_adapt_to():
    """0.25 in each gradient step; the steps change nothing, so the divergence of the whole update is 0."""
    setup = setup_of(*SMALL, *RATE, "system.adapt_kl_coef=false")
    ppo = with_methods(
        make_algorithm(setup, axes=Axes()),
        sgd_step=lambda self, behaviour, shared, batch, key: (shared, {"kl": jnp.asarray(0.25)}),
    )

    @jax.jit
    def update(key):
        state = start_episodes(setup.env, ppo, jax.random.split(key, 4))
        agent = ppo.init(key, state.timestep)
        _, (trajectory, _) = rollout(setup.env, ppo.act, agent.shared, state, key, 4)
        return ppo.update(agent, trajectory, key)[1]["kl"]

    assert float(update(jax.random.key(0))) == 0.25
