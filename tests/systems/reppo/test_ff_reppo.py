import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation, Trajectory, Transition
from stoix_like.networks.distributions import Categorical
from stoix_like.systems.reppo.reppo_types import REPPOTransition
from support.algorithms import make_algorithm
from support.compiled import run
from support.off_policy_runs import random_batch, timestep
from support.set_ups import setup_of, trained

SMALL = [
    *("system=reppo/ff_reppo", "env=probe/continuous_policy", "arch.compile_cache=false", "arch.absolute_metric=false"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[16]" for name in ("actor", "q")),
    *("arch.total_num_envs=16", "arch.num_evaluation=1", "system.rollout_length=16", "system.num_minibatches=2"),
    *("system.vmin=-5", "system.vmax=5", "system.num_atoms=51", "system.normalize_observations=false"),
    "system.normalize_rewards=false",
]


def algorithm(*overrides):
    """Return the algorithm object and the state of a new agent, for a single shard."""
    reppo = make_algorithm(setup_of(*SMALL, *overrides), axes=Axes())
    return reppo, jax.jit(reppo.init)(jax.random.key(0), timestep([0], [False])).shared


@pytest.mark.slow
@pytest.mark.parametrize("layout", [["arch.num_devices=1"], ["arch.num_devices=2", "arch.update_batch_size=2"]])
def test_the_policy_probe_is_learned(layout):
    fast = ["system.actor_lr=1e-2", "system.q_lr=1e-2", "arch.total_timesteps=40960"]
    loop = trained(*SMALL, *fast, "system.normalize_observations=true", *layout)
    assert loop.history[-1]["eval/episode_return_mean"] == pytest.approx(0.0, abs=0.05)


def test_targets_are_soft_and_bootstrap_at_truncation():
    """Three environments with one step each, and an untrained critic, whose values are all zero.

    Terminated: r = 2. Truncated and ongoing: r + gamma (0 - alpha log pi) = 2 - 0.5 * 4 log pi, with the
    log-probability of the action that the policy draws at the successor.
    """
    reppo, shared = algorithm("system.gamma=0.5", "system.init_alpha=4.0", "system.reward_scale=2.0")
    rows, key = jnp.ones((1, 3)), jax.random.key(5)
    view = Observation(jnp.asarray([[[0.1], [0.2], [0.3]]]))
    flags = [jnp.asarray([[position == flag for position in range(3)]]) for flag in (0, 1)]
    steps = Transition(view, rows[..., None], rows, *flags, view, rows > 0, ())
    draw = jax.jit(lambda params: reppo.actor.apply(params, view).sample_and_log_prob(seed=key))
    _, log_prob = draw(shared.params.actor_params)
    target = jax.jit(reppo.evaluate)(shared, Trajectory(steps, ()), key).target
    np.testing.assert_allclose(target, 2.0 - 2.0 * jnp.asarray([[0.0, 1.0, 1.0]]) * log_prob, rtol=1e-5)


def test_beyond_its_bound_the_divergence_replaces_the_value():
    """With the behaviour policy itself the divergence is 0; a shifted one exceeds the bound everywhere."""
    reppo, shared = algorithm("system.target_kl=0.01", "system.init_kl_multiplier=3.0")
    drawn = random_batch(8)
    params, batch, key = shared.params, REPPOTransition(*drawn[:3]), jax.random.key(1)
    policy_loss = jax.jit(reppo.policy_loss)
    loss, metrics = policy_loss(params.actor_params, params, params.actor_params, batch, key)
    assert float(metrics["kl"]) == 0.0
    # The critic is zero, and the temperature 0.01: the loss is alpha log pi.
    assert float(loss) == pytest.approx(-0.01 * float(metrics["entropy"]), rel=1e-3)
    shifted = jax.tree.map(lambda x: x + 0.5, params.actor_params)
    loss, metrics = policy_loss(params.actor_params, params, shifted, batch, key)
    assert float(metrics["kl"]) > 0.01
    assert float(loss) == pytest.approx(3.0 * float(metrics["kl"]), rel=1e-5)


def test_multipliers_rise_where_their_constraint_is_violated_and_fall_elsewhere():
    """A gradient step raises a multiplier where the gradient is negative. The target entropy is -0.5 nats."""
    reppo, shared = algorithm("system.target_kl=0.1")
    duals = shared.params.log_alpha, shared.params.log_kl_multiplier
    gradient = jax.grad(lambda duals, metrics: reppo.dual_loss(duals, metrics, -0.5)[0])
    for entropy, kl, rises in ((-0.6, 0.05, [True, False]), (-0.4, 0.15, [False, True])):
        found = gradient(duals, {"entropy": jnp.asarray(entropy), "kl": jnp.asarray(kl)})
        assert [float(g) < 0.0 for g in found] == rises


def test_discrete_values_are_expectations_over_all_actions():
    """Policy (1/4, 3/4), values 1 and 5: 4; the entropy is (1/4) log 4 + (3/4) log(4/3) = 0.5623."""
    overrides = ["system=reppo/ff_reppo_discrete", "env=probe/policy"]
    reppo = make_algorithm(setup_of(*SMALL, *overrides))
    q, logits = jnp.asarray([[1.0, 5.0]]), jnp.arange(6.0).reshape(1, 2, 3)
    output = SimpleNamespace(preferences=q), logits, jnp.zeros((1, 3))
    policy = Categorical(probs=jnp.asarray([[0.25, 0.75]]))
    fixed = dataclasses.replace(reppo, actor=SimpleNamespace(apply=lambda params, observation: policy))
    object.__setattr__(fixed, "output", lambda q_params, observation, action: output)
    soft = run(fixed.evaluate_policy, None, None, None, None)
    assert (float(soft.q[0]), float(soft.log_prob[0])) == pytest.approx((4.0, -0.56234), rel=1e-4)
    taken, logits, _ = run(fixed.taken, None, REPPOTransition(None, jnp.asarray([1]), None))
    assert (taken.tolist(), logits.tolist()) == ([5.0], [[3.0, 4.0, 5.0]])
    assert reppo.target_entropy(Observation(jnp.zeros((1, 1)))) == pytest.approx(0.3 * math.log(2.0))
