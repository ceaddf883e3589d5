import numpy as np
import pytest

from stoix_like.policies.make import make_policy
from support.trained_runs import SMALL
from support.untrained import untrained

pytestmark = pytest.mark.slow


def test_visits_are_whole_episodes():
    policy = make_policy(*untrained(*SMALL, "env=gymnax/pendulum", "env.time_limit=20"), {})
    visits = policy.play(episodes=3)
    assert visits.finished.all()
    assert np.bincount(visits.episode).tolist() == [20, 20, 20]
    # The reward of Pendulum: -(angle² + 0.1 velocity² + 0.001 torque²), of the state that was acted on.
    cosine, sine, velocity = visits.observation.agent_view.T
    expected = -(np.arctan2(sine, cosine) ** 2 + 0.1 * velocity**2 + 0.001 * visits.action[:, 0] ** 2)
    np.testing.assert_allclose(visits.reward, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(visits.returns, visits.reward.reshape(3, 20).sum(1), rtol=1e-5)
