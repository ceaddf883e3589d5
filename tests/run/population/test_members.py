import json
import math

import jax
import numpy as np
import pytest

import stoix_like
from stoix_like.errors import ConfigError
from stoix_like.overrides import to_overrides
from stoix_like.run import experiment
from stoix_like.run.host.plan import spread_members
from stoix_like.run.population.members import Population, make_population
from stoix_like.run.prepare import prepare
from stoix_like.run.programs.functions import make_keys
from stoix_like.run.records import records
from stoix_like.run.records.recording import evaluated
from stoix_like.storage import checkpoint
from stoix_like.storage.recorded_runs import members, read_run, settings
from support import toys
from support.set_ups import config_of, loop_of, setup_of
from support.trained_runs import LAYERS

SMALL = [
    *(*LAYERS, "arch.total_num_envs=4", "arch.total_timesteps=1024", "arch.num_evaluation=2"),
    *("arch.num_eval_episodes=3", "arch.compile_cache=false", "system.rollout_length=32", "logger=silent"),
]


def population(*overrides):
    return make_population(config_of(*overrides))


def hyperparams(text, *overrides):
    return population(f"arch.population.hyperparams={text}", *overrides)


def test_member_seeds_count_up_from_the_seed_of_the_run_and_are_those_of_every_point_of_a_grid():
    found = population("arch.seed=7", "arch.population.size=3")
    assert (found.seeds, found.hyperparams) == ((7, 8, 9), {})
    assert population("arch.population.seeds=3").num_members == 3
    lists, grid = "{actor_lr: [1e-4, 1e-3, 1e-2]}", ["arch.seed=7", "arch.population.seeds=2"]
    assert hyperparams(lists, *grid, "arch.population.mode=grid").seeds == (7, 8, 7, 8, 7, 8)
    assert hyperparams(lists, *grid).seeds == (7, 8, 9, 10, 11, 12)
    # Without hyperparameters there is a single point.
    assert population("arch.population.size=3", "arch.population.paired=true").seeds == (42, 43, 44)


def test_lists_are_zipped_or_combined_as_a_grid():
    lists = "{actor_lr: [1e-4, 1e-3], clip_eps: [0.1, 0.3]}"
    zipped = hyperparams(lists, "arch.population.seeds=2")
    assert zipped.hyperparams == {"actor_lr": (1e-4, 1e-4, 1e-3, 1e-3), "clip_eps": (0.1, 0.1, 0.3, 0.3)}
    assert zipped.strata == (0, 0, 1, 1)
    grid = hyperparams(lists, "arch.population.mode=grid")
    assert grid.hyperparams == {"actor_lr": (1e-4, 1e-4, 1e-3, 1e-3), "clip_eps": (0.1, 0.3, 0.1, 0.3)}
    assert grid.strata == (0, 1, 2, 3)


