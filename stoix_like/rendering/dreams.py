"""Dreams: episodes next to what the learned model of a system predicts of them, and their animation.

Images of the observation are drawn as colours, numbers as lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.acting import act_and_step, game_keys, start_episodes
from stoix_like.architectures.types import Hyperparams
from stoix_like.base_types import Dream, Observation, PyTree, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.legends import Legend, all_features
from stoix_like.envs.scenes.base import ACCENT, LIGHT
from stoix_like.envs.scenes.views import MAX_CHANNELS, composed
from stoix_like.envs.spaces import ArraySpace, Box, ObservationSpace, bounds, entries
from stoix_like.rendering.animation import write_frames

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CONTEXT, LENGTH = 5, 50
"""Observations that the model sees, and all observations, unless stated otherwise."""
_FPS = 8
# Three channels of fewer pixels than this are kinds of cells, not red, green and blue.
_MIN_RGB_SIDE = 16
_MAX_ANIMATED = 4
_WIDTH, _HEIGHT = 2.6, 2.2  # inches of one panel of an animation


class DreamedEpisode(NamedTuple):
    """The first T observations of an episode, and a dream of them, as host arrays."""

    name: str  # `dreamer/dreamer_v3 on gymnax/CartPole-v1`
    space: ObservationSpace  # the space of one observation
    legend: Legend  # names of features of the observation
    context: int  # number of observations that the model saw; it predicts the others
    view: PyTree  # `[T, *view]`, an array or a dictionary of arrays
    reward: np.ndarray  # `[T]`, of the steps that led to the observations, as training counts them; 0 for the first
    terminated: np.ndarray  # `[T]` bool
    dream: Dream  # `[T, ...]`, float32


class _Entry(NamedTuple):
    """An observation, and the step that led to it; one of them at a time is followed by the end of the episode."""

    observation: Observation
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    ended: jax.Array


class DreamPlayer:
    """Episodes played with `eval_act`, and dreams of them; the program is compiled once."""

    def __init__(
        self,
        name: str,
        build: Callable[[Hyperparams], System],
        env: VectorEnvironment,
        max_steps: int,
        context: int = CONTEXT,
        length: int = LENGTH,
    ) -> None:
        self._name, self._build, self._env = name, build, env
        self._length = min(length, max_steps + 1)
        self._context = min(context, self._length - 1)
        self._play_and_dream = jax.jit(self._traced)

    def dream(self, shared: Any, hyperparams: Hyperparams, key: jax.Array) -> DreamedEpisode:
        """Play one episode, and dream it."""
        env_state, *found = self._play_and_dream(shared, hyperparams, key)
        entries, dream = jax.device_get(found)
        self._env.check()
        self._env.release(env_state)
        ended = entries.ended[:, 0]
        count = int(ended.argmax()) + 1 if ended.any() else self._length
        entries, dream = jax.tree.map(lambda leaf: leaf[:count, 0], (entries, dream))
        facts = self._name, self._env.observation_space, self._env.legend(), self._context
        view, dream = entries.observation.agent_view, jax.tree.map(np.float32, dream)
        return DreamedEpisode(*facts, view, entries.reward, entries.terminated, dream)

    def _traced(self, shared: Any, hyperparams: Hyperparams, key: jax.Array) -> tuple[Any, _Entry, Dream]:
        system = self._build(hyperparams)
        assert system.dream is not None
        start_key, play_key, dream_key = jax.random.split(key, 3)
        start = start_episodes(self._env, system, game_keys(self._env, start_key))

        def step(state: Any, key: jax.Array) -> tuple[Any, _Entry]:
            act_key, env_key = jax.random.split(key)
            env_keys = game_keys(self._env, env_key)
            state, action, _ = act_and_step(self._env, system.eval_act, shared, state, act_key, env_keys)
            after = state.timestep
            ended = after.terminated | after.truncated
            return state, _Entry(after.next_observation, action, after.reward, after.terminated, ended)

        last, steps = jax.lax.scan(step, start, jax.random.split(play_key, self._length - 1))
        first = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), steps)
        first = first._replace(observation=start.timestep.observation)
        entries = jax.tree.map(lambda one, others: jnp.concatenate([one[None], others]), first, steps)
        # What follows the end of the episode has no meaning, and no influence on what precedes it.
        dream = system.dream(shared, entries.observation, entries.action, self._context, dream_key)
        return last.env_state, entries, dream


class Picture(NamedTuple):
    """An image in the observation, over T steps."""

    name: str  # its name in a dictionary of observations; otherwise empty
    truth: np.ndarray  # `[T, H, W, 3]` in [0, 1], what was observed
    dream: np.ndarray  # `[T, H, W, 3]`, what the model made of it
    difference: np.ndarray  # `[T, H, W]` in [0, 1], mean over the channels of the absolute difference


class Line(NamedTuple):
    """A number over T steps."""

    label: str  # its name and unit
    truth: np.ndarray  # `[T]`, what was observed
    dream: np.ndarray  # `[T]`, what the model made of it
    limits: tuple[float, float] | None = None  # ends of its axis; None: from the values


def pictures(episode: DreamedEpisode) -> list[Picture]:
    """Return the images in the observations of an episode: arrays with two or three axes."""
    truth, dream = entries(episode.view), entries(episode.dream.view)
    found = []
    for name, space in _images(episode).items():
        low, high = _range(space, truth[name])
        both = [np.clip((np.float32(views[name]) - low) / (high - low), 0.0, 1.0) for views in (truth, dream)]
        real, dreamed = (view.reshape(*view.shape[:3], -1) for view in both)
        difference = np.abs(real - dreamed).mean(axis=-1)
        found.append(Picture(name, _colours(real, space), _colours(dreamed, space), difference))
    return found


def lines(episode: DreamedEpisode, most: int) -> list[Line]:
    """Return numbers over the steps of an episode."""
    images = _images(episode)
    views = [entries(tree) for tree in (episode.view, episode.dream.view)]
    named = episode.legend.features
    features = [feature for feature in all_features(named, episode.space) if feature.leaf not in images]
    spread = {feature: float(np.std(feature.read(views[0]))) for feature in features}
    features.sort(key=lambda feature: (feature not in named, 0.0 if feature in named else -spread[feature]))
    shown = [(feature.label, [feature.unjoined(feature.read(view)) for view in views]) for feature in features[:most]]
    alive = 1.0 - episode.terminated
    return [
        *(Line(label, truth, dream) for label, (truth, dream) in shown),
        Line("reward", episode.reward, np.asarray(episode.dream.reward)),
        Line("continues", alive, np.asarray(episode.dream.continues), (-0.05, 1.05)),
    ]


def draw_line(axes: Axes, line: Line, context: int) -> Callable[[int], None]:
    """Draw a number of the episode, and of the dream."""
    steps = np.arange(len(line.truth))
    axes.axvspan(0, context - 0.5, color=LIGHT, alpha=0.25, linewidth=0)
    axes.plot(steps, line.truth, color="black", linewidth=1.0, label="truth")
    (dreamed,) = axes.plot(steps, line.dream, color=ACCENT, linewidth=1.2, label="dream")
    axes.set_title(line.label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.set_xlim(0, len(steps) - 1)
    axes.locator_params(axis="x", integer=True)
    if line.limits is not None:
        axes.set_ylim(*line.limits)
    # The dream must fit before it is shown.
    axes.autoscale_view()
    axes.set_autoscale_on(False)

    def show(step: int) -> None:
        dreamed.set_data(steps[: step + 1], line.dream[: step + 1])

    return show


def write_dream(path: Path, episode: DreamedEpisode, stopped: Callable[[], bool] = lambda: False) -> int:
    """Write an animation of an episode next to its dream."""
    from matplotlib.figure import Figure

    shown, numbers = pictures(episode), lines(episode, _MAX_ANIMATED)
    # With an image, only the numbers that no image shows.
    numbers = numbers[-2:] if shown else numbers
    across = 2 if shown else 3
    rows = len(shown) + -(-len(numbers) // across)
    figure = Figure(figsize=(across * _WIDTH, rows * _HEIGHT + 0.3), layout="constrained")
    updates: list[Callable[[int], None]] = []
    for row, picture in enumerate(shown):
        for column, (title, images) in enumerate((("truth", picture.truth), ("dream", picture.dream))):
            axes = figure.add_subplot(rows, across, row * across + column + 1)
            axes.set_axis_off()
            axes.set_title(f"{title} {picture.name}".strip(), fontsize=9)
            drawn = axes.imshow(images[0], interpolation="nearest", vmin=0, vmax=1)
            updates.append(lambda step, drawn=drawn, images=images: drawn.set_data(images[step]))  # type: ignore[misc]
    for place, line in enumerate(numbers):
        axes = figure.add_subplot(rows, across, len(shown) * across + place + 1)
        updates.append(draw_line(axes, line, episode.context))
        if place == 0:
            axes.legend(fontsize=7, frameon=False)
    heading = figure.suptitle("step", fontsize=10)

    def update(step: int) -> None:
        for each in updates:
            each(step)
        heading.set_text(f"step {step}   {'seen' if step < episode.context else 'dreamed'}")

    return write_frames(path, figure, _FPS, len(episode.reward), update, stopped)


def _images(episode: DreamedEpisode) -> Mapping[str, ArraySpace]:
    spaces: dict[str, Any] = entries(episode.space)
    return {name: space for name, space in spaces.items() if len(space.shape) in (2, 3) and min(space.shape[:2]) > 1}


def _range(space: ArraySpace, truth: np.ndarray) -> tuple[Any, Any]:
    """Return the values that are black and white; from the truth where the space has no bounds."""
    low, high = (np.asarray(end, np.float32) for end in bounds(space))
    if isinstance(space, Box) and not space.bounded:
        low, high = (np.asarray(end, np.float32) for end in (truth.min(), truth.max()))
    return low, np.maximum(high, low + 1e-6)


def _colours(images: np.ndarray, space: ArraySpace) -> np.ndarray:
    """Return images `[T, H, W, C]` in [0, 1] as `[T, H, W, 3]`."""
    channels = images.shape[-1]
    if channels == 3 and min(space.shape[:2]) >= _MIN_RGB_SIDE:
        return images
    if channels == 1 or channels > MAX_CHANNELS:
        return np.repeat(images[..., -1:], 3, axis=-1)
    return composed(images, range(channels))
