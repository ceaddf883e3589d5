"""Drawings of tasks for memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stoix_like.envs.scenes.base import ACCENT, DARK, LIGHT, RecordedEpisode, Update, frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FPS = 6


def draw_plan(columns: Sequence[str], axes: Axes, recording: RecordedEpisode) -> Update:
    """Draw what was shown until now, and below it the right answers: a row per column, a colour per symbol."""
    plan = recording.states.plan
    rows = np.concatenate([plan.shown[0].T, plan.answer[0][None]])
    num_steps = rows.shape[1]
    axes.set_yticks(range(len(rows)), [*columns, "right answer"])
    axes.set(xlabel="step", xlim=(-0.5, num_steps - 0.5))
    picture = axes.imshow(np.ma.masked_less(rows, 0), cmap="tab20", aspect="auto", interpolation="nearest")
    picture.set_clim(0, 20)
    now = axes.axvline(0, color=ACCENT)

    def update(entry: int) -> None:
        step = min(int(recording.states.steps[entry]), num_steps - 1)
        picture.set_data(np.ma.masked_where((rows < 0) | (np.arange(num_steps) > step), rows % 20))
        now.set_xdata([step, step])

    return update


def draw_t_maze(length: int, axes: Axes, recording: RecordedEpisode) -> Update:
    """Draw the corridor, the goal above or below its end, and the agent."""
    state, arm = recording.states, max(1.0, length / 8)
    frame(axes, (-0.05 * length - 0.5, 1.05 * length + 0.5), (-1.6 * arm, 1.6 * arm))
    axes.plot([0, length, np.nan, length, length], [0, 0, np.nan, -arm, arm], color=LIGHT, linewidth=6, zorder=0)
    axes.plot([length], [arm if state.cue[0] == 0 else -arm], "*", color=ACCENT, markersize=16)
    (agent,) = axes.plot([], [], "o", color=DARK, markersize=10)

    def update(entry: int) -> None:
        side = int(state.turn[entry]) - 1  # 0: in the corridor, 1: left, 2: right
        agent.set_data([state.place[entry]], [0.0 if side < 0 else arm * (1 - 2 * side)])

    return update
