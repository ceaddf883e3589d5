"""Figures of dreams."""

import numpy as np

from stoix_like.base_types import Dream
from stoix_like.envs.legends import Legend
from stoix_like.envs.spaces import Box, Dict
from stoix_like.rendering.dreams import DreamedEpisode
from support.lazily import Lazy

dreams = Lazy("stoix_like.analysis.dreams")


def test_a_figure_has_images_numbers_and_a_shaded_context():
    """20 observations of an image and of two numbers: twelve of them as columns of three rows."""
    space = Dict({"grid": Box(0.0, 1.0, (4, 5, 2)), "speed": Box(-1.0, 1.0, (2,))})
    view = {"grid": np.zeros((20, 4, 5, 2)), "speed": np.linspace(0.0, 1.0, 40).reshape(20, 2)}
    dream = Dream({name: leaf + 0.25 for name, leaf in view.items()}, np.ones(20), np.ones(20))
    figure = dreams.draw_dream(
        DreamedEpisode("toy on env", space, Legend(), 3, view, np.zeros(20), np.zeros(20, bool), dream)
    )
    images, numbers = figure.subfigs
    assert len(images.axes) == 36
    titles = [axes.get_title() for axes in images.axes[:12]]
    assert titles[:3] == ["0 (seen)", "2 (seen)", "3"]
    assert titles[-1] == "19"
    assert [axes.get_ylabel() for axes in images.axes[::12]] == ["truth", "dream", "difference"]
    np.testing.assert_allclose(images.axes[30].images[0].get_array(), 0.25)
    assert [axes.get_title() for axes in numbers.axes] == ["speed[0]", "speed[1]", "reward", "continues"]
    truth, dreamed = numbers.axes[0].lines
    np.testing.assert_allclose(dreamed.get_ydata() - truth.get_ydata(), 0.25)
    shaded = numbers.axes[0].patches[0]
    assert (shaded.get_x(), shaded.get_width()) == (0.0, 2.5)
