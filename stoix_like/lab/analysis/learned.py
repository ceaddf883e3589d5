"""Pictures of what was learnt: policies and critics over features, and episodes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.patheffects import Normal, Stroke

from stoix_like.envs.legends import Feature
from stoix_like.envs.spaces import Dict, Discrete, Mixed, Tuple
from stoix_like.errors import ConfigError
from stoix_like.lab.analysis.plots import arrange, new_axes
from stoix_like.lab.analysis.slices import Slice, choose_features, take_slice, view_of
from stoix_like.lab.searches import SearchedEpisode
from stoix_like.policies.policy import Policy
from stoix_like.policies.visits import Visits

_WIDTH, _HEIGHT = 5.2, 4.0  # inches of one panel
_MAX_PANELS = 6
_MAX_PATHS = 5
_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#000000")


def policy_slice(taken: Slice, *, of: int | None = None, deviation: bool = False, ax: Axes | None = None) -> Axes:
    """Plot a policy over one or two features.

    Over one feature: the probabilities of all discrete actions, or an entry of the action with the standard deviation
    of sampled ones as a band. Over two: as colour, the most likely action, the probability of one, an entry of the
    action or its deviation; with the visited states as points.

    Args:
        taken: from `take_slice`.
        of: the discrete action to draw the probability of, None for the most likely one; of others the entry.
        deviation: draw the standard deviation of the entry.
        ax: axes to draw into; None for new ones.
    """
    axes = new_axes(ax)
    discrete = isinstance(taken.policy.action_space, Discrete)
    if len(taken.features) == 1:
        (_draw_probabilities if discrete else _draw_entry)(axes, taken, of or 0)
    elif not discrete:
        entry = of or 0
        source = taken.found.deviation if deviation else taken.found.action
        label = action_names(taken.policy)[entry]
        _colour(axes, taken, _entries(taken, source)[..., entry], f"deviation of {label}" if deviation else label)
    elif of is not None:
        name = f"probability of {action_names(taken.policy)[of]}"
        _colour(axes, taken, taken.found.probabilities[..., of], name, vmin=0.0, vmax=1.0)
    else:
        _colour_actions(axes, taken, taken.found.probabilities.argmax(axis=-1))
    return _finish(axes, taken)


def critic_slice(taken: Slice, *, of: int | None = None, ax: Axes | None = None) -> Axes:
    """Plot a critic over one or two features: values, or action values and their maximum.

    Args:
        taken: from `take_slice`.
        of: over two features, the action to draw the values of; None for state values, or the largest of all
            actions.
        ax: axes to draw into; None for new ones.

    Raises:
        ConfigError: the run has no critic.
    """
    axes = new_axes(ax)
    values = values_of(taken)
    by_action = values.ndim > len(taken.features)
    best = np.nanmax(values, axis=-1) if by_action else values
    if len(taken.features) == 2:
        label = "value" if not by_action else "largest action value"
        if of is not None:
            best, label = values[..., of], f"value of {action_names(taken.policy)[of]}"
        _colour(axes, taken, best, label)
        return _finish(axes, taken)
    if by_action:
        _draw_actions(axes, taken, values)
    axes.plot(taken.grids[0], best, color="black", linestyle="--" if by_action else "-", label="largest")
    if by_action:
        _legend(axes)
    axes.set_ylabel("value")
    return _finish(axes, taken)


def values_of(taken: Slice) -> np.ndarray:
    """Return the values of a slice, `[G]` or `[G, A]`, with one more axis for two features."""
    if taken.found.value is None:
        raise ConfigError(f"{taken.policy.name}: the system has no critic: use plot --kind policy")
    return taken.found.value


def trajectories(
    policy: Policy, visits: Visits, features: Sequence[Feature], *, episodes: int = _MAX_PATHS, ax: Axes | None = None
) -> Axes:
    """Plot visited states of some episodes: over steps for one feature, as paths for two, with dots at the starts."""
    axes = new_axes(ax)
    view = view_of(visits.observation)
    columns = [feature.read(view) for feature in features]
    for steps in visits.paths(episodes):
        if len(features) == 1:
            axes.plot(features[0].unjoined(columns[0][steps]), linewidth=0.8)
            continue
        x, y = (feature.unjoined(column[steps]) for column, feature in zip(columns, features, strict=True))
        axes.plot(x, y, linewidth=0.8)
        axes.plot(x[:1], y[:1], "o", color="black", markersize=3)
    axes.set(xlabel="steps" if len(features) == 1 else features[0].label, ylabel=features[-1].label)
    return axes


def histogram(values: np.ndarray, label: str, *, names: Sequence[str] = (), ax: Axes | None = None) -> Axes:
    """Plot a histogram of numbers `[M]`, or of integers below the number of `names`."""
    axes = new_axes(ax)
    if names:
        counts = np.bincount(values.astype(int).ravel(), minlength=len(names))
        axes.bar(range(len(names)), counts, color=_COLORS[0])
        axes.set_xticks(range(len(names)), list(names), fontsize="small")
    else:
        axes.hist(np.ravel(values), bins=min(40, max(10, int(np.sqrt(values.size)))), color=_COLORS[0])
    axes.set(xlabel=label, ylabel="count")
    return axes


def draw_policy(policy: Policy, features: Sequence[str] = (), **options: Any) -> Figure:
    """Draw a policy over one or two features, with a panel for each part of the action; see `take_slice`."""
    taken = take_slice(policy, features, **options)
    space = policy.action_space
    panels: list[dict[str, Any]]
    if isinstance(space, Discrete):
        probabilities = taken.found.probabilities
        panels = [{}]
        if len(taken.features) == 2 and ((probabilities > 0.001) & (probabilities < 0.999)).any():
            panels = [{"of": 1}] if space.n == 2 else [{}, *({"of": action} for action in range(space.n))]
    else:
        entries = range(_entries(taken, taken.found.action).shape[-1])
        panels = [{"of": entry} for entry in entries]
        if len(taken.features) == 2 and taken.found.deviation is not None and taken.found.deviation.any():
            panels = [panel | spread for panel in panels for spread in ({}, {"deviation": True})]
    return _figure(taken, [partial(policy_slice, taken, **panel) for panel in panels])


def draw_critic(policy: Policy, features: Sequence[str] = (), **options: Any) -> Figure:
    """Draw a critic over one or two features, with a panel for each action that it has values of; see `take_slice`."""
    taken = take_slice(policy, features, **options)
    panels: list[int | None] = [None]
    values = values_of(taken)
    if values.ndim == 3:
        panels += range(values.shape[-1])
    return _figure(taken, [partial(critic_slice, taken, of=of) for of in panels])


def draw_trajectory(policy: Policy, features: Sequence[str] = (), *, visits: Visits | None = None) -> Figure:
    """Draw episodes: up to five paths over two features, each feature over steps, and histograms of all.

    Args:
        policy: from `load_policy`.
        features: names of up to four features; by default the first four that the environment names, or the two entries
            that vary most.
        visits: from `policy.play`; by default ten episodes.

    Raises:
        ConfigError: a feature is unknown.
    """
    visits = policy.play() if visits is None else visits
    chosen = choose_features(policy, features, visits, most=4)
    if not features:
        chosen = policy.legend.features[:4] or chosen
    shown = ([chosen[:2]] if len(chosen) > 1 else []) + [[feature] for feature in chosen]
    panels = [
        *(partial(trajectories, policy, visits, names) for names in shown),
        partial(histogram, visits.reward, "reward"),
        *_action_histograms(policy, visits),
        partial(histogram, visits.returns, "return of an episode"),
    ]
    figure = arrange(panels, _WIDTH, _HEIGHT)
    unfinished = int((~visits.finished).sum())
    cut = f", {unfinished} of them not to their end" if unfinished else ""
    drawn = f"; the first {_MAX_PATHS} paths are drawn" if visits.episode.max() >= _MAX_PATHS else ""
    mean = f"mean return {visits.returns.mean():.4g}"
    figure.suptitle(f"{policy.title}: {len(visits.returns)} episodes{cut}, {mean}{drawn}")
    return figure


def _action_histograms(policy: Policy, visits: Visits) -> list[Any]:
    names = action_names(policy)
    if isinstance(policy.action_space, Discrete):
        return [partial(histogram, visits.action - policy.action_space.start, "action", names=names)]
    columns = _columns(visits.action, visits.reward.shape).T[:_MAX_PANELS]
    return [partial(histogram, *both) for both in zip(columns, names, strict=False)]


def action_names(policy: Policy | SearchedEpisode) -> list[str]:
    """Return the names of the discrete actions, or of the entries of an action."""
    space = policy.action_space
    if isinstance(space, Dict | Tuple):
        mixed = Mixed(space)
        sizes = [math.prod(part.shape) for part in mixed.parts]
        pairs = zip(mixed.names, sizes, strict=True)
        names = [name if size == 1 else f"{name}[{index}]" for name, size in pairs for index in range(size)]
        return list(policy.legend.actions) if len(policy.legend.actions) == len(names) else names
    size = space.n if isinstance(space, Discrete) else int(np.prod(space.shape))
    if len(policy.legend.actions) == size:
        return list(policy.legend.actions)
    if size == 1:
        return ["action"]
    return [f"action {index}" if isinstance(space, Discrete) else f"action[{index}]" for index in range(size)]


def _entries(taken: Slice, values: np.ndarray) -> np.ndarray:
    """Return values `[G…, *action]` with a single axis of entries."""
    return _columns(values, tuple(map(len, taken.grids)))


def _columns(actions: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return actions `[*shape, ...]`, or a dictionary or a tuple of them, as vectors `[*shape, D]`."""
    return np.concatenate([leaf.reshape(*shape, -1) for leaf in jax.tree.leaves(actions)], axis=-1)


