import numpy as np
import pytest

from stoix_like.errors import ConfigError
from stoix_like.storage.returns import best_member, returns_of


def host_state(returns, *, best=None, continues=None, env_steps=100):
    last = {"env_steps": env_steps, "eval/episode_return_mean": returns}
    last |= {"population/continues": continues} if continues else {}
    state = {"progress": {"history": [{"env_steps": 10}, last]}}
    return state if best is None else {**state, "best": best}


def test_the_frozen_policy_of_a_member_that_diverged_is_not_the_best():
    state = host_state([1.0, 9.0])
    state["progress"]["history"][-1]["population/failed"] = [1]
    assert returns_of(state, 100, best=False).returns.tolist() == [1.0, 9.0]
    assert returns_of(state, 100, best=False).best_member == 0
    # Its best policy is from before.
    state["best"] = {"episode_return": [3.0, 9.0], "env_steps": [60, 60]}
    assert returns_of(state, 100, best=True).best_member == 1


def test_parameters_that_were_not_evaluated_have_no_return():
    assert np.isnan(returns_of(host_state([1.0, 2.0]), 120, best=True).returns).all()
    replaced = host_state([1.0, 2.0], continues=[1, 1])
    assert returns_of(replaced, 100, best=True).returns.tolist() == [2.0, 2.0]
    with pytest.raises(ConfigError, match="from before the first evaluation: resume the run first"):
        returns_of({"progress": {"history": []}}, 0, best=True)


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([[1.0, 3.0, 2.0]], 1),
        ([[5.0, 5.0, 5.0, 1.0]], 1),  # the middle one
        ([[5.0, 5.0, 5.0, 1.0], [2.0, 3.0, 4.0, 9.0]], 2),
        ([[np.nan, -np.inf, -np.inf]], 1),
        ([[np.nan, 2.0], [9.0, 1.0]], 1),
        ([3.0], 0),
    ],
)
def test_ties_go_to_the_next_scores_and_then_to_the_middle(scores, best):
    assert best_member(*scores) == best
