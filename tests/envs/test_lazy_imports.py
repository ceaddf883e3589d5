import subprocess
import sys

import pytest

CODE = """
import sys
import stoix_like.envs.suites.gymnax
print({"scipy.stats", "pandas"} & set(sys.modules))
import matplotlib.pyplot as plt, seaborn
print(plt.figure().axes, seaborn.color_palette("cubehelix", 2) != [], type(plt).__name__)
"""


@pytest.mark.slow
def test_gymnax_defers_what_only_its_renderings_need():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n[] True module\n"
