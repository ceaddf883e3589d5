import numpy as np
import pytest

from stoix_like.envs import suites
from stoix_like.envs.legends import all_features, find_feature, find_legend
from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete
from stoix_like.envs.wrappers import FlattenObservation, SelectEntries, StackFrames
from stoix_like.errors import ConfigError

NESTED = Dict({"arm": Dict({"joints": Box(-1.0, 1.0, (2, 3))}), "time": Box(0.0, np.inf, ())})


def test_an_angle_is_read_and_written_as_cosine_and_sine():
    angle = find_legend("Acrobot-v1").features[1]
    view = {"": np.arange(12.0).reshape(2, 6)}
    written = angle.write(view, np.array([0.5, -3.0]))
    np.testing.assert_allclose(angle.read(written), [0.5, -3.0])
    np.testing.assert_allclose(written[""][0], [0.0, 1.0, np.cos(0.5), np.sin(0.5), 4.0, 5.0])
    assert view[""][0, 2] == 2.0


def test_entries_of_a_dictionary_have_dotted_names():
    feature = find_feature("arm.joints[1,2]", (), NESTED)
    assert (feature.leaf, feature.places, feature.low, feature.high) == ("arm.joints", (5,), -1.0, 1.0)
    assert find_feature("time", (), NESTED).low is None
    assert [found.name for found in all_features((), NESTED)][-2:] == ["arm.joints[1,2]", "time"]


def test_entries_of_integers_have_the_range_of_their_space():
    space = Dict({"cells": MultiDiscrete((3, 16)), "room": Discrete(5)})
    found = [(feature.low, feature.high) for feature in all_features((), space)]
    assert found == [(0.0, 2.0), (0.0, 15.0), (0.0, 4.0)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arm.joint[0,0]", r"feature arm.joint\[0,0\] is unknown: did you mean 'arm.joints\[0,0\]'"),
        ("arm.joints[2,0]", r"is not an entry of an array of shape \[2, 3\]: the last one is arm.joints\[1,2\]"),
        ("arm.joints", r"is not an entry of an array of shape \[2, 3\]"),
        ("observation[0]", "is unknown"),
    ],
)
def test_unknown_features_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        find_feature(name, (), NESTED)


def test_named_features_follow_the_wrappers():
    env = suites.load_suite("gymnax").make("Pendulum-v1", {}, {})
    assert env.legend().features[0].places == (0, 1)
    chosen = SelectEntries(FlattenObservation(env), [2, 1, 0])
    assert [(feature.name, feature.places) for feature in chosen.legend().features] == [
        ("angle", (2, 1)),
        ("angular_velocity", (0,)),
    ]
    # An angle needs both entries; of stacked frames, names would not tell which.
    assert [feature.name for feature in SelectEntries(env, [0, 2]).legend().features] == ["angular_velocity"]
    assert StackFrames(env, 2).legend().features == ()
    assert StackFrames(env, 2).legend().actions == ("torque (N m)",)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"])
def test_gymnax_and_gymnasium_agree(name):
    gymnasium = pytest.importorskip("gymnasium")
    host = gymnasium.make(name)
    view = {"": np.stack([host.reset(seed=seed)[0] for seed in range(20)])}
    features = find_legend(name).features
    assert sorted(place for feature in features for place in feature.places) == list(range(view[""].shape[1]))
    for feature in features:
        values = feature.read(view)
        assert (values >= feature.low).all()
        assert (values <= feature.high).all()
    names = find_legend(name).actions
    assert len(names) == (host.action_space.n if isinstance(host.action_space, gymnasium.spaces.Discrete) else 1)
