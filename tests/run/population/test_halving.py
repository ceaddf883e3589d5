"""Runs with successive halving: how their trials start, end and resume, and what is refused."""

import shutil

import jax
import numpy as np
import pytest

import stoix_like
from stoix_like.callbacks import Callback, StopAtReturn
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.inference.load import load_shared, open_run
from stoix_like.loggers import MultiLogger
from stoix_like.run.host.plan import make_plan
from stoix_like.run.population import halving
from stoix_like.run.population.members import make_population
from stoix_like.run.set_up.setup import set_up
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.storage import checkpoint
from stoix_like.storage.recorded_runs import read_run
from support.composed import compose_config
from support.resumed import assert_resumed_equals_whole
from support.trained_runs import LAYERS

SMALL = [
    *(*LAYERS, "system.rollout_length=8", "arch.total_num_envs=4", "arch.total_timesteps=320", "logger=silent"),
    *("arch.num_evaluation=9", "arch.num_eval_episodes=4", "arch.population.size=6"),
    "arch.population.halving.rounds=3",
]
RETURN = "eval/episode_return_iqm"
VARIED = "arch.population.hyperparams={actor_lr: {log_uniform: [1e-5, 1e-2]}, ent_coef: {uniform: [0.0, 0.2]}}"


def parts(*overrides, small=SMALL):
    config = parse_config(compose_config([*small, *overrides]))
    return config, make_population(config), make_plan(config, 1)


