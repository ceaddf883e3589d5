"""Tests of the search over sampled actions."""

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.networks.distributions import Categorical, MultivariateNormalDiag
from stoix_like.systems.search import sampled

NEVER = np.finfo(np.float32).min


def test_the_prior_is_the_empirical_distribution_of_the_samples():
    """Of 2, 0, 2, 2 the first 2 has three quarters, and 0 one quarter; continuous samples are all different."""
    prior = sampled.sampled_prior(Discrete(3), jnp.asarray([[2, 0, 2, 2], [1, 1, 1, 1]]))
    np.testing.assert_allclose(jax.nn.softmax(prior), [[0.75, 0.25, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert prior[0, 2] == prior[0, 3] == prior[1, 1] == NEVER
    vectors = jnp.asarray([[[0, 1], [0, 2], [0, 1]]])
    np.testing.assert_allclose(
        jax.nn.softmax(sampled.sampled_prior(MultiDiscrete((2, 3)), vectors)), [[2 / 3, 1 / 3, 0.0]], rtol=1e-6
    )
    space = Box(-1.0, 1.0, (2,))
    np.testing.assert_allclose(sampled.sampled_prior(space, jnp.zeros((1, 4, 2))), 0.0)


def test_the_nodes_hold_their_actions():
    """A model whose state counts the actions taken; every node samples around twice its state."""

    def step(params, key, action, state):
        del params, key
        state = state + action[:, 0]
        return (
            action[:, 0],
            jnp.full(len(state), 0.5),
            MultivariateNormalDiag(2.0 * state[:, None], jnp.ones((len(state), 1))),
            state,
            state,
        )

    space = Box(-1.0, 1.0, (1,))
    pi = MultivariateNormalDiag(jnp.asarray([[0.0], [10.0]]), jnp.ones((2, 1)))
    root = sampled.sampled_root(space, 3, pi, jnp.zeros(2), jnp.zeros(2), jax.random.key(0))
    assert root.embedding.actions.shape == (2, 3, 1)
    assert abs(root.embedding.actions[1] - 10.0).max() < 5.0
    index = jnp.asarray([2, 0])
    recurrent_fn = sampled.over_samples(space, 3, step)
    output, node = recurrent_fn((), jax.random.key(1), index, root.embedding)
    chosen = np.asarray([root.embedding.actions[0, 2, 0], root.embedding.actions[1, 0, 0]])
    np.testing.assert_allclose(output.reward, chosen)
    np.testing.assert_allclose(node.state, chosen)
    assert abs(node.actions[..., 0] - 2.0 * chosen[:, None]).max() < 5.0


def test_a_search_prefers_the_best_sample_and_never_a_duplicate():
    """One step of a bandit whose reward is the action."""

    def step(params, key, action, state):
        del params, key
        pi = Categorical(logits=jnp.zeros((len(action), 3)))
        return action.astype(jnp.float32), jnp.zeros(len(action)), pi, jnp.zeros(len(action)), state

    pi = Categorical(logits=jnp.zeros((64, 3)))
    root = sampled.sampled_root(Discrete(3), 4, pi, jnp.zeros(64), jnp.zeros(64), jax.random.key(0))
    duplicates = np.asarray(root.prior_logits) == NEVER
    recurrent_fn = sampled.over_samples(Discrete(3), 4, step)
    with jax.numpy_rank_promotion("allow"):
        found = mctx.gumbel_muzero_policy((), jax.random.key(1), root, recurrent_fn, 8, jnp.asarray(duplicates))
    actions = root.embedding.actions
    assert duplicates.any()
    assert (np.asarray(found.action_weights)[duplicates] == 0.0).all()
    best = sampled.take_action(actions, jnp.argmax(found.action_weights, -1))
    np.testing.assert_array_equal(best, actions.max(-1))


def test_the_policy_loss_is_the_cross_entropy_over_the_samples():
    """With pi = (1/2, 1/4, 1/4), weights 3/4 of action 0 and 1/4 of action 2: 3/4 log 2 + 1/4 log 4 = 5/4 log 2."""
    pi = Categorical(probs=jnp.asarray([[0.5, 0.25, 0.25]]))
    loss = sampled.sampled_policy_loss(pi, jnp.asarray([[0, 2, 0]]), jnp.asarray([[0.75, 0.25, 0.0]]))
    np.testing.assert_allclose(loss, [1.25 * np.log(2.0)], rtol=1e-6)
    normal = MultivariateNormalDiag(jnp.zeros((2, 5, 1)), jnp.ones((2, 5, 1)))
    actions = jnp.ones((2, 5, 3, 1))
    density = -0.5 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(
        sampled.sampled_policy_loss(normal, actions, jnp.full((2, 5, 3), 1 / 3)), np.full((2, 5), -density), rtol=1e-6
    )
