import json
from types import SimpleNamespace

import numpy as np
import pytest

import stoix_like
from stoix_like.errors import HostEnvironmentError
from stoix_like.loggers import MultiLogger
from stoix_like.run import training_loop
from stoix_like.run.population.members import Population
from stoix_like.run.records import blocks
from stoix_like.run.records.clock import Clock
from stoix_like.run.records.recording import Progress, Recording
from stoix_like.run.training_loop import TrainingLoop
from support import keeper
from support.collector import Collector
from support.comparisons import without_times
from support.set_ups import config_of, setup_of
from support.toy_runs import TOY_RUN, interrupt_at_check

LAYOUTS = {
    "alone": [],
    "population": ["arch.population.hyperparams={gain: [1.0, 3.0], nan_at: [-1.0, 8.0]}"],
    "shards": ["arch.num_devices=2", "arch.update_batch_size=2"],
}


def trained(*overrides):
    collector = Collector()
    loop = TrainingLoop(setup_of(*TOY_RUN, *overrides), MultiLogger([collector]))
    loop.train()
    return loop, collector


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_add_up_to_the_interval_and_change_nothing_else(layout, monkeypatch):
    without, _ = trained(*LAYOUTS[layout])
    loop, collector = trained(*LAYOUTS[layout], "logger.every_updates=2")
    assert without_times(loop.history) == without_times(without.history)
    ends = [record["updates"] for record in collector.updates]
    # The last block of each interval of 5 updates is shorter.
    assert ends == [2, 4, 5, 7, 9, 10, 12, 14, 15, 17, 19, 20]
    assert [record["env_steps"] for record in collector.updates] == [16 * end for end in ends]
    # Records come before the evaluation at the end of their interval.
    kinds = [("evaluation", 0), *(("updates", end) for end in ends[:3]), ("evaluation", 5), ("updates", 7)]
    assert collector.order[: len(kinds)] == kinds
    sizes = np.asarray([2.0, 2.0, 1.0])
    for number, record in enumerate(loop.history[1:]):
        own = collector.updates[3 * number : 3 * number + 3]
        for name in ("reward", "first_carry"):
            values = np.asarray([block[f"updates/{name}"] for block in own], float).reshape(3, -1)[:, 0]
            interval = np.atleast_1d(record[f"train/{name}"])[0]
            assert (sizes * values).sum() / 5 == pytest.approx(interval, rel=1e-6)
        assert np.sum([block["updates/episodes"] for block in own], 0).tolist() == record["train/episodes"]
    if layout == "population":
        # `first_carry` is the number of the first step of a rollout: 4 per update before it.
        assert collector.updates[3]["updates/first_carry"] == [22.0, 22.0]
        # The second member diverges in update 8, so that its block of updates 8 and 9 has none.
        assert collector.updates[3]["updates/reward"][1] is not None
        assert collector.updates[4]["updates/reward"][1] is None
    # Calls of a single update divide every block.
    monkeypatch.setattr(training_loop, "SECONDS_PER_CALL", 0.0)
    _, divided = trained(*LAYOUTS[layout], "logger.every_updates=2")
    assert divided.updates == collector.updates


def test_a_call_is_shortened_to_whole_blocks():
    def fit(done, num_updates, interval=100):
        return blocks.fit(blocks.Call(done, num_updates, interval), every=10, num_blocks=4).num_updates

    assert [fit(0, wanted) for wanted in (1, 10, 19, 35, 90)] == [1, 10, 10, 30, 40]
    # The end of a block that has started, and of the interval.
    assert (fit(3, 50), fit(3, 2), fit(70, 28, 98)) == (7, 2, 28)


