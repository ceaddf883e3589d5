import subprocess
import sys

import pytest

from stoix_like.envs.lazy_imports import deferred

CODE = """
import sys
import stoix_like.envs.suites.gymnax
print({"gymnasium", "matplotlib", "pandas", "scipy.stats", "seaborn"} & set(sys.modules))
from gymnax.environments import spaces
from gymnax.environments.misc import pong
print(pong.plt.figure().axes, pong.colors.ListedColormap(["red"]).N, pong.sns.color_palette("cubehelix", 2) != [])
print(spaces.gymnax_space_to_gym_space(spaces.Discrete(3)))
import matplotlib.pyplot as plt, seaborn
print(plt.figure().axes, type(plt).__name__, type(seaborn).__name__)
"""


@pytest.mark.slow
def test_gymnax_defers_what_only_its_renderings_need():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["set()", "[] 1 True", "Discrete(3)", "[] module module"]


def test_classes_of_a_deferred_package_can_be_bases_even_if_it_is_missing():
    with deferred("a_package_that_is_missing"):
        from a_package_that_is_missing import readers

        class Reader(readers.Base):
            """A class that is of no use."""

    assert Reader.__bases__ == (object,)
    assert "a_package_that_is_missing" not in sys.modules
