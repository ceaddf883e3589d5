"""Pictures of searches: visits and values of the root, and the values of an episode."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stoix_like.errors import ConfigError
from stoix_like.lab.analysis.learned import action_names
from stoix_like.lab.searches import SearchedEpisode

_MAX_ACTIONS = 32
_PRIOR, _VISITS, _WEIGHTS, _TAKEN = "#bbbbbb", "#4477aa", "#228833", "#ee6677"


def draw_search(episode: SearchedEpisode, step: int = 0) -> Figure:
    """Draw what the search of one step found, and the values of the whole episode."""
    length = len(episode.reward)
    if not 0 <= step < length:
        raise ConfigError(f"step={step} is out of range: the episode has {length} steps, 0 to {length - 1}")
    figure, axes = plt.subplots(1, 3, figsize=(15.0, 4.2), layout="constrained")
    found = episode.found
    # The actions with the most visits, in their order.
    most = np.argsort(-found.visits[step], kind="stable")[:_MAX_ACTIONS]
    shown = np.sort(most[(found.visits[step] > 0)[most] | (found.prior[step] > 0.0)[most]])
    _root_probabilities(episode, step, shown, axes[0])
    _root_values(episode, step, shown, axes[1])
    axes[2].plot(found.prior_value, color=_PRIOR, label="before")
    axes[2].plot(found.value, color=_WEIGHTS, label="after")
    axes[2].axvline(step, color=_TAKEN, linewidth=0.8)
    axes[2].set(xlabel="step", ylabel="value of the state")
    for each in axes:
        each.legend(frameon=False)
    figure.suptitle(f"{episode.name}: step {step} of an episode of {length}, return {episode.reward.sum():.4g}")
    return figure


def _root_probabilities(episode: SearchedEpisode, step: int, shown: np.ndarray, axes: Axes) -> None:
    """Draw the probabilities of actions before and after a search, and their share of its visits."""
    found = episode.found
    shares = found.visits[step] / max(float(found.visits[step].sum()), 1.0)
    bars = ("before", found.prior[step], _PRIOR), ("visits", shares, _VISITS), ("after", found.weights[step], _WEIGHTS)
    places = np.arange(len(shown))
    for offset, (label, values, color) in zip((-0.27, 0.0, 0.27), bars, strict=True):
        axes.bar(places + offset, values[shown], 0.27, label=label, color=color)
    axes.set_ylabel("probability, or share of the visits")
    _name_actions(episode, step, shown, axes)


def _root_values(episode: SearchedEpisode, step: int, shown: np.ndarray, axes: Axes) -> None:
    """Draw the values of the actions that a search visited, and the value of the state before and after it."""
    found = episode.found
    axes.plot(np.arange(len(shown)), found.action_values[step][shown], "o", color=_VISITS)
    axes.axhline(float(found.prior_value[step]), color=_PRIOR, linestyle="--", label="state, before")
    axes.axhline(float(found.value[step]), color=_WEIGHTS, label="state, after")
    axes.set_ylabel("value")
    _name_actions(episode, step, shown, axes)


def _name_actions(episode: SearchedEpisode, step: int, shown: np.ndarray, axes: Axes) -> None:
    candidates, names = episode.found.candidates, action_names(episode)
    if candidates is None:
        labels, taken = [names[index] for index in shown], episode.found.action[step] == shown
    else:
        chosen = candidates[step][shown]
        labels = [", ".join(f"{value:.2g}" for value in np.ravel(one)) for one in chosen]
        taken = (chosen == episode.found.action[step]).reshape(len(chosen), -1).all(-1)
    axes.set_xticks(np.arange(len(shown)), labels, rotation=90 if len(shown) > 4 else 0)
    for label, is_taken in zip(axes.get_xticklabels(), taken, strict=True):
        label.set_color(_TAKEN if is_taken else "black")
