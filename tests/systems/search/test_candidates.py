from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

from stoix_like.base_types import Axes
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.networks.distributions import Categorical, MultivariateNormalDiag
from stoix_like.systems.parts.normalizer import make_normalizer
from stoix_like.systems.search import candidates
from stoix_like.systems.search.anakin import ff_mz
from support.compiled import run

NEVER = np.finfo(np.float32).min


class Observed(NamedTuple):
    latent: jax.Array
    action_mask: None = None


def test_the_prior_is_the_empirical_distribution_of_the_samples():
    """Of 2, 0, 2, 2 the first 2 has three quarters, and 0 one quarter; continuous samples are all different."""
    prior = run(candidates.sampled_prior, Discrete(3), jnp.asarray([[2, 0, 2, 2], [1, 1, 1, 1]]))
    np.testing.assert_allclose(jax.nn.softmax(prior), [[0.75, 0.25, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert prior[0, 2] == prior[0, 3] == prior[1, 1] == NEVER
    vectors = jnp.asarray([[[0, 1], [0, 2], [0, 1]]])
    np.testing.assert_allclose(
        jax.nn.softmax(run(candidates.sampled_prior, MultiDiscrete((2, 3)), vectors)), [[2 / 3, 1 / 3, 0.0]], rtol=1e-6
    )
    space = Box(-1.0, 1.0, (2,))
    np.testing.assert_allclose(run(candidates.sampled_prior, space, jnp.zeros((1, 4, 2))), 0.0)


def simulation(space, num_samples, policy_at, step):
    """Search in a model whose latent state holds the last reward first."""
    model = SimpleNamespace(
        represent=lambda params, observation: observation.latent,
        policy_at=lambda params, latent, mask=None: policy_at(latent),
        value_at=lambda params, latent: jnp.zeros(len(latent)),
        reward_at=lambda params, latent: latent[:, 0],
        step=lambda params, latent, action: step(latent, action),
    )
    normalizer = make_normalizer(False, Axes(()))
    return ff_mz.make_simulation(model, normalizer, candidates.samples_of_the_policy(space, num_samples), 0.5)


def root_of(simulation, latent):
    return run(simulation.root, ((), ()), None, Observed(latent), jax.random.key(0))


def test_the_nodes_hold_their_actions():
    """A model whose state counts the actions taken; every node samples around twice its state."""

    def around(latent):
        return MultivariateNormalDiag(2.0 * latent[:, 1:], jnp.ones((len(latent), 1)))

    def step(latent, action):
        return jnp.stack([action[:, 0], latent[:, 1] + action[:, 0]], axis=-1)

    search = simulation(Box(-1.0, 1.0, (1,)), 3, around, step)
    root = root_of(search, jnp.asarray([[0.0, 0.0], [0.0, 5.0]]))
    assert root.embedding.actions.shape == (2, 3, 1)
    assert abs(root.embedding.actions[1] - 10.0).max() < 5.0
    output, node = run(search.step, ((), ()), jax.random.key(1), jnp.asarray([2, 0]), root.embedding)
    chosen = np.asarray([root.embedding.actions[0, 2, 0], root.embedding.actions[1, 0, 0]])
    np.testing.assert_allclose(output.reward, chosen)
    np.testing.assert_allclose(output.discount, 0.5)
    count = chosen + np.asarray([0.0, 5.0])
    np.testing.assert_allclose(node.latent[:, 1], count)
    assert abs(node.actions[..., 0] - 2.0 * count[:, None]).max() < 5.0


@pytest.mark.slow
def test_a_search_prefers_the_best_sample_and_never_a_duplicate():
    """One step of a bandit whose reward is the action."""

    def uniform(latent):
        return Categorical(logits=jnp.zeros((len(latent), 3)))

    search = simulation(Discrete(3), 4, uniform, lambda latent, action: action[:, None].astype(jnp.float32))
    root = root_of(search, jnp.zeros((64, 1)))
    duplicates = np.asarray(root.prior_logits) == NEVER
    with jax.numpy_rank_promotion("allow"):
        found = run(
            mctx.gumbel_muzero_policy,
            *(((), ()), jax.random.key(1), root, search.step, 8, jnp.asarray(duplicates)),
            max_depth=1,
        )
    actions = root.embedding.actions
    assert duplicates.any()
    assert (np.asarray(found.action_weights)[duplicates] == 0.0).all()
    best = candidates.take_action(actions, jnp.argmax(found.action_weights, -1))
    np.testing.assert_array_equal(best, actions.max(-1))


def test_the_policy_loss_is_the_cross_entropy_over_the_samples():
    """With pi = (1/2, 1/4, 1/4), weights 3/4 of action 0 and 1/4 of action 2: 3/4 log 2 + 1/4 log 4 = 5/4 log 2."""
    pi = Categorical(probs=jnp.asarray([[0.5, 0.25, 0.25]]))
    loss = run(candidates.search_policy_loss, pi, jnp.asarray([[0, 2, 0]]), jnp.asarray([[0.75, 0.25, 0.0]]))
    np.testing.assert_allclose(loss, [1.25 * np.log(2.0)], rtol=1e-6)
    normal = MultivariateNormalDiag(jnp.zeros((2, 5, 1)), jnp.ones((2, 5, 1)))
    actions = jnp.ones((2, 5, 3, 1))
    density = -0.5 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(
        run(candidates.search_policy_loss, normal, actions, jnp.full((2, 5, 3), 1 / 3)),
        np.full((2, 5), -density),
        rtol=1e-6,
    )
