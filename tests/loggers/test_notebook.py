import builtins
import sys
import types

import numpy as np
import pytest

from stoix_like.loggers.console import ConsoleConfig, ConsoleLogger
from stoix_like.loggers.notebook import draw_curve
from support.console_runs import log_run, record, run_info


def test_a_notebook_shows_a_live_curve(tmp_path, capsys, monkeypatch):
    """One image, which the next one replaces; evaluations that follow within a second are drawn at the end."""
    # A class that extends that of IPython's kernels, as Colab's does.
    shell = type("Shell", (type("ZMQInteractiveShell", (), {}),), {})
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    drawn = []
    display = types.ModuleType("IPython.display")
    display.Image = lambda content: content
    display.display = lambda image, display_id: types.SimpleNamespace(update=drawn.append)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    logger = ConsoleConfig().make(tmp_path)
    log_run(logger, tmp_path)
    (image,) = drawn
    assert image.startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "written to" in printed
    assert "± 12.10" not in printed
    lines = ConsoleConfig(curve=False).make(tmp_path)
    assert isinstance(lines, ConsoleLogger)
    lines.start(run_info(tmp_path))
    assert capsys.readouterr().out.splitlines()[-1].startswith("  compiling: ")


def test_the_curve_of_a_notebook(tmp_path):
    records = [record(0, 9.25, 1.0), record(640, None, 3.0), record(1280, 475.3, 4.0)]
    (axes,) = draw_curve(run_info(tmp_path), records).axes
    assert axes.lines[0].get_xdata().tolist() == [0, 640, 1280]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [9.25, np.nan, 475.3])
    band = axes.collections[0].get_datalim(axes.transData)
    assert [band.y0, band.y1] == pytest.approx([9.25 - 12.1, 475.3 + 12.1])
    scores = {"eval/episode_return_iqm": 2.0, "eval/episode_return_ci_low": 1.5, "eval/episode_return_ci_high": 2.5}
    population = [{**record(steps, [1.0, 2.0, 3.0], 1.0), **scores} for steps in (0, 1280)]
    (axes,) = draw_curve(run_info(tmp_path), population).axes
    assert [line.get_ydata()[0] for line in axes.lines] == [1.0, 2.0, 3.0, 2.0]
