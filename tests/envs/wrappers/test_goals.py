import jax
import numpy as np
import pytest

from stoix_like.envs import Vectorize, check_environment
from stoix_like.envs.wrappers import ReachEntries, TimeLimit
from support.countable_envs import Counter, play


def test_an_entry_at_its_goal_ends_the_episode():
    """The first entry counts steps; steps cost 1 until it is 3, also where the environment ends its episode itself."""
    env = ReachEntries(Vectorize(Counter()), entries=[0], goal=[3.0])
    timesteps = play(env, [7, 7, 7])
    assert [float(t.reward) for t in timesteps[1:]] == [-1.0, -1.0, 0.0]
    assert [bool(t.terminated) for t in timesteps] == [False, False, False, True]
    assert [float(t.episode.measures["success_rate"]) for t in timesteps] == [0.0, 0.0, 0.0, 1.0]
    view = timesteps[2].observation.agent_view
    assert {name: entry.tolist() for name, entry in view.items()} == {
        "observation": [2.0, 7.0],
        "achieved_goal": [2.0],
        "desired_goal": [3.0],
    }
    ended = play(ReachEntries(Vectorize(Counter(ends_after=2)), entries=[0], goal=[3.0]), [7, 7])[-1]
    assert (float(ended.reward), bool(ended.terminated)) == (-1.0, True)


def test_goals_are_drawn_in_each_episode():
    env = ReachEntries(Vectorize(Counter()), entries=[0, 1], goal=[1.0, -3.0], until=[5.0, -3.0], radius=1.5)
    keys = jax.random.split(jax.random.key(0), 500)
    _, timestep = jax.jit(env.reset)(keys)
    goals = timestep.observation.agent_view["desired_goal"]
    np.testing.assert_allclose([goals[:, 0].min(), goals[:, 0].max()], [1.0, 5.0], atol=0.1)
    np.testing.assert_array_equal(goals[:, 1], -3.0)
    # They are not what an environment draws from its own keys.
    others = jax.vmap(lambda key: jax.random.uniform(jax.random.split(key)[1], (2,), minval=1.0, maxval=5.0))(keys)
    assert (np.abs(goals[:, 0] - others[:, 0]) > 1e-3).mean() > 0.9
    assert "no faults" in str(check_environment(TimeLimit(env, 20), num_steps=60))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entries": [2], "goal": [1.0]}, r"entries=\[2\] must be indices of a vector, of 2 entries here"),
        ({"entries": [0], "goal": [1.0, 2.0]}, r"goal=\[1.0, 2.0\], .*use one number for each of 1 entries"),
    ],
)
def test_goals_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ReachEntries(Vectorize(Counter()), **options)
