import numpy as np

from support import disco
from support.disco import EXPECTED


def test_estimates_are_those_of_another_implementation():
    inputs, returns, moments = disco.estimates(disco.make(), disco.steps())
    np.testing.assert_allclose(returns, EXPECTED["returns"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(inputs.advantage, EXPECTED["advantage"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(inputs.normalized_advantage, EXPECTED["normalized"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(moments, EXPECTED["moments"], rtol=1e-4)


def test_a_truncated_step_bootstraps_and_ends_the_trace():
    """Its return is one reward and the value of its true successor; a terminated step has its reward alone."""
    agent, steps = disco.make(), disco.steps()
    truncated, returns, _ = disco.estimates(agent, disco.steps(disco.ends(), disco.TERMINATED))
    # The next observation of these sequences is the true successor.
    value_after = (truncated.action_value - truncated.action_advantage)[2, 0, 0]
    np.testing.assert_allclose(returns[1, 0], steps.reward[1, 0] + 0.997 * value_after, rtol=1e-5)
    np.testing.assert_array_equal(truncated.ended, disco.TERMINATED)
    assert not truncated.terminated.any()
    terminated, returns, _ = disco.estimates(agent, steps)
    np.testing.assert_allclose(returns[1, 0], steps.reward[1, 0], rtol=1e-5)
    np.testing.assert_array_equal(terminated.ended, disco.TERMINATED)
