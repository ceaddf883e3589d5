import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import Box
from stoix_like.systems.search.world_model import make_latent_model, mean, scale_to_unit
from support.set_ups import setup_of

PARTS = ("representation", "dynamics", "reward", "actor", "critic")


@pytest.fixture(scope="module")
def model():
    overrides = [f"network.{name}_network.pre_torso.layer_sizes=[8]" for name in PARTS]
    setup = setup_of("system=search/ff_mz", "env=gymnax/cartpole", *overrides)
    return make_latent_model(setup.config.system.atoms, setup.spec)


@pytest.fixture(scope="module")
def params(model):
    return jax.jit(model.init)(jax.random.key(1), Observation(np.ones((2, 4))))


def test_latent_states_are_scaled_to_the_unit_interval():
    """By hand: 1, 3, 2 lie between 1 and 3; equal units, without a range, are zero."""
    np.testing.assert_allclose(scale_to_unit(jnp.asarray([[1.0, 3.0, 2.0], [4.0, 4.0, 4.0]])), [[0, 1, 0.5], [0, 0, 0]])


@pytest.mark.slow
def test_a_step_depends_on_the_action(model, params):
    latent = jnp.tile(jnp.linspace(0.0, 1.0, 8), (2, 1))
    left, right = jax.jit(model.step)(params, latent, jnp.asarray([0, 1]))
    assert float(jnp.abs(left - right).max()) > 1e-3


def test_continuous_actions_enter_in_units_of_their_bounds(model):
    """The action 1 of [-2, 2] is half of its bound."""
    continuous = dataclasses.replace(model, action_space=Box(-2.0, 2.0, (1,)))
    np.testing.assert_allclose(continuous._with_action(jnp.zeros((1, 2)), jnp.ones((1, 1))), [[0.0, 0.0, 0.5]])


@pytest.mark.parametrize("kind", ["two_hot", "hl_gauss"])
def test_the_loss_of_a_value_is_least_at_the_value_that_its_distribution_stands_for(model, params, kind):
    """Of a distribution with all of its mass on the atom 2, which stands for h^-1(2) = 7.95."""
    bias = 20.0 * (np.arange(-25.0, 26.0) == 2.0)
    certain = jax.tree.map(lambda leaf: bias if leaf.shape == bias.shape else np.zeros(leaf.shape), params["critic"])
    trained = dataclasses.replace(model, target_distribution=kind)

    @jax.jit
    def mean_and_losses(critic, latent, targets):
        return mean(model.critic.apply(critic, latent)), trained.value_loss({"critic": critic}, latent, targets)

    targets = np.array([[0.0], [7.95], [20.0]])
    means, losses = mean_and_losses(
        jax.tree.map(np.float32, certain), np.zeros((3, 1, 8), np.float32), np.float32(targets)
    )
    np.testing.assert_allclose(means, 7.95, atol=0.01)
    assert np.argmin(losses) == 1
