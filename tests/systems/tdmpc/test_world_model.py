from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation
from stoix_like.systems.tdmpc.world_model import ImplicitModel
from support.algorithms import make_algorithm, with_methods
from support.compiled import run
from support.set_ups import setup_of
from support.small_tdmpc import SMALL


@pytest.fixture(scope="module")
def model():
    return make_algorithm(setup_of("system=tdmpc/td_mpc2", "env=gymnax/pendulum", *SMALL), axes=Axes()).model


def test_predicted_returns_stop_where_the_model_predicts_an_end():
    """A latent counts steps, which is also the reward; an episode ends with step 3, and the policy is worth 100.

    With gamma 1/2, from 0: 0 + 1/2 1 + 1/4 100 = 25.5; from 1: 1 + 1/2 2, and the episode is over; from 2: 2.
    Without predictions of ends, from 2: 2 + 1/2 3 + 1/4 100 = 28.5.
    """
    counting = {
        "reward_at": lambda self, params, latent, action: latent[..., 0],
        "step": lambda self, params, latent, action: latent + 1.0,
        "policy": lambda self, params, latent: SimpleNamespace(sample=lambda seed: latent),
        "to_vector": lambda self, action: action,
        "two_values": lambda self, params, latent, action, key: jnp.full((*latent.shape[:-1], 2), 100.0),
    }
    ends, endless = (lambda self, params, latent: 2.5 - latent[..., 0]), (lambda self, params, latent: None)
    start, actions = jnp.asarray([[0.0], [1.0], [2.0]]), jnp.zeros((2, 3, 1, 1))
    params = SimpleNamespace(q=())
    for logit, expected in ((ends, [25.5, 2.0, 2.0]), (endless, [25.5, 27.0, 28.5])):
        model = with_methods(ImplicitModel(*[None] * 7), logit_continues=logit, **counting)
        returns = run(partial(model.returns, params, (), start, 0.5, actions), jax.random.key(0))
        np.testing.assert_allclose(returns[:, 0], expected)


@pytest.mark.slow
def test_latents_are_simplices(model):
    params, _ = jax.jit(model.init)(jax.random.key(0), Observation(jnp.ones((2, 3))))
    latent = run(model.represent, params, Observation(jnp.asarray(np.random.default_rng(0).normal(size=(2, 3)))))
    after = run(model.step, params, latent, model.to_vector(jnp.asarray([[1.0], [-1.0]])))
    for latents in (latent, after):
        np.testing.assert_allclose(latents.reshape(2, 2, 8).sum(-1), 1.0, rtol=1e-5)


def test_values_minimise_their_losses():
    """Logits with the probabilities of the two atoms around symlog(20): the loss is their entropy, the value 20."""
    target = jnp.asarray(20.0)
    atoms = np.linspace(-10.0, 10.0, 101)
    place = (np.log(21.0) + 10.0) / 0.2
    share = place - np.floor(place)
    logits = np.full(101, -50.0)
    logits[[int(place), int(place) + 1]] = np.log([1.0 - share, share])
    outputs = (jnp.float32(np.log(21.0)), jnp.asarray(logits, jnp.float32), jnp.asarray(atoms, jnp.float32))
    stacked = jax.tree.map(lambda x: jnp.stack([x] * 5, axis=-1), outputs)
    critics = SimpleNamespace(apply=lambda *args, **kwargs: stacked)
    known = ImplicitModel(None, None, None, None, critics, None, None)
    losses = run(lambda target: known.value_losses((), jnp.zeros(4), jnp.zeros(1), target, jax.random.key(0)), target)
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    np.testing.assert_allclose(losses, [entropy] * 5, rtol=1e-4)
    np.testing.assert_allclose(run(lambda x: known.values((), x, x), jnp.zeros(4)), [20.0] * 5, rtol=1e-5)