def test_points_are_aggregated_over_their_own_members():
    grid = hyperparams("{gamma: [0.9, 0.99]}", "arch.population.mode=grid", "arch.population.seeds=4")
    returns = [1.0, 2.0, 3.0, 10.0, math.nan, 6.0, 4.0, 8.0]
    found = records.points(grid, records.members(grid, {"eval/episode_return_mean": returns}, {}, {}))
    assert [point["members"] for point in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [point["seeds"] for point in found] == [[42, 43, 44, 45]] * 2
    # Of four returns one is dropped at each end, NaN first: (2 + 3) / 2 and (4 + 6) / 2.
    assert [point["eval/episode_return_iqm"] for point in found] == [2.5, 5.0]
    assert found[0]["eval/episode_return_mean"] == 4.0
    assert 1 <= found[0]["eval/episode_return_ci_low"] < 2.5 < found[0]["eval/episode_return_ci_high"] <= 10
    assert records.best_point(found)["gamma"] == 0.99
    # Without a return of more than a quarter of its members, a setting has none.
    diverged = records.members(grid, {"eval/episode_return_mean": returns}, {}, {6: "train/loss", 7: "train/loss"})
    frozen = records.points(grid, diverged)
    assert frozen[0]["eval/episode_return_iqm"] == 2.5
    assert math.isnan(frozen[1]["eval/episode_return_iqm"])
    assert records.best_point(frozen)["gamma"] == 0.9
    single = hyperparams("{gamma: [0.9, 0.99]}")
    (first, _) = records.points(single, records.members(single, {"eval/episode_return_mean": [1.0, 2.0]}, {}, {}))
    assert (first["eval/episode_return_iqm"], first["eval/episode_return_ci_low"]) == (1.0, None)


def test_draws_from_distributions_depend_on_the_seed_of_the_run():
    text = "{actor_lr: {log_uniform: [1e-5, 1e-2]}, clip_eps: {uniform: [0.1, 0.3]}, gamma: {choice: [0.9, 0.99]}}"
    found = hyperparams(text, "arch.population.size=64")
    assert found.num_members == 64
    lr = np.asarray(found.hyperparams["actor_lr"])
    assert ((lr >= 1e-5) & (lr <= 1e-2)).all()
    # Half of log-uniform draws are below the geometric mean, within 4 standard deviations of 0.5 / sqrt(64).
    assert abs((lr < 10**-3.5).mean() - 0.5) < 0.25
    assert set(found.hyperparams["gamma"]) == {0.9, 0.99}
    assert hyperparams(text, "arch.population.size=64") == found
    assert hyperparams(text, "arch.population.size=64", "arch.seed=1").hyperparams != found.hyperparams


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("{epochs: [1, 2]}", [], "hyperparams.epochs cannot vary between members: choose from max_grad_norm, adam_eps"),
        ("{actor_lr: [1e-3, -1]}", [], "system.actor_lr=-1.0 is out of range"),
        ("{actor_lr: [1e-3], gamma: [0.9, 0.99]}", [], "needs lists of equal length"),
        ("{actor_lr: []}", [], "is empty"),
        ("{actor_lr: 1e-3}", [], "must be a list or {uniform"),
        ("{actor_lr: {normal: [0, 1]}}", [], "normal is not a distribution: did you mean 'uniform'"),
        ("{actor_lr: {uniform: [1]}}", [], "must be two numbers"),
        ("{actor_lr: {uniform: [1, 0]}}", [], "must be .low, high. with low <= high"),
        ("{actor_lr: {log_uniform: [1, inf]}}", [], "low <= high, at a finite distance"),
        ("{actor_lr: {log_uniform: [0, 1]}}", [], "must start above 0"),
        ("{actor_lr: [1e-3, 1e-2]}", ["arch.population.size=3"], "size=3 must equal 2 .*: omit it or use 2$"),
        (
            "{actor_lr: {uniform: [1e-3, 1]}}",
            ["arch.population.size=3", "arch.population.seeds=2"],
            "arch.population.size=3 must be a multiple of arch.population.seeds=2: use 2 or 4$",
        ),
        (
            f"{{actor_lr: {list(range(1, 1002))}, clip_eps: {list(range(1, 1001))}}}",
            ["arch.population.mode=grid"],
            "arch.population.seeds=1 × 1,001,000 hyperparameter setting.* are 1,001,000 members: use at most 1,000,000",
        ),
        ("{}", ["arch.population.size=4", "arch.population.seeds=3"], "size=4 arch.population.seeds=3: .*: omit one"),
        ("{}", ["arch.population.size=2", "arch.seed=4294967295"], "arch.seed=4294967295 is too large for 2 seeds"),
    ],
)
def test_invalid_populations_are_refused(text, overrides, message):
    with pytest.raises(ConfigError, match=message):
        hyperparams(text, *overrides)


def test_members_are_sharded_over_devices_if_they_divide_evenly():
    assert spread_members(4, 1) == (False, ())
    assert spread_members(4, 2) == (True, ("4 members on 2 devices: members are sharded",))
    assert spread_members(3, 2) == (False, ("3 members on 2 devices: the environments of each member are sharded",))


def trained(*overrides, num_updates=4):
    loop = loop_of(*SMALL, *overrides)
    loop.advance(num_updates)
    return loop


SETTINGS = {"actor_lr": [1e-3, 3e-3, 1e-3], "gamma": [0.9, 0.99, 0.99], "ent_coef": [0.0, 0.01, 0.0]}


