import numpy as np
import pytest

from stoix_like.base_types import SearchOutput
from stoix_like.envs.legends import Legend
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.errors import ConfigError
from stoix_like.lab.analysis.searches import draw_search
from stoix_like.lab.searches import SearchedEpisode


def episode(candidates=None):
    """Return two steps with three actions, of which the second step visited the last two."""
    space = Discrete(3) if candidates is None else Box(-1.0, 1.0, (1,))
    found = SearchOutput(
        action=np.asarray([2, 1]) if candidates is None else candidates[[0, 1], [2, 1]],
        candidates=candidates,
        prior=np.asarray([[0.2, 0.3, 0.5], [0.0, 0.5, 0.5]]),
        weights=np.asarray([[0.1, 0.1, 0.8], [0.0, 0.75, 0.25]]),
        visits=np.asarray([[1, 1, 2], [0, 3, 1]]),
        action_values=np.asarray([[0.0, 1.0, 2.0], [np.nan, 4.0, 3.0]]),
        prior_value=np.asarray([0.5, 1.0]),
        value=np.asarray([1.25, 3.0]),
    )
    return SearchedEpisode("system on environment", space, Legend((), ()), found, np.asarray([1.0, 2.0]))


def test_bars_are_probabilities_and_shares_of_the_visits():
    """Of four visits in step 1, three went to action 1; action 0 has neither a prior nor a visit, and is left out."""
    probabilities, values, steps = draw_search(episode(), 1).axes
    heights = [[bar.get_height() for bar in bars] for bars in probabilities.containers]
    assert heights == [[0.5, 0.5], [0.75, 0.25], [0.75, 0.25]]
    assert [label.get_text() for label in probabilities.get_xticklabels()] == ["action 1", "action 2"]
    np.testing.assert_array_equal(values.lines[0].get_ydata(), [4.0, 3.0])
    np.testing.assert_array_equal(steps.lines[1].get_ydata(), [1.25, 3.0])
    with pytest.raises(ConfigError, match="step=2 is out of range: the episode has 2 steps, 0 to 1"):
        draw_search(episode(), 2)


def test_sampled_actions_are_named_by_their_value_and_the_taken_one_is_marked():
    candidates = np.asarray([[[-0.5], [0.0], [0.25]], [[0.1], [0.2], [0.3]]])
    labels = draw_search(episode(candidates), 0).axes[0].get_xticklabels()
    assert [label.get_text() for label in labels] == ["-0.5", "0", "0.25"]
    assert [label.get_color() != "black" for label in labels] == [False, False, True]
