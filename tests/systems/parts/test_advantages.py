from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Transition
from stoix_like.systems.parts.advantages import make_advantages, make_return_advantages
from support.compiled import run

V_TM1, V_T = jnp.asarray([[2.0], [4.0]]), jnp.asarray([[4.0], [6.0]])
NEVER = jnp.zeros((2, 1), bool)
# The behaviour policy took the actions with probability 1.
STEPS = Transition(None, None, jnp.ones((2, 1)), NEVER, NEVER, None, NEVER, jnp.zeros((2, 1)))


def policy(probability):
    log_prob = jnp.full((2, 1), jnp.log(probability))
    return lambda: SimpleNamespace(log_prob=lambda action: log_prob)


def test_generalised_advantages_of_one_step_are_its_errors():
    """1 + 4 / 2 - 2 = 1 and 1 + 6 / 2 - 4 = 0."""
    advantage, target = run(make_advantages(0.5, 0.0), STEPS, V_TM1, V_T, policy(1.0))
    np.testing.assert_allclose(advantage, [[1.0], [0.0]])
    np.testing.assert_allclose(target, [[3.0], [4.0]])


def test_returns_minus_baselines_bootstrap_where_the_rollout_ends():
    """1 + 6 / 2 = 4 and 1 + 4 / 2 = 3."""
    advantage, target = run(make_return_advantages(0.5), STEPS, V_TM1, V_T, policy(1.0))
    np.testing.assert_allclose(target, [[3.0], [4.0]])
    np.testing.assert_allclose(advantage, [[1.0], [0.0]])


def test_ratios_weight_vtrace_advantages_unless_the_policy_loss_does():
    """At a ratio of one half, the first error is halved in the value target, and in the advantage if it is weighted."""
    weighted, target = run(make_advantages(0.5, 1.0, vtrace=True), STEPS, V_TM1, V_T, policy(0.5))
    plain, _ = make_advantages(0.5, 1.0, vtrace=True, weighted=False)(STEPS, V_TM1, V_T, policy(0.5))
    np.testing.assert_allclose(target, [[2.5], [4.0]], rtol=1e-6)
    np.testing.assert_allclose(weighted, 0.5 * plain, rtol=1e-6)
    np.testing.assert_allclose(plain, [[1.0], [0.0]], atol=1e-6)
