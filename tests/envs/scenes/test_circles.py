from types import SimpleNamespace

import numpy as np
from matplotlib.figure import Figure

from stoix_like.envs.scenes.circles import from_circles
from support.recordings import still


def test_circles_move_and_fade_within_what_they_reach():
    def circles(states):
        return states.places, np.array([0.5, 1.0]), ["red", "blue"], np.array([[1.0, 1.0], [0.25, 0.0]])

    states = SimpleNamespace(places=np.array([[[0.0, 0.0], [3.0, 1.0]], [[-2.0, 4.0], [3.0, 1.0]]]))
    axes = Figure().add_subplot()
    update = from_circles(circles, fps=5).draw(axes, still(states))
    # From -2 - 0.5 to 3 + 1, and from 1 - 1 or 0 - 0.5 to 4 + 0.5.
    assert (axes.get_xlim(), axes.get_ylim()) == ((-2.5, 4.0), (-0.5, 4.5))
    first, second = axes.patches
    assert (first.radius, second.radius) == (0.5, 1.0)
    assert first.zorder > second.zorder
    for entry, (centres, opacity) in enumerate([(((0, 0), (3, 1)), (1.0, 1.0)), (((-2, 4), (3, 1)), (0.25, 0.0))]):
        update(entry)
        assert (tuple(first.center), tuple(second.center)) == centres
        assert (first.get_alpha(), second.get_alpha()) == opacity