def check(*overrides, **kwargs):
    halving.check(*parts(*overrides, **kwargs), on_host=False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([VARIED, "arch.population.pbt.every_evals=1"], "does not fit arch.population.pbt.every_evals"),
        ([], "give arch.population.hyperparams ranges"),
        ([VARIED, "arch.population.seeds=6"], "several trials at a time: set arch.population.size=48"),
        ([VARIED, "arch.stop_at_return=1"], "does not fit arch.stop_at_return=1"),
        ([VARIED, "arch.init_from=run"], "does not fit arch.init_from"),
        ([VARIED, "arch.num_evaluation=4"], "rungs=2 are too many for 4 evaluation.s. .* set arch.num_evaluation=9"),
        ([VARIED, f"arch.seed={2**32 - 10}"], "arch.seed=4294967286 is too large"),
        (["arch.population.size=1", "arch.population.hyperparams={gamma: [0.9, 0.99]}"], "halving.bounds.gamma to"),
        ([VARIED, "arch.population.halving.bounds={gamma: {uniform: [0, 1]}}"], "bounds.gamma does not vary"),
        ([VARIED, "arch.population.halving.bounds={ent_coef: {uniform: [-1, 1]}}"], "system.ent_coef=-1.0"),
        ([VARIED, "arch.population.halving.bounds={ent_coef: [0.1, 0.2]}"], r"ent_coef=\[0.1, 0.2\] must be {uniform"),
        ([VARIED, "arch.population.halving.bounds={ent_coef: {choice: [0.1, null]}}"], "must be numbers"),
        ([VARIED, "arch.population.halving.bounds={ent_coef: {choice: [0.1, x]}}"], "system.ent_coef=x"),
        ([VARIED, "arch.population.halving.rounds=0.5"], "arch.population.halving.rounds=0.5"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_that_cannot_work_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(*overrides)


def test_callbacks_that_would_stop_all_trials_at_once_are_refused():
    config = parse_config(compose_config([*SMALL, VARIED]))
    with pytest.raises(ConfigError, match="rounds=3 does not fit the callback StopAtReturn, .* omit it"):
        set_up(config._replace(custom_callbacks=(Callback(), StopAtReturn(1.0))))
    halving.check_callbacks(config, [Callback()])


def test_combinations_of_values_that_the_system_refuses_are_refused():
    c51 = [word for word in SMALL if not word.startswith(("network", "system"))]
    varied = "arch.population.hyperparams={vmin: {uniform: [-1.0, 0.5]}, vmax: {uniform: [0.4, 3.0]}}"
    with pytest.raises(ConfigError, match="an end of arch.population.* does not fit: system.vmin=0.5 must be less"):
        check(varied, "system=q_learning/ff_c51", "arch.total_timesteps=1e5", small=c51)


def test_a_run_lasts_whole_intervals_of_its_rounds():
    # 320 / 32 = 10 updates in 9 intervals; 2.5 rounds are 22 intervals, 2 × 10 updates and 4 intervals more.
    _, _, plan = parts(VARIED, "arch.population.halving.rounds=2.5")
    assert (plan.trial_updates, plan.trial_evaluations, len(plan.evaluations)) == (10, 9, 22)
    assert plan.num_updates == 20 + 4 * 10 // 9
    # Every trial has the same number of updates, whenever it starts.
    ends = (0, *plan.evaluations)
    assert {end - start for start, end in zip(ends, ends[9:], strict=False)} == {10}


def test_the_setting_of_a_trial_depends_on_the_seed_and_its_number_alone():
    config, _, _ = parts(VARIED)
    drawn = [halving.draw_setting(config, number) for number in range(6, 200)]
    assert halving.draw_setting(parts(VARIED, "arch.population.size=4")[0], 7) == drawn[1]
    assert len({setting["actor_lr"] for setting in drawn}) == len(drawn)
    assert halving.draw_setting(parts(VARIED, "arch.seed=1")[0], 7) != drawn[1]
    # log10 of the learning rates is uniform in [-5, -2]: mean -3.5, deviation 3 / √12.
    assert np.mean([np.log10(setting["actor_lr"]) for setting in drawn]) == pytest.approx(-3.5, abs=4 * 0.87 / 194**0.5)
    bounded = parts(VARIED, "arch.population.halving.bounds={actor_lr: {uniform: [0.1, 0.2]}}")[0]
    settings = [halving.draw_setting(bounded, number) for number in range(6, 200)]
    assert [setting["ent_coef"] for setting in settings] == [setting["ent_coef"] for setting in drawn]
    rates = [setting["actor_lr"] for setting in settings]
    assert 0.1 <= min(rates) < 0.105
    assert 0.195 < max(rates) <= 0.2
    assert list(halving.seeds_of(parts(VARIED, "arch.population.seeds=3", "arch.seed=5")[0], 7)) == [26, 27, 28]
    paired = parts(VARIED, "arch.population.seeds=3", "arch.seed=5", "arch.population.paired=true")[0]
    assert list(halving.seeds_of(paired, 7)) == [5, 6, 7]


def training_loop(*overrides, writer=None):
    setup = set_up(parse_config(compose_config([*SMALL, *overrides])))
    return TrainingLoop(setup, MultiLogger([]), writer)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("halving") / "run"
    overrides = [*SMALL, VARIED, "arch.population.seeds=2", "checkpoint.every_evals=1", "checkpoint.keep=99"]
    return stoix_like.train("ppo/ff_ppo", overrides, run_dir=directory)


@pytest.mark.slow
def test_trials_are_recorded_and_each_slot_completes_one(trained):
    trials = trained.summary["population/trials"]
    assert [trial["number"] for trial in trials] == list(range(len(trials)))
    assert len(trials) > 6
    for before, after in zip(trained.history[1:], trained.history[2:], strict=False):
        assert after["population/trials"] == before["population/next_trials"]
    for record in trained.history:
        for slot, number in enumerate(record["population/trials"]):
            setting = trials[number]["hyperparameters"]
            for name, value in setting.items():
                assert record[f"hyperparams/{name}"][2 * slot : 2 * slot + 2] == [value] * 2
    complete = [trial for trial in trials if trial["state"] == "complete"]
    assert all(len(trial["evaluations"]) == 9 for trial in complete)
    best = max(complete, key=lambda trial: trial["evaluations"][-1])
    assert trained.eval_return == best["evaluations"][-1] == trained.summary["population/best_point"][RETURN]
    assert trained.summary["population/best"]["trial"] == best["number"]
    assert {member["trial"] for member in trained.summary["population/members"]} <= {one["number"] for one in complete}
    assert trained.summary["timing"]["selection"] > 0


@pytest.mark.slow
def test_the_best_policy_is_that_of_the_best_complete_trial(trained):
    best, run = trained.summary["population/best"], open_run(trained.run_dir)
    policy = stoix_like.load_policy(trained.run_dir)
    assert "best complete trial" in str(policy)
    state = load_shared(run)
    assert int(np.argmax(state.ranks)) == best["member"]
    assert state.hyperparams_of(best["member"]) == pytest.approx(
        {name: best[name] for name in ("actor_lr", "ent_coef")}
    )
    evaluated = stoix_like.evaluate(trained.run_dir, episodes=4)
    assert (evaluated["member"], evaluated["trained_with_seed"]) == (best["member"], best["seed"])
    assert read_run(trained.run_dir).last["eval/episode_return_mean"] == [
        member["eval/episode_return_mean"] for member in trained.members
    ]
    # Without a complete trial, the last parameters of each slot that still has them.
    early = load_shared(run, str(trained.history[1]["env_steps"]))
    assert early.env_steps.tolist() == [trained.history[1]["env_steps"]] * 6


@pytest.mark.slow
@pytest.mark.parametrize("layout", [[], ["arch.num_devices=2"]], ids=["one", "device"])
def test_a_trial_starts_as_a_lone_run_with_its_seed_and_setting(tmp_path, layout):
    writer = checkpoint.Writer(tmp_path, 99)
    loop = training_loop(VARIED, *layout, "checkpoint.every_evals=1", writer=writer)
    loop.train()
    writer.close()
    record = loop.history[1]
    items = checkpoint.read(tmp_path, record["env_steps"], loop.targets()).items
    started = [slot for slot, number in enumerate(record["population/next_trials"]) if number >= 6]
    assert started
    for slot in started[:2]:
        number = record["population/next_trials"][slot]
        setting = [f"system.{name}={value}" for name, value in halving.draw_setting(loop.setup.config, number).items()]
        lone = ["arch.population.size=1", "arch.population.halving.rounds=null"]
        state = training_loop(*setting, f"arch.seed={42 + number}", *lone).state
        stored = items["shared"], items["rollout_state"]["rollout_state"], items["rollout_state"]["key"]
        leaves = map(jax.tree.leaves, (stored, (state.shared, state.shards.rollout_state, state.shards.key)))
        for pair in zip(*leaves, strict=True):
            is_key = jax.dtypes.issubdtype(pair[0].dtype, jax.dtypes.prng_key)
            one, other = map(np.asarray, map(jax.random.key_data, pair) if is_key else pair)
            np.testing.assert_allclose(one[slot].ravel(), other.ravel(), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["arch.num_devices=2"],
        ["arch.num_devices=2", "arch.population.size=5"],
        ["arch.population.seeds=2", "arch.population.paired=true"],
    ],
    ids=["sharded members", "sharded environments", "paired"],
)
def test_a_run_that_was_stopped_resumes_exactly(tmp_path, overrides):
    overrides = [VARIED, *overrides, "checkpoint.every_evals=1"]
    whole = assert_resumed_equals_whole(lambda writer: training_loop(*overrides, writer=writer), tmp_path)
    assert any("population/next_trials" in record for record in whole.history)


@pytest.mark.slow
def test_members_that_diverge_start_other_trials(tmp_path):
    varied = "arch.population.hyperparams={actor_lr: {log_uniform: [1e-5, 1e-2]}, reward_scale: {choice: [1.0, 1e38]}}"
    result = stoix_like.train("ppo/ff_ppo", [*SMALL, varied], run_dir=tmp_path / "run")
    diverged = [one for one in result.summary["population/trials"] if one["state"] == "diverged"]
    assert diverged
    assert all(one["hyperparameters"]["reward_scale"] > 1e37 for one in diverged)
    assert result.summary["population/best"]["reward_scale"] == 1.0


class _Stop(Callback):
    def on_evaluation(self, record, policy):
        return False if record["updates"] >= 3 else None


@pytest.mark.slow
def test_members_without_a_complete_trial_are_evaluated_with_their_last_parameters(tmp_path):
    result = stoix_like.train("ppo/ff_ppo", [*SMALL, VARIED], run_dir=tmp_path / "run", callbacks=[_Stop()])
    assert result.summary["absolute/env_steps"] == [result.history[-1]["env_steps"]] * 6
    state = load_shared(open_run(tmp_path / "run"))
    assert state.env_steps.tolist() == result.summary["absolute/env_steps"]
    for member in result.summary["population/members"]:
        assert state.hyperparams_of(member["member"])["actor_lr"] == pytest.approx(member["actor_lr"])


@pytest.mark.slow
def test_a_complete_run_is_extended_by_whole_trials_alone(trained, tmp_path):
    run = shutil.copytree(trained.run_dir, tmp_path / "run")
    for override, words in {
        "arch.total_timesteps=640": "arch.total_timesteps=640.* was 320, for every trial of successive halving",
        "arch.population.halving.rounds=null": "a run is one of successive halving from its start or never",
        "arch.population.halving.rounds=1": "rounds=1 is less than the 3 rounds already trained: use at least 3",
    }.items():
        with pytest.raises(ConfigError, match=words):
            stoix_like.resume(run, [override])
    longer = stoix_like.resume(run, ["arch.population.halving.rounds=4"])
    for before, after in zip(trained.summary["population/trials"], longer.summary["population/trials"], strict=False):
        assert before["state"] == "unfinished" or before["evaluations"] == after["evaluations"]
    assert len(longer.history) == 4 * 9 + 1
