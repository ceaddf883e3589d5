import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like import cli
from stoix_like.base_types import NetworkOutputs
from stoix_like.errors import ConfigError
from support.lazily import Lazy
from support.trained_runs import train_pendulum

analysis, slices = map(Lazy, ("stoix_like.lab.analysis", "stoix_like.lab.analysis.slices"))
pytestmark = pytest.mark.slow


def test_a_plane_shows_a_known_policy_and_critic(pendulum, visits):
    taken = analysis.take_slice(pendulum, visits=visits, points=5)
    angle, _ = taken.grids
    np.testing.assert_allclose(angle, [-np.pi, -np.pi / 2, 0.0, np.pi / 2, np.pi])
    torque = analysis.policy_slice(taken).images[0].get_array()
    # The picture has a row for each velocity, -8, -4, 0, 4, 8, the lowest first.
    np.testing.assert_allclose(torque, np.repeat([[-1.6], [-0.8], [0.0], [0.8], [1.6]], 5, axis=1), atol=1e-6)
    value = analysis.critic_slice(taken).images[0].get_array()
    np.testing.assert_allclose(value, np.repeat([[-1.0, 0.0, 1.0, 0.0, -1.0]], 5, axis=0), atol=1e-6)
    deviation = analysis.policy_slice(taken, deviation=True).images[0].get_array()
    # 256 samples: a standard error of 0.2 / sqrt(512) = 0.009; clipped at the bounds only beyond four deviations.
    np.testing.assert_allclose(deviation[1:4], 0.2, atol=0.03)
    np.testing.assert_allclose(deviation[2], deviation[2, 0], rtol=1e-4)
    # A line has the action with its band.
    axes = analysis.policy_slice(analysis.take_slice(pendulum, ["angular_velocity"], visits=visits, points=3))
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [-1.6, 0.0, 1.6], atol=1e-6)
    assert axes.get_xlabel() == "angular velocity (rad/s)"
    assert len(axes.collections) == 1
    # A figure says what it has no room for.
    figure = Lazy("stoix_like.lab.analysis.learned")._figure(taken, [lambda ax: None] * 8)
    assert len(figure.axes) == 6
    assert figure.get_suptitle().splitlines()[0].endswith(" steps, 2 more panels left out")


def test_a_slice_is_what_the_policy_does(cartpole):
    """The greedy action and its value, in every point of the plane."""
    taken = analysis.take_slice(cartpole, ["cart_position", "pole_angle"], fixed={"pole_velocity": 0.3}, points=7)
    view = np.zeros((7, 7, 4), np.float32)
    view[..., 0], view[..., 2] = np.meshgrid(*taken.grids, indexing="ij")
    view[..., 1], view[..., 3] = taken.held["cart_velocity"], 0.3
    np.testing.assert_array_equal(taken.found.action, cartpole(view))
    np.testing.assert_array_equal(taken.found.value.argmax(-1), taken.found.action)
    np.testing.assert_array_equal(analysis.critic_slice(taken).images[0].get_array().T, taken.found.value.max(-1))
    np.testing.assert_array_equal(analysis.policy_slice(taken).images[0].get_array().T, taken.found.action)
    lines = analysis.critic_slice(analysis.take_slice(cartpole, ["pole_angle"], visits=taken.visits)).lines
    assert [line.get_label() for line in lines] == ["left", "right", "largest"]
    np.testing.assert_array_equal(np.maximum(*(line.get_ydata() for line in lines[:2])), lines[2].get_ydata())


def test_probabilities_and_illegal_actions(cartpole, monkeypatch):
    def inspect(shared, observation):
        angle = observation.agent_view[:, 2:3]
        return NetworkOutputs(distrax.Categorical(logits=jnp.concatenate([0 * angle, 10 * angle], 1)), None)

    monkeypatch.setattr(cartpole, "_system", cartpole._system._replace(inspect=inspect))
    monkeypatch.setattr(cartpole, "_inspect", jax.jit(lambda *args: cartpole._inspected(*args)))
    taken = analysis.take_slice(cartpole, ["pole_angle"], points=3)
    axes = analysis.policy_slice(taken)
    axes.figure.draw_without_rendering()
    # The legend stands beside the data.
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1
    lines = axes.lines
    limit = 12 * np.pi / 180
    expected = 1 / (1 + np.exp(-10 * np.array([-limit, 0.0, limit])))
    np.testing.assert_allclose(lines[1].get_ydata(), expected, rtol=1e-5)
    with pytest.raises(ConfigError, match="has no critic: use plot --kind policy"):
        analysis.critic_slice(taken)
    monkeypatch.setattr(cartpole, "_system", cartpole._system._replace(inspect=None))
    with pytest.raises(ConfigError, match="the system has no `inspect`"):
        analysis.take_slice(cartpole)


def test_episodes_and_histograms(pendulum, visits):
    features = slices.choose_features(pendulum, (), visits)
    axes = analysis.trajectories(pendulum, visits, features[1:], episodes=2)
    assert [line.get_ydata().tolist() for line in axes.lines] == [
        visits.observation.agent_view[20 * episode : 20 * episode + 20, 2].tolist() for episode in range(2)
    ]
    counts = analysis.histogram(np.array([0, 2, 2]), "action", names=("left", "none", "right"))
    assert [bar.get_height() for bar in counts.patches] == [1, 0, 2]
    bars = analysis.histogram(visits.returns, "return").patches
    assert sum(bar.get_height() for bar in bars) == 3
    # The title says how many paths are drawn.
    many = jax.tree.map(lambda *parts: np.concatenate(parts), visits, visits)
    many = many._replace(episode=np.repeat(np.arange(6), 20))
    figure = analysis.draw_trajectory(pendulum, visits=many)
    assert "6 episodes, mean return" in figure.get_suptitle()
    assert figure.get_suptitle().endswith("; the first 5 paths are drawn")
    # Paths have a dot at each start; then two features over steps.
    assert [len(axes.lines) for axes in figure.axes[:3]] == [10, 5, 5]
    assert "paths" not in analysis.draw_trajectory(pendulum, visits=visits).get_suptitle()


def test_commands_draw_a_run(tmp_path_factory, tmp_path, capfd, refused):
    run_dir = str(train_pendulum(tmp_path_factory))
    for kind, options in (
        ("policy", ["--fixed", "angular_velocity=1", "--features", "angle"]),
        ("critic", ["--others", "sampled"]),
        ("trajectory", ["--episodes", "2", "--seed", "1"]),
    ):
        out = tmp_path / f"{kind}.svg"
        cli.main(["plot", "--kind", kind, run_dir, "--out", str(out), "--which", "last", *options])
        assert f"drawn to {out}" in capfd.readouterr().out
        assert "angle (rad)" in out.read_text()
    assert "mean return" in out.read_text()
    error = refused("plot", "--kind", "policy", run_dir, "--out", tmp_path / "x.png", "--fixed", "angle")
    assert "--fixed angle: use name=number" in error
