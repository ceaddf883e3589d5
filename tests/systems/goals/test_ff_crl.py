import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation
from stoix_like.errors import ConfigError
from stoix_like.utils.replay import Batch
from support.algorithms import make_algorithm
from support.set_ups import setup_of

WIDTHS = [f"network.{name}_network.pre_torso.layer_sizes=[16]" for name in ("actor", "q", "goal")]
SMALL = ["system=goals/ff_crl", "env=goals/point_maze", "arch.num_devices=1", *WIDTHS]


def crl(*overrides):
    return make_algorithm(setup_of(*SMALL, *overrides), axes=Axes())


def batch(size):
    views = jax.random.uniform(jax.random.key(0), (3, size, 2))
    view = Observation(dict(zip(("observation", "achieved_goal", "desired_goal"), views, strict=True)))
    zeros = jnp.zeros(size)
    return Batch(view, jax.random.uniform(jax.random.key(1), (size, 2)), zeros, zeros, view, zeros + 1.0, None)


@pytest.mark.parametrize("energy", ["norm", pytest.param("cosine", marks=pytest.mark.slow)])
def test_values_are_the_diagonal_of_the_similarities_of_the_batch(energy):
    """The reward is not read; of two critics, the value is the smaller. What was achieved is part of a state."""
    algorithm, data = crl(f"system.energy={energy}", "system.num_critics=2"), batch(5)
    shared = jax.jit(algorithm.init_shared)(jax.random.key(2), data.observation)

    @jax.jit
    def compute(data):
        encodings = algorithm.q_values(shared.params.q_params.online, data.observation, data.action, None)
        return algorithm.similarities(encodings), algorithm.value(shared.params, data.observation, data.action)

    similarities, value = compute(data)
    np.testing.assert_allclose(value, jnp.diagonal(similarities, axis1=1, axis2=2).min(0), rtol=1e-3, atol=1e-3)
    other = Observation(data.observation.agent_view | {"achieved_goal": jnp.ones((5, 2))})
    np.testing.assert_array_equal(value, compute(data._replace(reward=jnp.ones(5)))[1])
    assert (np.asarray(value) != np.asarray(compute(data._replace(observation=other))[1])).all()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("env=gymnax/pendulum", r"needs observations with the entries observation, achieved_goal and desired_goal, wh"),
        ("env=goals/bit_flip", r"system=goals/ff_crl does not fit the 8 discrete actions of goals/bit_flip"),
        ("+system.relabel=future", r"system.relabel=future is not known: choose from geometric"),
        ("+system.relabel_fraction=0.5", r"system.relabel_fraction=0.5 has no effect here"),
        ("network=mlp_sac", r"system=goals/ff_crl needs"),
        ("network=deep_crl network.q_network.pre_torso.depth=6", "depth=6 must be a multiple of 4"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        setup_of("system=goals/ff_crl", "env=goals/point_maze", *overrides.split())


@pytest.mark.slow
def test_one_key_sets_the_depth_of_all_networks():
    networks = setup_of(
        "system=goals/ff_crl", "env=goals/point_maze", "network=deep_crl", "network.q_network.pre_torso.depth=16"
    ).spec.networks
    assert {network.pre_torso.depth for network in vars(networks).values()} == {16}
