import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.systems.tdmpc.planner import Plan, PlannerConfig, choose, make_plan, shift
from support.compiled import run

CONFIG = PlannerConfig(
    iterations=6,
    num_samples=256,
    num_policy_samples=4,
    num_elites=16,
    min_std=0.05,
    max_std=2.0,
    planning_temperature=0.5,
)


def test_plans_find_the_best_sequences_of_a_known_return():
    """The return is minus the squared distance from other actions in each of two environments, some out of bounds."""
    best = jnp.asarray(np.random.default_rng(0).uniform(-1.4, 1.4, (3, 2, 2)), jnp.float32)

    def evaluate(actions, key):
        return -jnp.sum(jnp.square(actions - best[:, :, None]), axis=(0, 3))

    far = jnp.ones((3, 2, 4, 2))
    plan = run(lambda key: make_plan(CONFIG, evaluate, far, jnp.zeros((3, 2, 2)), key), jax.random.key(0))
    # The standard error of a mean over 16 elites around it is about min_std.
    np.testing.assert_allclose(plan.mean, jnp.clip(best, -1.0, 1.0), atol=0.15)
    assert 0.05 <= plan.std.min() <= plan.std.max() < 0.3
    np.testing.assert_allclose(plan.weight.sum(-1), 1.0, rtol=1e-6)
    # A sequence of the policy that is better than all samples is an elite.
    exact = jnp.broadcast_to(best[:, :, None], (3, 2, 4, 2))
    plan = run(lambda key: make_plan(CONFIG, evaluate, exact, jnp.zeros((3, 2, 2)), key), jax.random.key(0))
    np.testing.assert_array_equal(plan.first[:, :4], exact[0])


def test_plans_are_refitted_to_the_best_sequences_by_their_weights():
    """Exponentials of half of 2 log 3 and 0 are 3/4 and 1/4; 3/4 of 0.6 less 1/4 of 0.2 is 0.4."""
    sizes = {"iterations": 1, "num_samples": 3, "num_policy_samples": 3, "num_elites": 2}
    actions, value = jnp.asarray([-0.2, 0.9, 0.6]).reshape(1, 1, 3, 1), jnp.asarray([[0.0, -9.0, 2.0 * np.log(3.0)]])
    config, mean = dataclasses.replace(CONFIG, **sizes), jnp.zeros((1, 1, 1))
    plan = run(make_plan, config, lambda actions, key: value, actions, mean, jax.random.key(0))
    np.testing.assert_allclose(plan.weight, [[0.75, 0.25]], rtol=1e-6)
    # Squared distances 0.04 and 0.36: 3/4 and 1/4 of them are 0.12.
    assert (plan.mean.item(), plan.std.item()) == pytest.approx((0.4, 0.12**0.5))


def test_greedy_actions_are_means_and_others_are_elites_with_noise():
    mean, std = jnp.asarray([[[0.25]], [[0.5]]]), jnp.full((2, 1, 1), 1e-3)
    plan = Plan(mean, std, jnp.asarray([[[-0.5], [1.0], [0.125]]]), None, jnp.asarray([[0.25, 0.75, 0.0]]))
    keys = jax.random.split(jax.random.key(0), 2000)
    greedy, drawn = run(
        lambda keys: (choose(plan, keys[0], True), jax.vmap(lambda key: choose(plan, key, False))(keys)), keys
    )
    np.testing.assert_array_equal(greedy, [[0.25]])
    assert drawn.max() == 1.0
    near = np.isclose(drawn.ravel()[:, None], [-0.5, 1.0, 0.125], atol=0.01)
    # The standard error of a share of 2,000 is 0.01.
    np.testing.assert_allclose(near.mean(0), [0.25, 0.75, 0.0], atol=0.04)


def test_plans_start_from_the_last_one_a_step_later_but_not_in_new_episodes():
    mean = jnp.broadcast_to(jnp.asarray([0.1, 0.2, 0.3])[None, :, None], (2, 3, 1))
    start = shift(mean, jnp.asarray([False, True]))
    np.testing.assert_allclose(start[..., 0], [[0.2, 0.0], [0.3, 0.0], [0.0, 0.0]])
