"""Tests of optimisers and gradient steps."""

from types import SimpleNamespace

import jax.numpy as jnp
import optax
import pytest
from off_policy_runs import set_up_small

from stoix_like.base_types import Axes
from stoix_like.systems.gradient_descent import gradient_step, make_optimiser


def test_gradient_step_descends_the_loss():
    """The gradient of x^2 / 2 at 3 is 3: a step of 0.1 gives 2.7."""
    optim = optax.sgd(0.1)
    params, _, metrics = gradient_step(
        lambda x, half: (half * x**2, {"x": x}), optim, Axes(), jnp.asarray(3.0), optim.init(jnp.asarray(3.0)), 0.5
    )
    assert float(params) == pytest.approx(2.7)
    assert float(metrics["x"]) == 3.0


def test_first_step_of_adam_with_a_large_epsilon():
    """Mean and mean square of a gradient of 1 are 1 after bias correction: the step is lr / (1 + eps)."""
    config = SimpleNamespace(decay_learning_rates=False, max_grad_norm=10.0, adam_eps=3.0)
    optim = make_optimiser(config, None, 0.1)
    update, _ = optim.update(jnp.asarray(1.0), optim.init(jnp.zeros(())))
    assert float(update) == pytest.approx(-0.1 / 4.0, rel=1e-4)


@pytest.mark.slow
def test_learning_rate_decay_counts_the_steps_of_the_system():
    """Over 4 updates of one gradient step, the rates are 1, 3/4, 1/2, 1/4; with period 2, they are 1 and 1/2."""
    config = set_up_small("sac/ff_sac", "system.decay_learning_rates=true", "system.epochs=1").config.system
    spec = type("Spec", (), {"num_updates": 4})
    for period, rates in ((1, [1.0, 0.75, 0.5, 0.25]), (2, [1.0, 0.5])):
        optim = make_optimiser(config, spec, 1.0, period)
        state, steps = optim.init(jnp.zeros(())), []
        for _ in rates:
            # Adam normalises a constant gradient to 1: the size of a step is the learning rate.
            update, state = optim.update(jnp.asarray(0.5), state)
            steps.append(-float(update))
        assert steps == pytest.approx(rates, rel=1e-4)
