import json

import numpy as np
import pytest

from stoix_like.errors import ConfigError
from stoix_like.storage.recorded_runs import members, read_run
from support.lazily import Lazy
from support.recorded import set_key, write_run

analysis, population_plots = map(Lazy, ("stoix_like.lab.analysis", "stoix_like.lab.analysis.population_plots"))
pytestmark = pytest.mark.usefixtures("few_resamples")


def test_slices_and_heat_maps_of_a_population(tmp_path):
    varied = {"actor_lr": [1e-4, 1e-4, 1e-2, 1e-2], "gamma": [0.9, 0.99, 0.9, 0.99]}
    write_run(tmp_path / "a", (1.0, 3.0, 5.0, 7.0), varied=varied)
    own = members(read_run(tmp_path / "a"))
    axes = analysis.hyperparameter_slices(own, "actor_lr")
    assert axes.get_xscale() == "log"
    assert axes.lines[0].get_ydata().tolist() == [2.0, 6.0]
    image = analysis.heat_map(own, "actor_lr", "gamma").images[0]
    assert image.get_array().tolist() == [[1.0, 5.0], [3.0, 7.0]]
    with pytest.raises(ConfigError, match="clip_eps does not vary"):
        analysis.hyperparameter_slices(own, "clip_eps")


def test_diverged_members_count_as_the_lowest(tmp_path):
    varied = {"actor_lr": [1e-4, 1e-4, 1e-2, 1e-2], "gamma": [0.9, 0.9, 0.9, 0.99]}
    own = members(read_run(write_run(tmp_path / "a", (1.0, 3.0, None, 7.0), varied=varied)))
    assert analysis.hyperparameter_slices(own, "actor_lr").lines[0].get_ydata().tolist() == [2.0, 4.0]
    table = analysis.heat_map(own, "actor_lr", "gamma").images[0].get_array()
    assert table.filled(np.nan).tolist()[0] == [2.0, 1.0]


def test_a_lineage_shows_each_interval_and_each_replacement(tmp_path):
    write_run(tmp_path / "run", curves=[[0.0, 0.0], [1.0, 5.0], [6.0, 4.0]])
    run = read_run(tmp_path / "run")
    values = [[0.1, 0.2], [0.1, 0.2], [0.3, 0.2]]
    records = [{**record, "hyperparams/lr": row} for record, row in zip(run.history, values, strict=True)]
    records[1]["population/continues"] = [1, 1]
    (run.directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    run = read_run(run.directory)
    replacements, intervals = population_plots.lineage(run, "lr").collections
    # Member 0 continues member 1, whose rate was 0.2, with 0.3.
    np.testing.assert_array_equal(replacements.get_segments(), [[[100, 0.2], [100, 0.3]]])
    assert [segment[0].tolist() for segment in intervals.get_segments()] == [[0, 0.1], [0, 0.2], [100, 0.3], [100, 0.2]]
    np.testing.assert_array_equal(intervals.get_array(), [1.0, 5.0, 6.0, 4.0])
    with pytest.raises(ConfigError, match="has no rate over time"):
        population_plots.lineage(run, "rate")
    assert population_plots.lineage(run, "lr").get_xlabel() == "environment steps"
    set_key(run.directory, "arch.architecture_name", "offline")
    assert population_plots.lineage(read_run(run.directory), "lr").get_xlabel() == "gradient steps"
