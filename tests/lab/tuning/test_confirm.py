"""Settings on seeds on which nothing was selected."""

import pytest

from stoix_like.lab.tuning.confirm import FINALISTS, FRESH, train_again
from stoix_like.lab.tuning.progress import interquartile_means
from stoix_like.lab.tuning.runner import Runner
from stoix_like.storage import recorded_runs
from support.killed_sweeps import KEYS, FakeRunner, values
from support.trained_runs import SMALL

LR, GAMMA, EPOCHS = KEYS


def test_settings_are_one_population(tmp_path):
    settings = [{LR: 0.01 * place, GAMMA: 0.9, EPOCHS: 2} for place in range(5)]
    jobs = []

    class Recording(FakeRunner):
        def returns(self, job, settings, seeds, objective):
            jobs.append(job)
            return super().returns(job, settings, seeds, objective)

    found = train_again(Recording(tmp_path, []), "fresh/00003-2", settings, [LR, GAMMA], 2, FRESH + 42, "final")
    assert found == [[value] * 2 for value in values(settings)]
    assert [job.run for job in jobs] == ["fresh/00003-2/00"]
    assert all("arch.seed=2000042" in job.overrides and "arch.population.paired=true" in job.overrides for job in jobs)


@pytest.mark.slow
def test_settings_train_again_on_the_same_seeds(tmp_path, monkeypatch):
    run = [*SMALL, "system=ppo/ff_ppo", "env=probe/policy", "arch.total_timesteps=128", "arch.num_evaluation=2"]
    settings = [{LR: 0.01, EPOCHS: 2}, {LR: 0.02, EPOCHS: 2}]
    first, runner = FINALISTS + 42, Runner(tmp_path, run)
    found = train_again(runner, "finalists", settings, [LR, GAMMA], 3, first, "final")
    assert [len(returns) for returns in found] == [3] * 2
    runs = [recorded_runs.read_run(directory) for directory in recorded_runs.find_runs([tmp_path / "finalists"])]
    seeds = [[member.seed for member in recorded_runs.members(run)] for run in runs]
    assert seeds == [[first, first + 1, first + 2] * 2]
    # What is complete is read.
    monkeypatch.setattr("stoix_like.run.experiment.run", None)
    assert train_again(runner, "finalists", settings, [LR, GAMMA], 3, first, "final") == found


def test_settings_are_judged_by_the_interquartile_mean_of_their_members():
    # Of four members, the mean of the middle two; of three, the mean; NaN is the lowest.
    assert interquartile_means([0.0, 100.0, 2.0, 4.0, float("nan"), 1.0, 3.0, 5.0], 4).tolist() == [3.0, 2.0]
    assert interquartile_means([0.0, 3.0, 6.0, 1.0, float("nan"), 2.0], 3).tolist() == [3.0, -float("inf")]
