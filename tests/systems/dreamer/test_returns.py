import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.systems.dreamer.returns import imagined_returns, replayed_returns
from stoix_like.utils.replay import Stream


def test_imagined_returns_and_weights_follow_the_probability_to_continue():
    """Values 1, 2, 4, rewards 1, 3 and continuations 1, 1/2 behind the start; gamma and lambda are 1/2.

    Discounts 1/2 and 1/4: R_1 = 3 + 4 / 4 = 4, and R_0 = 1 + (2 / 2 + R_1 / 2) / 2 = 2.5. The second step counts as
    much as the first discount, and nothing follows a terminated start.
    """
    reward, continues, value = ([[[x] * 2] for x in column] for column in ([1.0, 3.0], [1.0, 0.5], [1.0, 2.0, 4.0]))
    reward, continues, value = (jnp.array(column)[:, 0] for column in (reward, continues, value))
    returns, weight = imagined_returns(reward, continues, value, jnp.array([False, True]), 0.5, 0.5)
    np.testing.assert_allclose(returns, [[2.5, 2.5], [4.0, 4.0]])
    np.testing.assert_allclose(weight, [[1.0, 0.0], [0.5, 0.0]])


@pytest.mark.parametrize(("terminated", "expected"), [(False, [4.5, 7.0, 13.0]), (True, [2.0, 2.0, 13.0])])
def test_replayed_returns_bootstrap_where_an_episode_is_truncated(terminated, expected):
    """Rewards 1, 2 and the end of an episode; then the first entry of another one, and a reward of 3.

    gamma is 1/2, lambda 1, the values of the entries are 9, 9, 10, 9, 20. The last step: 3 + 20 / 2 = 13. Truncated:
    2 + 10 / 2 = 7 and 1 + 7 / 2 = 4.5; terminated: 2 and 1 + 2 / 2 = 2. The last entry of an episode has no return.
    """
    columns = [1, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0.0, 1.0, 2.0, 0.0, 3.0], [9.0, 9.0, 10.0, 9.0, 20.0]
    is_first, is_last, reward, value = (jnp.array(column)[:, None] for column in columns)
    is_last = is_last.astype(bool)
    entries = Stream(Observation(None), None, reward, is_first.astype(bool), is_last, is_last & terminated)
    returns, counts = replayed_returns(entries, value, 0.5, 1.0)
    np.testing.assert_array_equal(counts[:, 0], [True, True, False, True])
    np.testing.assert_allclose(returns[counts], expected)
