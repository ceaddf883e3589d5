from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.systems.parts.optimiser import Gradients, make_optimiser
from stoix_like.utils.accelerate import packing
from support.compiled import run
from support.composed import compose_config
from support.off_policy_runs import set_up_small
from support.platforms import take_accelerator_forms
from support.selections import first


def test_first_step_of_adam_with_a_large_epsilon():
    """Mean and mean square of a gradient of 1 are 1 after bias correction: the step is lr / (1 + eps)."""
    config = config_of(adam_eps=3.0)
    update = step_of(config, jnp.asarray(0.0), jnp.asarray(1.0))
    assert float(update) == pytest.approx(-0.1 / 4.0, rel=1e-4)


@pytest.mark.slow
def test_learning_rate_decay_counts_the_steps_of_the_system():
    """Over 4 updates of one gradient step, the rates are 1, 3/4, 1/2, 1/4; with period 2, they are 1 and 1/2."""
    config = set_up_small("sac/ff_sac", "system.decay_learning_rates=true", "system.epochs=1").config.system
    spec = type("Spec", (), {"num_updates": 4})
    for period, rates in (((), [1.0, 0.75, 0.5, 0.25]), ((2,), [1.0, 0.5])):
        optim = make_optimiser(config, spec, 1.0, *period)
        state, steps = optim.init(jnp.zeros(())), []
        for _ in rates:
            # Adam normalises a constant gradient to 1: the size of a step is the learning rate.
            update, state = optim.update(jnp.asarray(0.5), state)
            steps.append(-float(update))
        assert steps == pytest.approx(rates, rel=1e-4)


def test_learning_rates_may_end_at_a_share():
    others = {"max_grad_norm": 1.0}
    for decay, shares in ((True, [0.5, 0.0]), (0.5, [0.75, 0.5])):
        config = Gradients(decay_learning_rates=decay, **others)
        assert [*config.schedules(2, 4).values(), *config.schedules(4, 4).values()] == shares
    assert Gradients(decay_learning_rates=False, **others).schedules(2, 4) == {}
    for share in (0.0, 1, 1.5):
        with pytest.raises(ConfigError, match=f"system.decay_learning_rates={share}"):
            parse_config(compose_config([f"system.decay_learning_rates={share}"]))


def config_of(**values):
    return SimpleNamespace(gradients=Gradients(**{"decay_learning_rates": False, "max_grad_norm": 1e6} | values))


def step_of(config, params, grads):
    optim = make_optimiser(config, None, 0.1)
    return jax.device_get(run(lambda params, grads: optim.update(grads, optim.init(params), params)[0], params, grads))


def test_without_a_largest_norm_gradients_are_not_clipped_and_nothing_is_computed():
    params, config = {"kernel": jnp.ones((2, 2))}, config_of(max_grad_norm=None)
    optim, adam = make_optimiser(config, None, 0.1), optax.adam(0.1)
    states = optim.init(params), adam.init(params)
    ours, theirs = (jax.make_jaxpr(x.update)(params, state) for x, state in zip((optim, adam), states, strict=True))
    assert str(ours) == str(theirs)


def test_adamw_decays_weights_alone():
    """The first step of Adam is lr * sign(g) = 0.1; a weight of 2 also loses lr * decay * 2 = 0.1."""
    weights = ("kernel", "unit_kernel", "embedding")
    others = ("bias", "attention_biases", "log_noise_scale", "sigma_kernel")
    params = {name: np.full((2, 2), 2.0) for name in (*weights, *others)} | {"vector_kernel": np.full(2, 2.0)}
    given = jax.device_put((params, jax.tree.map(np.ones_like, params)))
    step = step_of(config_of(optimiser="adamw", weight_decay=0.5), *given)
    for name, change in step.items():
        np.testing.assert_allclose(change, np.full_like(change, -0.2 if name in weights else -0.1), rtol=1e-5)


@pytest.mark.slow
def test_muon_orthogonalises_each_matrix_and_leaves_vectors_to_adam():
    """An update is 0.2 sqrt(3) times a matrix whose singular values Newton-Schulz brings close to 1."""
    grads = {"kernel": jnp.diag(jnp.asarray([3.0, 2.0, 1.0])), "bias": jnp.ones(3)}
    grads["stack_kernel"] = jnp.stack([grads["kernel"], 10.0 * grads["kernel"]])
    params = jax.tree.map(jnp.zeros_like, grads)
    step = step_of(config_of(optimiser="muon"), params, grads)
    singular = np.diag(step["kernel"]) / (-0.1 * 0.2 * 3.0**0.5)
    assert ((singular > 0.6) & (singular < 1.3)).all()
    # A stack of matrices is one matrix after another, at any scale.
    np.testing.assert_allclose(step["stack_kernel"], np.stack([step["kernel"]] * 2), rtol=1e-4, atol=1e-6)
    # Nesterov momentum of a constant gradient: the mean is 0.9 * 0.1 / (1 - 0.9^2) + 0.1 / 0.1.
    np.testing.assert_allclose(step["bias"], -0.1 * (0.09 / 0.19 + 1.0), rtol=1e-3)


def test_muon_kernels_of_convolutions_are_matrices_of_output_channels():
    """A kernel [2, 2, 1, 4] is the 4 by 4 matrix of its patches."""
    grad = np.random.default_rng(0).normal(size=(4, 4))
    as_kernel, as_matrix = (
        step_of(config_of(optimiser="muon"), *jax.device_put(({"kernel": 0.0 * g}, {"kernel": g})))["kernel"]
        for g in (grad.reshape(2, 2, 1, 4), grad)
    )
    np.testing.assert_allclose(as_kernel.reshape(4, 4), as_matrix, rtol=1e-4, atol=1e-6)


# With the older emitters of fusions, of quick tests, the products of muon are rounded in another order.
@pytest.mark.parametrize("name", first(1, ["adamw", "muon"]))
def test_optimisers_see_packed_parameters_as_trees(name, monkeypatch):
    """On accelerators, parameters and gradients arrive as one vector, and the step leaves as one."""
    take_accelerator_forms(monkeypatch)
    params = {"kernel": np.ones((2, 2)), "bias": np.ones(2)}
    grads = {"kernel": np.array([[1.0, 2.0], [3.0, 4.0]]), "bias": np.ones(2)}
    optim = make_optimiser(config_of(optimiser=name, weight_decay=0.1), None, 0.1)

    def steps(params, grads):
        state = optim.init(params)
        given = grads, state, params
        step, new_state = optim.update(*map(packing.pack_params, given))
        assert packing.is_packed(step)
        assert jax.tree.structure(packing.pack_params(state)) == jax.tree.structure(new_state)
        return packing.unpack((step, new_state)), packing.unpack(optim.update(*given))

    jax.tree.map(np.testing.assert_array_equal, *run(steps, *jax.device_put((params, grads))))


def test_a_decay_without_an_optimiser_that_has_one_is_refused():
    with pytest.raises(ConfigError, match=r"system.weight_decay=0.1 has no effect with system.optimiser=adam: use"):
        Gradients(decay_learning_rates=False, max_grad_norm=1.0, weight_decay=0.1).check(None, 1, 1)
