import jax
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.policies.load import load_policy
from stoix_like.policies.make import make_policy
from support.compiled import run
from support.untrained import untrained


def test_policy_accepts_any_batch_axes(policy):
    view = np.asarray(policy.random_observations(jax.random.key(0), 3).agent_view)
    many = policy(view)
    assert many.shape == (3, 1)
    assert policy(view[0]).shape == (1,)
    np.testing.assert_allclose(policy(view[0]), many[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(policy(view.reshape(3, 1, 3)), many.reshape(3, 1, 1))
    np.testing.assert_array_equal(policy(Observation(view)), many)
    np.testing.assert_allclose(jax.jit(policy)(view), many, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(policy(view.astype(np.float64)), many)


def test_sampling_policy_needs_a_key(policy, sampling):
    view = np.zeros((3, 3), np.float32)
    with pytest.raises(ValueError, match="key=None, .* pass a key, or load it with greedy=True"):
        sampling(view)
    keys = jax.random.split(jax.random.key(0))
    first, second = (np.asarray(sampling(view, key)) for key in keys)
    assert len(np.unique([first, second])) == 6
    np.testing.assert_array_equal(sampling(view, keys[0]), first)
    assert policy.greedy
    np.testing.assert_array_equal(policy(view), policy(view, keys[1]))
    for one, other in ((policy, False), (sampling, True)):
        with pytest.raises(ValueError, match=f"load it with greedy={other}"):
            one.predict(view[0], deterministic=other)


def test_predict_returns_what_calls_return(pendulum, policy, sampling):
    observations = np.asarray([[1.0, 0.0, 0.5], [0.0, -1.0, -2.0]], np.float32)
    for given in (observations, observations[0]):
        actions, state = policy.predict(given, deterministic=True)
        assert (type(actions), state) == (np.ndarray, None)
        np.testing.assert_array_equal(actions, policy(given))
    drawn = [sampling.predict(observations)[0] for _ in range(2)]
    assert not np.array_equal(*drawn)
    again = load_policy(pendulum, "last", greedy=False)
    np.testing.assert_array_equal([again.predict(observations, deterministic=False)[0] for _ in range(2)], drawn)


def test_parameters_are_public(policy):
    """Actions are a function of `params` and the observation, with gradients."""
    view = np.asarray(policy.random_observations(jax.random.key(0), 3).agent_view)
    np.testing.assert_array_equal(policy.apply(policy.params, view), policy(view))
    doubled = jax.device_put(jax.tree.map(lambda leaf: 2 * np.asarray(leaf), policy.params))
    assert (policy.apply(doubled, view) != policy(view)).any()
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), policy.params, doubled)
    both = jax.vmap(policy.apply, (0, None))(stacked, view)
    np.testing.assert_allclose(both[1], policy.apply(doubled, view), rtol=1e-5, atol=1e-6)
    grads = run(jax.grad(lambda params: policy.apply(params, view).sum()), policy.params)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(grads.actor_params))


def test_scales_of_exploration_noise_are_no_recurrent_state():
    setup, shared = untrained("system=ddpg/ff_td3", "env=gymnax/pendulum", "system.max_exploration_noise=0.8")
    policy = make_policy(setup, shared, {}, greedy=True)
    assert policy(np.zeros((5, 3), np.float32)).shape == (5, 1)
