import numpy as np
import pytest

from stoix_like.errors import ConfigError
from support.lazily import Lazy

analysis = Lazy("stoix_like.lab.analysis")
pytestmark = pytest.mark.slow


def test_other_features_are_fixed_typical_or_averaged(pendulum, visits):
    def values(**options):
        return analysis.take_slice(pendulum, ["angular_velocity"], visits=visits, points=2, **options).found.value

    np.testing.assert_allclose(values(fixed={"angle": 1.0}), np.cos([1.0, 1.0]), rtol=1e-5)
    cosine = visits.observation.agent_view[:, 0]
    assert values()[0] in cosine
    # 32 of 60 states: their mean, not that of one of them.
    rows = np.random.default_rng(0).permutation(60)[:32]
    np.testing.assert_allclose(values(others="sampled"), [cosine[rows].mean()] * 2, rtol=1e-4)


def test_an_entry_of_a_varied_feature_is_neither_held_nor_fixed(cartpole):
    taken = analysis.take_slice(cartpole, ["observation[2]"], points=3)
    assert sorted(taken.held) == ["cart_position", "cart_velocity", "pole_velocity"]
    with pytest.raises(ConfigError, match="pole_angle is fixed and varies"):
        analysis.take_slice(cartpole, ["observation[2]"], fixed={"pole_angle": 0.1}, visits=taken.visits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ["angel"]}, "feature angel is unknown: did you mean 'angle'"),
        ({"features": ["angle", "angular_velocity", "observation[0]"]}, "are too many: choose at most 2"),
        ({"fixed": {"angle": 0.0}}, "angle is fixed and varies"),
        ({"others": "mean"}, "others=mean is unknown"),
    ],
)
def test_slices_that_make_no_sense_are_refused(pendulum, visits, options, message):
    with pytest.raises(ConfigError, match=message):
        analysis.take_slice(pendulum, visits=visits, **options)
