import jax.numpy as jnp
import pytest

from stoix_like.base_types import SearchOutput
from stoix_like.systems.search.tree import expected_value
from support.set_ups import setup_of


@pytest.mark.slow
def test_a_depth_that_simulations_can_reach_is_accepted():
    for depth, more in ((4, []), (8, ["system.evaluation_simulations=8"])):
        overrides = ["system=search/ff_az", "system.num_simulations=4", f"system.max_depth={depth}", *more]
        assert setup_of("arch.num_devices=1", *overrides).config.system.search.max_depth == depth


def test_the_expected_value_is_that_of_the_policy_that_was_found():
    """By hand: 3/4 of 2 and 1/4 of the unvisited action, for which the value before the search, 6, stands."""
    found = SearchOutput(
        action=jnp.zeros(1, jnp.int32),
        candidates=None,
        prior=jnp.asarray([[0.5, 0.5]]),
        weights=jnp.asarray([[0.75, 0.25]]),
        visits=jnp.asarray([[4.0, 0.0]]),
        action_values=jnp.asarray([[2.0, jnp.nan]]),
        prior_value=jnp.asarray([6.0]),
        value=jnp.asarray([5.0]),
    )
    assert float(expected_value(found)[0]) == pytest.approx(3.0)