def _draw_probabilities(axes: Axes, taken: Slice, _: int) -> None:
    _draw_actions(axes, taken, taken.found.probabilities)
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("probability")
    _legend(axes)


def _draw_actions(axes: Axes, taken: Slice, values: np.ndarray) -> None:
    """Draw a line for each discrete action."""
    for action, name in enumerate(action_names(taken.policy)):
        axes.plot(taken.grids[0], values[:, action], color=_COLORS[action % len(_COLORS)], label=name)


def _draw_entry(axes: Axes, taken: Slice, entry: int) -> None:
    action = _entries(taken, taken.found.action)[..., entry]
    axes.plot(taken.grids[0], action, color=_COLORS[0])
    if taken.found.deviation is not None:
        deviation = _entries(taken, taken.found.deviation)[..., entry]
        ends = action - deviation, action + deviation
        axes.fill_between(taken.grids[0], *ends, color=_COLORS[0], alpha=0.2, linewidth=0)
    axes.set_ylabel(action_names(taken.policy)[entry])


def _image(axes: Axes, taken: Slice, values: np.ndarray, **options: Any) -> AxesImage:
    return axes.imshow(values.T, origin="lower", aspect="auto", extent=_extent(taken), **options)


def _colour(axes: Axes, taken: Slice, values: np.ndarray, label: str, **limits: float) -> None:
    shown = _image(axes, taken, values, cmap="viridis", **limits)
    axes.figure.colorbar(shown, ax=axes, label=label)


