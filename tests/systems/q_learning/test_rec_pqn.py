import numpy as np
import pytest

from support.accumulator import algorithm, rollout
from support.compiled import run


def test_pqn_bootstraps_from_true_successors_with_their_states():
    """From state 10, the states are 12, 15 | 5, 6, and those of the successors 15, 22 | 6, 10. gamma = lambda = 1/2:

    G_4 = 4 + 10/2 = 9                  G_3 = 3 + (6 + 9)/4 = 6.75
    G_2 = 2 + 22/2 = 13, truncated      G_1 = 1 + (15 + 13)/4 = 8
    """
    pqn = algorithm("q_learning/rec_pqn", "system.gamma=0.5", "system.q_lambda=0.5")
    batch = run(pqn.evaluate, 1.0, rollout())
    np.testing.assert_allclose(batch.target[0], [8.0, 13.0, 6.75, 9.0])
    loss, _ = run(pqn.loss, 1.0, batch)
    assert float(loss) == pytest.approx(np.mean(np.square([-4.0, -2.0, 1.75, 3.0])) / 2)
