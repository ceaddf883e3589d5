import dataclasses
import runpy
from pathlib import Path

import jax
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs import suites
from stoix_like.errors import ConfigError
from stoix_like.policies.formats import numpy_policy
from stoix_like.policies.make import make_policy
from support.trained_runs import SMALL
from support.untrained import untrained


@pytest.mark.slow
def test_a_linear_policy_without_its_mask_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(suites.SUITES, "masked", suites.Suite("support.masked", "jax", ""))
    overrides = ["env=gymnax", "env.env_name=masked", "env.scenario.name=masked"]
    policy = make_policy(*untrained(*SMALL, *overrides, "network.actor_network.pre_torso.layer_sizes=[]"), {})
    act = numpy_policy.load(policy.export(tmp_path / "policy.npz"))
    view, mask, _ = policy.random_observations(jax.random.key(0), 8)
    np.testing.assert_array_equal(act(view, np.asarray(mask)), policy(Observation(view, mask)))
    with pytest.raises(ValueError, match="action_mask=None, but this policy needs the legal actions"):
        act(view)


@pytest.mark.parametrize(
    "overrides",
    [pytest.param([], marks=pytest.mark.slow), ["system.normalize_observations=true", "network=mlp_normal"]],
)
def test_numpy_policy_acts_as_the_policy(overrides, tmp_path):
    """The reader runs alone, on a copy of its file; bounds of the actions come from the policy."""
    setup, shared = untrained("env=gymnax/pendulum", *overrides)
    if overrides:
        statistics = dataclasses.replace(
            shared.statistics, mean=np.float32([0.1, -0.2, 3.0]), std=np.float32([2, 1, 4])
        )
        shared = shared._replace(statistics=statistics)
    # Actions beyond the bounds of the environment.
    shared = shared._replace(params=jax.tree.map(lambda leaf: 100 * np.asarray(leaf), shared.params))
    policy = make_policy(setup, shared, {})
    path = policy.export(tmp_path / "policy.npz")
    view = np.asarray(policy.random_observations(jax.random.key(0), 64).agent_view)
    reader = runpy.run_path(numpy_policy.__file__)
    found = reader["load"](path)(view)
    assert np.ptp(found) > 3
    assert np.abs(found).max() <= 2
    np.testing.assert_allclose(found, policy(view), rtol=1e-4, atol=1e-4)
    # Numbers in bytes are no pixels to a policy of floats.
    counts = np.uint8([[0, 1, 2], [1, 0, 1]])
    np.testing.assert_allclose(reader["load"](path)(counts), policy(counts), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="the observation has dtype complex64, but this policy takes float32"):
        reader["load"](path)(view.astype(np.complex64))
    changed = path.with_name("changed.npz")
    changed.write_bytes(path.read_bytes() + b"0")
    path.with_name("policy.npz.json").rename(path.with_name("changed.npz.json"))
    with pytest.raises(ValueError, match=r"changed.npz is not the file that .*changed.npz.json describes"):
        reader["load"](changed)
    assert len(Path(numpy_policy.__file__).read_text().splitlines()) <= 60


@pytest.mark.slow
def test_arrays_for_numpy_hold_multilayer_perceptrons_alone(tmp_path):
    sizes = [f"network.{name}_network.pre_torso.hidden_sizes=[8]" for name in ("actor", "critic")]
    policy = make_policy(*untrained("env=gymnax/breakout", "network=cnn", *sizes), {})
    with pytest.raises(ConfigError, match="has a CNNTorso: use onnx or stablehlo"):
        policy.export(tmp_path / "policy.npz")
