import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.spaces import Box, Discrete
from stoix_like.errors import ConfigError
from stoix_like.networks.distributions import Categorical
from stoix_like.systems.mpo.actions import check_bounded, excess, proposals


def test_all_discrete_actions_stand_for_a_policy_by_their_probabilities():
    probs = jnp.asarray([[0.2, 0.8], [1.0, 0.0]])
    action, log_prior = proposals(Discrete(2), Categorical(probs=probs), 16, jax.random.key(0))
    np.testing.assert_array_equal(action, [[0, 0], [1, 1]])
    np.testing.assert_allclose(jax.nn.softmax(log_prior, axis=0), probs.T, rtol=1e-6)


def test_the_penalty_is_the_distance_from_the_bounds_in_units_of_half_the_range():
    """In [-2, 2], (4, 0) is one half-width beyond; in (3, 4) of half-widths, the distance is 5."""
    space = Box(-2.0, 2.0, (2,))
    np.testing.assert_allclose(excess(space, jnp.asarray([[1.0, -2.0], [4.0, 0.0], [-8.0, 10.0]])), [0.0, 1.0, 5.0])
    with pytest.raises(ConfigError, match="system.action_penalty=true needs continuous actions with bounds"):
        check_bounded(Discrete(2))
    with pytest.raises(ConfigError, match="use false"):
        check_bounded(Box(-np.inf, np.inf, (2,)))
