import json
import signal
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.arch_config import PBTConfig
from stoix_like.architectures.types import LearnerState
from stoix_like.base_types import SystemConfig
from stoix_like.callbacks import Callback
from stoix_like.errors import CallbackError
from stoix_like.policies.load import load_shared, open_run
from stoix_like.processes import ALONE
from stoix_like.run.population.members import Population
from stoix_like.run.population.pbt import Evolution
from stoix_like.storage.recorded_runs import members, read_run
from support.comparisons import without_times
from support.set_ups import setup_of
from support.trained_runs import LAYERS

SMALL = [
    *(*LAYERS, "system.rollout_length=8", "arch.total_num_envs=4", "arch.total_timesteps=1280", "logger=silent"),
    *("arch.num_evaluation=5", "arch.num_eval_episodes=4", "arch.population.size=8"),
    "arch.population.pbt.every_evals=2",
]
VARIED = "arch.population.hyperparams={actor_lr: {log_uniform: [1e-5, 1e-2]}, ent_coef: {uniform: [0.0, 0.2]}}"
HALVES = [1.0] * 20 + [9.0] * 20
RANGES = {"lr": {"log_uniform": [1e-4, 1e-1]}, "ent": {"uniform": [-1.0, 3.0]}}


@dataclass(frozen=True, kw_only=True)
class System(SystemConfig):
    lr: float
    ent: float


def select(scores, *, healthy=None, count=2, records=1, **settings):
    size = len(scores)
    own = jnp.arange(size)
    healthy = jnp.ones(size, bool) if healthy is None else jnp.asarray(healthy, bool)
    shared = {"params": own * 10.0, "key": jax.random.split(jax.random.key(0), size)}
    state = LearnerState(shared, {"local": own}, healthy, ())
    hyperparams = {"lr": (1e-1,) + (1e-2,) * (size - 1), "ent": (1.0,) * size}
    members = Population(tuple(range(size)), hyperparams, (0,) * size)
    config = PBTConfig(**{"every_evals": 1, "fraction": count / size, "resample_probability": 0.0, **settings})
    population = SimpleNamespace(hyperparams=RANGES, pbt=config)
    arch, system = SimpleNamespace(seed=3, population=population), System(lr=0.1, ent=1.0, rollout_length=1)
    evolution = Evolution(SimpleNamespace(arch=arch, system=system), members, state, ALONE)
    selected = evolution(state, members, [{}] * (records - 1) + [{"eval/episode_return_mean": scores}])
    sources = selected.sources
    assert selected.healthy == [member for member in range(size) if sources[member] != member]
    return selected.state, selected.population.hyperparams, sources


def test_the_worst_members_continue_as_changed_copies_of_the_best():
    state, hyperparams, sources = select([9.0, 1.0, 5.0, 2.0, 8.0, 4.0])
    sources = np.asarray(sources)
    assert sources[[0, 2, 4, 5]].tolist() == [0, 2, 4, 5]
    assert set(sources[[1, 3]]) <= {0, 4}
    np.testing.assert_array_equal(state.shared["params"], 10.0 * sources)
    np.testing.assert_array_equal(state.shards["local"], np.arange(6))
    # Copies draw other resets than their sources.
    assert len(np.unique(jax.random.key_data(state.shared["key"]), axis=0)) == 6
    lr, ent = np.asarray(hyperparams["lr"]), np.asarray(hyperparams["ent"])
    np.testing.assert_array_equal(ent[[0, 2, 4, 5]], 1.0)
    for member in (1, 3):
        # A factor of 0.8 or 1.2 of the source, at most 0.1; a fifth of the width of 4 up or down.
        before = 1e-1 if sources[member] == 0 else 1e-2
        assert np.isclose(lr[member], [0.8 * before, min(1.2 * before, 0.1)], rtol=1e-5).any()
        assert np.isclose(ent[member], [0.2, 1.8], rtol=1e-5).any()


@pytest.mark.slow
def test_the_perturbation_is_the_step_of_a_copy_within_bounds():
    _, hyperparams, _ = select(HALVES, count=20, perturbation=0.45)
    # The copied ones have 1e-2 and 1: a factor of 0.55 or 1.45, and 0.45 of the width of 4 up or down.
    np.testing.assert_allclose(np.unique(hyperparams["lr"][1:]), [0.55e-2, 1e-2, 1.45e-2], rtol=1e-5)
    np.testing.assert_allclose(np.unique(hyperparams["ent"]), [-0.8, 1.0, 2.8], rtol=1e-5)
    # A fifth of the width of 0.5, clipped to [0.95, 1.45].
    _, hyperparams, _ = select(HALVES, count=20, bounds={"ent": {"uniform": [0.95, 1.45]}})
    np.testing.assert_allclose(np.unique(hyperparams["ent"]), [0.95, 1.0, 1.1], rtol=1e-5)


def test_every_hyperparameter_and_every_selection_has_draws_of_its_own():
    _, first, _ = select(HALVES, count=20)
    # The copied ones have 1e-2 and 1.
    assert len({(lr > 1e-2, ent > 1.0) for lr, ent in zip(first["lr"][1:20], first["ent"][1:20], strict=True)}) == 4
    _, second, _ = select(HALVES, count=20, records=2)
    assert list(first["ent"]) != list(second["ent"])