@pytest.mark.slow
@pytest.mark.parametrize(("num_devices", "size"), [(1, 2), (2, 2), (2, 3)], ids=["alone", "members", "environments"])
def test_a_member_learns_the_same_as_a_lone_run(num_devices, size):
    """The parameters after 4 updates of 16 gradient steps agree up to rounding.

    Batched matrix products sum in another order than single ones, and traced hyperparameters are not folded into
    constants; Adam divides by small second moments, which amplifies these differences to about 1e-5 here.
    """
    varied = {name: values[:size] for name, values in SETTINGS.items()}
    together = trained(f"arch.num_devices={num_devices}", *to_overrides({"arch.population.hyperparams": varied}))
    devices = 1 if size % num_devices == 0 else num_devices
    for member in range(size):
        setting = {f"system.{name}": values[member] for name, values in SETTINGS.items()}
        alone = trained(*to_overrides({"arch.num_devices": devices, "arch.seed": 42 + member, **setting}))
        params = (jax.tree.leaves(jax.device_get(loop.state.shared.params)) for loop in (together, alone))
        for a, b in zip(*params, strict=True):
            np.testing.assert_allclose(a[member], b, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_population_of_one_has_no_population_axis():
    alone = trained()
    one = trained("arch.population.hyperparams={actor_lr: [2e-3]}")
    assert jax.tree.map(np.shape, alone.state.shared) == jax.tree.map(np.shape, one.state.shared)
    set_directly = trained("system.actor_lr=2e-3")
    jax.tree.map(np.testing.assert_array_equal, *(jax.device_get(s.state.shared.params) for s in (one, set_directly)))


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    grid = ["arch.population.hyperparams={gain: [1.0, 2.0, 3.0]}", "arch.population.seeds=2"]
    config = config_of(*toys.overrides(rollout_length=32), *SMALL[2:-2], *grid, "arch.population.mode=grid")
    return experiment.run(prepare(config, tmp_path_factory.mktemp("runs") / "run"))


def test_a_population_writes_per_member_values_and_aggregates_and_measures_the_best_of_each_member(result):
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        assert len(line["eval/episode_return_mean"]) == 6
        assert line["hyperparams/gain"] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
        low, iqm, high = (line[f"eval/episode_return_{name}"] for name in ("ci_low", "iqm", "ci_high"))
        assert low <= iqm <= high
    assert len(lines[1]["train/reward"]) == 6
    summary = json.loads((result.run_dir / "summary.json").read_text())
    best = summary["population/best"]
    scores = lines[-1]["eval/episode_return_mean"]
    assert best["eval/episode_return_mean"] == max(scores)
    assert best["gain"] == lines[-1]["hyperparams/gain"][best["member"]]
    assert result.eval_return == summary["eval/episode_return_iqm"]
    assert [member["seed"] for member in result.members] == [42, 43] * 3
    points = summary["population/points"]
    assert [(point["gain"], point["seeds"]) for point in points] == [(gain, [42, 43]) for gain in (1.0, 2.0, 3.0)]
    # The interquartile mean of two returns is their mean.
    expected = [(scores[2 * point] + scores[2 * point + 1]) / 2 for point in range(3)]
    assert [point["eval/episode_return_iqm"] for point in points] == pytest.approx(expected)
    assert summary["population/best_point"] == points[int(np.argmax(expected))]
    assert [member["eval/episode_return_mean"] for member in result.members] == scores
    assert {"absolute/episode_return_mean", "absolute/env_steps", "gain"} <= set(result.members[0])
    assert all(not isinstance(value, list) for member in result.members for value in member.values())
    for member in result.members:
        scores = [record["eval/episode_return_mean"][member["member"]] for record in result.history[1:]]
        assert member["absolute/env_steps"] == result.history[1 + int(np.argmax(scores))]["env_steps"]
    returns = np.asarray(result.summary["absolute_episode_returns"])
    np.testing.assert_allclose(returns.mean(-1), result.summary["absolute/episode_return_mean"], rtol=1e-6)


TOY = [*toys.overrides(nan_at=-1.0), "env=probe/value", "arch.total_timesteps=160", "arch.num_evaluation=2"]
TOY += ["arch.total_num_envs=4"]


@pytest.mark.parametrize("nan_at", [pytest.param(1.0, marks=pytest.mark.slow), 7.0])
def test_a_diverged_member_is_frozen_and_the_others_continue(nan_at, capsys):
    """All returns are equal, so that the last evaluation is the best: after update 7 of 10, that of update 5."""
    hyperparams = f"arch.population.hyperparams={{nan_at: [-1.0, {nan_at}, -1.0]}}"
    loop = loop_of(*TOY, hyperparams, "arch.absolute_metric=true")
    loop.train()
    assert loop.state.healthy.tolist() == [True, False, True]
    assert loop.state.shared["updates"].tolist() == [10, nan_at - 1, 10]
    assert loop.history[-1]["population/failed"] == [1]
    assert loop.progress.failures[1] == f"train/reward became non-finite in update {nan_at:.0f}"
    assert capsys.readouterr().err.count("member 1 diverged and is frozen") == 1
    # One that diverged before its second evaluation has no best policy.
    found, frozen = (80, 1.0) if nan_at == 7.0 else (0, pytest.approx(math.nan, nan_ok=True))
    assert loop.evaluations.best.env_steps.tolist() == [160, found, 160]
    assert loop.summary()["absolute/episode_return_mean"] == [1.0, frozen, 1.0]
    if nan_at == 7.0:
        assert loop.history[-1]["train/reward"] == [1.0, 1.0, 1.0]


@pytest.mark.slow
def test_diverged_members_train_again_with_on_nan_ignore(tmp_path):
    varied = "arch.population.hyperparams={nan_at: [-1.0, 4.0]}"
    first = loop_of(*TOY, varied, writer=checkpoint.Writer(tmp_path, 1))
    first.train()
    first.writer.close()
    assert list(first.progress.failures) == [1]
    more = ["arch.total_timesteps=320", "arch.num_evaluation=4", "arch.on_nan=ignore"]
    more = loop_of(*TOY, varied, *more, writer=checkpoint.Writer(tmp_path, 1))
    more.restore(checkpoint.read(tmp_path, 160, more.targets()))
    more.train()
    assert not more.progress.failures
    assert more.state.healthy.all()
    assert more.history[-1]["train/reward"] == [1.0, 1.0]


@pytest.mark.slow
def test_a_lone_member_records_its_hyperparameters(tmp_path):
    alone = [*TOY, "arch.population.hyperparams={gain: [3.0]}"]
    (lone,) = members(read_run(stoix_like.train("ppo/ff_ppo", alone, run_dir=tmp_path / "run").run_dir))
    assert lone.hyperparams == {"gain": 3.0}
    assert settings(lone)["system.gain"] == 3.0


def test_members_have_the_keys_of_their_seeds(monkeypatch):
    """One key per seed, built at once: the keys of a lone run with the same seed, up to the largest one."""
    setup = setup_of(*SMALL, "arch.population.size=4", "arch.update_batch_size=2")
    seeds = (0, 42, 2**31, 2**32 - 1)
    keys = make_keys(setup._replace(population=setup.population._replace(seeds=seeds)))
    for member, seed in enumerate(seeds):
        alone = make_keys(setup._replace(population=setup.population._replace(seeds=(seed,))))
        for a, b in zip(jax.tree.leaves(keys), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(jax.random.key_data(a)[member], jax.random.key_data(b))


def test_a_member_without_a_return_counts_as_the_worst():
    # The two lowest, NaN among them, and the two highest of 8 scores are dropped: (3 + 4 + 5 + 6) / 4 = 4.5.
    found = records.aggregate([8, math.nan, 7, 2, 6, 3, 5, 4], [0] * 8)
    assert found["iqm"] == 4.5
    # Of four scores one is trimmed at each end.
    assert math.isnan(records.aggregate([1.0, math.nan, math.nan, 2.0], [0] * 4)["iqm"])
    found = evaluated(Population((0, 1, 2), {}, (0, 0, 0)), np.asarray([1.0, math.nan, 2.0]), ())
    assert (found["population/best_member"], found["population/worst_member"]) == (2, 1)
    # One that is frozen counts as the lowest of the others: (2 + 4) / 2 of 2, 2, 4 and 5, and member 3 is the best.
    found = evaluated(Population((0, 1, 2, 3), {}, (0,) * 4), np.asarray([9.0, 2.0, 4.0, 5.0]), [0])
    assert (found["population/best_member"], found["population/worst_member"]) == (3, 0)
    assert (found["eval/episode_return_iqm"], found["population/failed"]) == (3.0, [0])
    # However many diverge: a run that goes on has a score. Without any other, there is none.
    found = evaluated(Population((0, 1), {}, (0, 0)), np.asarray([9.0, 2.0]), [0])
    assert found["eval/episode_return_iqm"] == 2.0
    found = evaluated(Population((0, 1), {}, (0, 0)), np.asarray([9.0, 2.0]), [0, 1])
    assert math.isnan(found["eval/episode_return_iqm"])
