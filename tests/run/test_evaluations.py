import numpy as np
import pytest

from stoix_like.run import evaluations
from stoix_like.run.learner import Learner
from support import toys
from support.set_ups import loop_of

POPULATION = ["env=probe/discount", "arch.total_timesteps=32", "arch.num_evaluation=1", "arch.population.size=2"]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "stored"), [(9, 4), (1, 1), (1000, 30)])
def test_a_summary_stores_a_limited_number_of_episode_returns(limit, stored, monkeypatch):
    """Over all members: with two of them and ten times three episodes, four are left of nine."""
    monkeypatch.setattr(evaluations, "MAX_EPISODE_RETURNS", limit)
    overrides = [*toys.overrides(), *POPULATION, "arch.num_eval_episodes=3", "arch.absolute_metric=true"]
    loop = loop_of(*overrides)
    play, numbers = Learner.play, []

    def noted(self, number, *args):
        numbers.append(int(number))
        return play(self, number, *args)

    monkeypatch.setattr(Learner, "play", noted)
    loop.train()
    assert np.shape(loop.summary()["absolute_episode_returns"]) == (2, stored)
    # Before and after training, and ten times the best parameters: no two have the same start states.
    assert len(numbers) == len(set(numbers)) == 2 + evaluations.ABSOLUTE_FACTOR