def test_a_member_that_diverged_or_has_no_return_is_replaced_and_equal_ones_are_left_alone():
    state, _, sources = select([9.0, np.nan, 5.0, 100.0, 8.0, 4.0], healthy=[1, 1, 1, 0, 1, 1])
    assert set(np.asarray(sources)[[1, 3]].tolist()) <= {0, 4}
    assert np.asarray(state.healthy).all()
    assert np.asarray(sources)[5] == 5
    _, hyperparams, sources = select([3.0] * 4)
    assert np.asarray(sources).tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(hyperparams["ent"], 1.0)


@pytest.mark.slow
def test_values_that_are_drawn_anew_fill_their_range():
    """The logarithm of a log-uniform value in [1e-4, 1e-1] is uniform: mean ln(10) (-2.5), deviation ln(10) 3 / √12."""
    size = 4000
    scores = np.r_[np.zeros(size // 2), np.ones(size // 2)]
    _, hyperparams, _ = select(scores, count=size // 2, resample_probability=1.0)
    log, ent = np.log10(hyperparams["lr"][: size // 2]), np.asarray(hyperparams["ent"][: size // 2])
    assert log.mean() == pytest.approx(-2.5, abs=4 * 3 / np.sqrt(12 * size / 2))
    assert ent.mean() == pytest.approx(1.0, abs=4 * 4 / np.sqrt(12 * size / 2))
    assert -4.0 <= log.min() < -3.98
    assert -1.0 <= ent.min() < -0.97
    assert 2.97 < ent.max() <= 3.0


class _End(Callback):
    def __init__(self, steps, end):
        self.steps, self.end = steps, end

    def on_evaluation(self, record, policy):
        if record["env_steps"] == self.steps:
            self.end()


def _fail():
    raise RuntimeError("lost")


STOP = _End(768, lambda: signal.raise_signal(signal.SIGTERM))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return stoix_like.train("ppo/ff_ppo", [*SMALL, VARIED], run_dir=tmp_path_factory.mktemp("pbt") / "run")


@pytest.mark.slow
def test_lineage_is_recorded_and_explains_the_hyperparameters(trained):
    selected = [record.get("population/continues") for record in trained.history]
    # After every second evaluation; the last one, the fifth, ends the run.
    assert [found is not None for found in selected] == [False, False, True, False, True, False]
    for before, after in zip(trained.history, trained.history[1:], strict=False):
        sources = before.get("population/continues", list(range(8)))
        kept = [member for member in range(8) if sources[member] == member]
        for name, low, high in (("actor_lr", 1e-5, 1e-2), ("ent_coef", 0.0, 0.2)):
            values = after[f"hyperparams/{name}"]
            assert [values[member] for member in kept] == [before[f"hyperparams/{name}"][member] for member in kept]
            assert np.float32(low) <= min(values) <= max(values) <= np.float32(high)
    assert any(sources != list(range(8)) for sources in selected if sources)
    assert trained.members[3]["actor_lr"] == trained.history[-1]["hyperparams/actor_lr"][3]
    assert [member.hyperparams for member in members(read_run(trained.run_dir))] == [{}] * 8
    # A policy has the hyperparameters of its time.
    for member, record in enumerate(stoix_like.evaluate(trained.run_dir, episodes=2, member="all")["members"]):
        (then,) = (entry for entry in trained.history if entry["env_steps"] == record["env_steps"])
        expected = {name: then[f"hyperparams/{name}"][member] for name in ("actor_lr", "ent_coef")}
        assert record["hyperparams"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("callback", "error"), [(STOP, SystemExit), (_End(512, _fail), CallbackError)])
def test_a_run_that_was_stopped_resumes_exactly(trained, tmp_path, callback, error):
    run = tmp_path / "run"
    with pytest.raises(error):
        stoix_like.train("ppo/ff_ppo", [*SMALL, VARIED], run_dir=run, callbacks=[callback])
    resumed = stoix_like.resume(run)
    assert without_times(resumed.history) == without_times(trained.history)
    assert [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] == resumed.history
    assert resumed.summary["absolute/episode_return_mean"] == trained.summary["absolute/episode_return_mean"]
    # Once more, now that the run is complete.
    assert stoix_like.resume(run).members == resumed.members


@pytest.mark.slow
def test_members_on_several_devices_are_selected_and_resumed(tmp_path):
    devices = ["arch.num_devices=2"]
    overrides = [*SMALL, VARIED, *devices, "arch.population.pbt.every_evals=1"]
    whole = stoix_like.train("ppo/ff_ppo", overrides, run_dir=tmp_path / "whole")
    assert [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()] == whole.history
    sources = [record["population/continues"] for record in whole.history if "population/continues" in record]
    # Copies from the other device, too, which has four of the eight members.
    assert any(member // 4 != source // 4 for found in sources for member, source in enumerate(found))
    for before, after in zip(whole.history, whole.history[1:], strict=False):
        for member, source in enumerate(before.get("population/continues", range(8))):
            if member == source:
                assert after["hyperparams/actor_lr"][member] == before["hyperparams/actor_lr"][member]
    with pytest.raises(SystemExit):
        stoix_like.train("ppo/ff_ppo", overrides, run_dir=tmp_path / "run", callbacks=[STOP])
    # A member that was replaced has the parameters, and so the return, of another one.
    returns, found = whole.history[3]["eval/episode_return_mean"], whole.history[3]["population/continues"]
    assert load_shared(open_run(tmp_path / "run"), "last").episode_return.tolist() == [returns[i] for i in found]
    assert without_times(stoix_like.resume(tmp_path / "run").history) == without_times(whole.history)


def test_a_population_that_varies_nothing_is_told_that_nothing_is_explored():
    assert any("explores nothing" in note for note in setup_of(*SMALL).plan.notes)