def _colour_actions(axes: Axes, taken: Slice, actions: np.ndarray) -> None:
    names = action_names(taken.policy)
    colors = ListedColormap([_COLORS[action % len(_COLORS)] for action in range(len(names))])
    _image(axes, taken, actions, cmap=colors, vmin=-0.5, vmax=len(names) - 0.5, interpolation="nearest")
    patches = [Patch(color=colors(action), label=names[action]) for action in np.unique(actions)]
    _legend(axes, handles=patches, title="most likely")


def _legend(axes: Axes, **options: Any) -> None:
    """Draw the legend next to the axes, where it covers nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize="small", title_fontsize="small", **options)


def _extent(taken: Slice) -> tuple[float, float, float, float]:
    """Return the edges of the outer cells; their centres are the ends of the grids."""
    x, y = taken.grids
    half_x, half_y = 0.5 * (x[1] - x[0]), 0.5 * (y[1] - y[0])
    return x[0] - half_x, x[-1] + half_x, y[0] - half_y, y[-1] + half_y


def _finish(axes: Axes, taken: Slice) -> Axes:
    axes.set_xlabel(taken.features[0].label)
    if len(taken.features) == 2:
        axes.set_ylabel(taken.features[1].label)
        axes.grid(False)
        x, y = taken.read(0), taken.read(1)
        outline = [Stroke(linewidth=0.8, foreground="black", alpha=0.5), Normal()]
        for steps in taken.visits.paths(_MAX_PATHS):
            # Points, since lines between states that alternate would cover the plane.
            axes.plot(x[steps], y[steps], ".", color="white", alpha=0.6, markersize=2, path_effects=outline)
            axes.plot(x[steps][:1], y[steps][:1], "o", color="white", markeredgecolor="black", markersize=4)
        left, right, bottom, top = _extent(taken)
        axes.set_xlim(left, right)
        axes.set_ylim(bottom, top)
    return axes


def _figure(taken: Slice, panels: Sequence[Any]) -> Figure:
    figure = arrange(panels[:_MAX_PANELS], _WIDTH, _HEIGHT)
    held = ", ".join(f"{name} {value:.3g}" for name, value in taken.held.items())
    # About eleven characters of a title are an inch wide.
    others = textwrap.fill(f"others: {held}", int(11 * figure.get_figwidth())) if held else ""
    title, left_out = f"{taken.policy.title}, {taken.policy.env_steps:,} steps", len(panels) - _MAX_PANELS
    cut = f", {left_out} more panels left out" if left_out > 0 else ""
    figure.suptitle(title + cut + (f"\n{others}" if others else ""))
    return figure
