from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashbax.buffers import sum_tree

from stoix_like.utils.replay.sum_tree import set_priorities
from support.platforms import take_accelerator_forms


class State(SimpleNamespace):
    def replace(self, **fields):
        return State(**(vars(self) | fields))


@pytest.mark.parametrize("gpu", [False, True])
def test_sums_of_all_levels_follow_priorities_and_the_largest_of_equal_items_counts(gpu, monkeypatch):
    if gpu:
        take_accelerator_forms(monkeypatch)
    # Five items: a tree of depth 3, with 1 + 2 + 4 + 8 nodes.
    state = set_priorities(State(sum_tree_state=sum_tree.init(5)), jnp.array([0, 3, 4]), jnp.array([1.0, 2.0, 8.0]))
    state = set_priorities(state, jnp.array([3, 1, 3]), jnp.array([5.0, 0.25, 4.0]))
    nodes = [14.25, 6.25, 8.0, 1.25, 5.0, 8.0, 0.0, 1.0, 0.25, 0.0, 5.0, 8.0, 0.0, 0.0, 0.0]
    np.testing.assert_array_equal(state.sum_tree_state.nodes, nodes)
    assert state.sum_tree_state.max_recorded_priority == 8.0


def test_items_of_a_diverged_loss_are_not_drawn_and_spoil_no_sum():
    state = set_priorities(State(sum_tree_state=sum_tree.init(4)), jnp.arange(4), jnp.array([1.0, 2.0, 3.0, 4.0]))
    state = set_priorities(state, jnp.array([0, 2]), jnp.array([jnp.nan, jnp.inf]))
    np.testing.assert_array_equal(state.sum_tree_state.nodes, [6.0, 2.0, 4.0, 0.0, 2.0, 0.0, 4.0])
    assert state.sum_tree_state.max_recorded_priority == 4.0


def test_items_are_set_without_a_loop():
    def update(tree):
        return set_priorities(State(sum_tree_state=tree), jnp.arange(64), jnp.ones(64)).sum_tree_state

    program = str(jax.make_jaxpr(update)(sum_tree.init(1024)))
    assert "scan[" not in program
    assert "while[" not in program
