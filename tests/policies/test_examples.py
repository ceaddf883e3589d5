import shutil
from pathlib import Path

import pytest

import stoix_like
from support.selections import first

ARCHIVES = sorted((Path(__file__).parents[2] / "examples/policies").glob("*.zip"))
# Far above random actions, which return about 20, -1,200 and -95.
LEAST = {"gymnax/CartPole-v1": 400.0, "gymnax/Pendulum-v1": -250.0, "goals/point_maze": -60.0}


@pytest.mark.parametrize("archive", first(1, ARCHIVES), ids=lambda path: path.stem)
def test_an_example_is_loaded_and_plays_well(archive, tmp_path):
    assert archive.stat().st_size <= 200_000
    shutil.unpack_archive(archive, tmp_path)
    run = tmp_path / archive.stem
    assert stoix_like.load_policy(run).env_steps > 0
    found = stoix_like.evaluate(run, 16)
    assert found["episode_return_mean"] > LEAST[found["environment"]]