@pytest.mark.slow
def test_records_of_a_resumed_run_continue_those_before_its_checkpoint(tmp_path, monkeypatch):
    words = [*TOY_RUN, "logger.every_updates=3", "arch.population.size=2", "logger.console.enabled=false"]
    stoix_like.train("ppo/ff_ppo", words, run_dir=tmp_path / "whole")
    with monkeypatch.context() as patched:
        # One update per call: the seventh check is after update 7, within the block of updates 6 to 8.
        interrupt_at_check(patched, 7)
        with pytest.raises(KeyboardInterrupt):
            stoix_like.train("ppo/ff_ppo", words, run_dir=tmp_path / "run")
    path = tmp_path / "run/updates.jsonl"
    assert [json.loads(line)["updates"] for line in path.read_text().splitlines()] == [3, 5]
    # What was written after the checkpoint is discarded.
    path.write_text(path.read_text() + '{"env_steps": 128, "updates": 8}\n{"env_st')
    stoix_like.resume(tmp_path / "run")
    assert path.read_bytes() == (tmp_path / "whole/updates.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", [TOY_RUN, [*keeper.RUN[:-1], *keeper.KEEPER, "arch.total_timesteps=80"]], ids=["anakin", "sebulba"]
)
def test_a_run_continues_with_the_evaluation_that_failed(tmp_path, monkeypatch, architecture):
    architecture = [*architecture, "logger.every_updates=3"]
    evaluate, failures = TrainingLoop.evaluate, iter([False, True])

    def fail_once(loop):
        if next(failures, False):
            raise HostEnvironmentError("no answer")
        return evaluate(loop)

    monkeypatch.setattr(TrainingLoop, "evaluate", fail_once)
    run = tmp_path / "run"
    with pytest.raises(HostEnvironmentError, match="saved; continue with"):
        stoix_like.train("ppo/ff_ppo", [*architecture, "logger.console.enabled=false"], run_dir=run)
    resumed = stoix_like.resume(run)
    evaluated = [record["updates"] for record in resumed.history]
    assert evaluated == sorted(set(evaluated))
    assert resumed.summary["updates"] == evaluated[-1]
    updates = [json.loads(line)["updates"] for line in (run / "updates.jsonl").read_text().splitlines()]
    assert updates == sorted(set(updates))
    assert updates[-1] == resumed.summary["updates"]
    if "arch=sebulba" not in architecture:
        whole = stoix_like.train("ppo/ff_ppo", [*architecture, "logger=silent"], run_dir=tmp_path / "whole")
        assert without_times(resumed.history) == without_times(whole.history)


def recording_of(*overrides, population=None):
    config, processes = config_of(*overrides), SimpleNamespace(index=0)
    setup = SimpleNamespace(config=config, processes=processes, population=population)
    return Recording(setup, Progress(), MultiLogger([]), Clock(), None)


def test_unfinished_episodes_and_clipped_targets_are_reported_once(capsys):
    population = Population((0, 1), {"vmax": (10.0, 100.0)}, (0, 1))
    recording = recording_of("system=q_learning/ff_c51", population=population)
    finished = np.array([[True, True], [False, True]])
    recording.advise({"train/clipped_targets": 0.05}, np.ones((2, 2), bool))
    recording.advise({"train/clipped_targets": [None, 0.05]}, np.ones((2, 2), bool))
    recording.advise({"train/clipped_targets": None}, np.ones((2, 2), bool))
    assert capsys.readouterr().err == ""
    recording.advise({"train/clipped_targets": [0.0, 0.25]}, finished)
    recording.advise({"train/clipped_targets": [0.0, 0.25]}, finished)
    cut, clipped = capsys.readouterr().err.splitlines()
    what = "1 of 4 evaluation episodes did not end within arch.max_eval_steps=100,000"
    assert cut == f"{what}: raise arch.max_eval_steps, or truncate them with env.time_limit"
    assert clipped.startswith("train/clipped_targets=0.250 of member 1: 25% of the probability of value targets lies")
    assert "vmax=100" in clipped


@pytest.mark.parametrize("system", ["ppo/ff_ppo", "search/ff_az"])
def test_clipped_targets_of_a_critic_whose_network_sets_the_atoms_are_reported(system, capsys):
    """Of `mlp_hl_gauss`, whose atoms end at -10 and 10; those of `mlp_symexp` have no keys for their ends."""
    for network in ("mlp_symexp", "mlp_hl_gauss"):
        recording_of(f"system={system}", f"network={network}").advise({"train/clipped_targets": 0.25}, np.ones(2, bool))
    head = "network.critic_network.critic_head"
    assert capsys.readouterr().err == (
        "train/clipped_targets=0.250: 25% of the probability of value targets lies outside of"
        f" {head}.vmin=-10 to {head}.vmax=10: widen them, or lower system.reward_scale\n"
    )
