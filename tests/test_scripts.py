import dataclasses
import importlib
import importlib.metadata
import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from stoix_like import composition
from stoix_like.lab.aot.kernels import Kernel
from stoix_like.lab.aot.targets import find_target
from stoix_like.run.host.plan import make_plan
from support import parity
from support.set_ups import config_of

ROOT = Path(__file__).parent.parent


@pytest.fixture
def benchmark(monkeypatch):
    """The modules of the benchmark by name."""
    monkeypatch.syspath_prepend(ROOT / "scripts/benchmark")
    # Compile quickly; the measured speed does not matter here.
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    names = ("scenarios", "runner", "report", "compare", "kernels", "single_files")
    yield SimpleNamespace(**{name: __import__(name) for name in names})
    for name in names:
        sys.modules.pop(name)


@pytest.mark.slow
def test_the_benchmark_compares_a_run_with_another_framework(benchmark, tmp_path, monkeypatch):
    # The other framework is a trivial script that runs in this process's Python.
    monkeypatch.setattr(benchmark.runner, "SCRIPTS", tmp_path)
    for path in (ROOT / "scripts/benchmark").glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "peer_slow.py").write_text(
        "import json, sys\n"
        "import jax\n"
        "from worker import serve\n"
        "print('noise')\n"
        "settings = json.loads(sys.argv[1])\n"
        "result = {'wall': 2.0, 'cpu': 4.0, 'steps': settings['steps'], 'return': 9.0}\n"
        "device = jax.devices()[0].device_kind if settings['steps'] == 8 else 'another'\n"
        "serve(lambda: result, compile=None, jax=jax.__version__, device=device)\n"
    )
    keys = "total_timesteps=1024", "num_eval_episodes=2", "max_eval_steps=5"
    scenario = benchmark.scenarios.Scenario(
        (*benchmark.scenarios.PPO_SMALL, *(f"arch.{key}" for key in keys)),
        peers={"slow": {"steps": 8}},
        goal=benchmark.scenarios.Goal("cpu", 1.5),
    )
    monkeypatch.setitem(benchmark.scenarios.SCENARIOS, "tiny", scenario)
    rows = benchmark.runner.measure("tiny", {"slow": Path(sys.executable)}, repeats=2)
    ours, theirs = json.loads(json.dumps(rows))
    assert (ours["scenario"], ours["who"], theirs["who"]) == ("tiny", "stoix_like", "slow")
    # 8 steps in 2 s of wall time and 4 s of CPU time.
    assert (theirs["wall"], theirs["cpu"], theirs["return"]) == (4.0, 2.0, 9.0)
    assert theirs["ratio"] == {"wall": ours["wall"] / 4.0, "cpu": ours["cpu"] / 2.0}
    assert ours["goal"] == {"value": ours["cpu"] / 2.0, "met": True}
    # Two episodes of at most five steps, with a reward of 1 per step.
    assert 0 < ours["return"] <= 5.0
    assert ours["compile"] > 0

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench -->\nold\n<!-- end -->\nafter\n")
    benchmark.report.write_into(page, "bench", benchmark.report.markdown(rows, "make bench"))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "| tiny | stoix_like |" in text
    assert "≥ 1.5 x slow per CPU s" in text
    assert "old" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["env_only", "net_only", "evaluation", "unroll_gru", "steps_gymnax", "search_cartpole", "host_bridge_sync"]
)
def test_every_measure_runs(benchmark, monkeypatch, name):
    scenario = dataclasses.replace(benchmark.scenarios.SCENARIOS[name].scaled(0.001), peers={})
    monkeypatch.setitem(benchmark.scenarios.SCENARIOS, "tiny", scenario)
    (row,) = benchmark.runner.measure("tiny", {}, repeats=1)
    assert row.get("value", row.get("cpu")) > 0.0


def test_every_accelerator_has_its_section(benchmark, tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- accelerators -->\n\nNone has been measured.\n\n<!-- end -->\nafter\n")
    for device, table in (("TPU v5", "| 1 |"), ("NVIDIA H100", "| 2 |"), ("TPU v5", "| 3 |")):
        monkeypatch.setattr(benchmark.report, "describe_machine", lambda device=device: device)
        benchmark.report.write_section(page, table)
    before, nvidia, tpu = page.read_text().split("### ")
    assert before == "before\n<!-- accelerators -->\n\n"
    assert nvidia.startswith("NVIDIA H100\n\n")
    assert nvidia.endswith("\n\n| 2 |\n\n")
    assert "jax 0." in tpu
    assert tpu.endswith("\n\n| 3 |\n\n<!-- end -->\nafter\n")


def test_the_scripts_of_every_scenario_exist(benchmark):
    for name, scenario in benchmark.scenarios.SCENARIOS.items():
        ours, *theirs = benchmark.runner.commands(name, dict.fromkeys(scenario.peers, Path("python")), "").values()
        for command in (ours, *theirs):
            assert Path(command[1]).is_file(), command
        assert sum(word.startswith("arch.num_devices=") for word in ours) == 1  # a peer has one device


def test_a_count_that_has_risen_is_named(benchmark):
    recorded = {"h200": {"sac": {"stoix_like": {"rest": 100, "launches": 200}, "rejax": {"rest": 1}}}}
    ours = {"rest": 105, "launches": 211, "rollout": 3, "epoch": 0}
    found = {"h200": {"sac": {"stoix_like": ours}, "new": {"stoix_like": {"rest": 9}}}}
    assert benchmark.kernels.find_rises(recorded, recorded) == []
    # It had no loop over the steps of a rollout.
    assert benchmark.kernels.find_rises(found, recorded) == [
        "h200, sac: launches per update: 211, was 200",
        "h200, sac: step of the rollout: 3, was 0",
    ]


def test_the_recorded_counts_are_those_of_todays_scenarios(benchmark):
    recorded = json.loads(benchmark.kernels.RECORD.read_text())
    for target in benchmark.kernels.TARGETS:
        for name, scenario in benchmark.scenarios.KERNEL_SCENARIOS.items():
            arms = benchmark.kernels.arms_for(find_target(target))
            assert len(arms) == (4 if target == "h200" else 1)
            for arm in arms:
                more = benchmark.scenarios.KERNEL_ARMS[arm]
                assert recorded[target][name][arm]["settings"] == [*scenario.overrides, *more], (target, name, arm)


def test_speeds_of_the_page_are_those_of_a_default_run_on_a_cpu(benchmark):
    page = (ROOT / "docs/benchmarks.md").read_text()
    table = page[page.index("<!-- bench -->") : page.index("<!-- end -->")]
    default = {name for name, scenario in benchmark.scenarios.SCENARIOS.items() if scenario.on_cpu}
    assert {line.split(" ")[1] for line in table.splitlines() if " stoix_like " in line} == default


def test_counts_of_another_compiler_are_not_compared(benchmark, monkeypatch, capsys, tmp_path):
    record = tmp_path / "kernels.json"
    record.write_text('{"jax": "0.1.0"}')
    monkeypatch.setattr(benchmark.kernels, "RECORD", record)
    monkeypatch.setattr(sys, "argv", ["kernels", "sac", "--check"])
    monkeypatch.setattr(benchmark.kernels, "count_ours", lambda *_: {"launches": 1})
    with pytest.raises(SystemExit, match="2"):
        benchmark.kernels.main()
    assert "and jax 0.1.0 made the recorded counts" in capsys.readouterr().err


def test_counts_of_kernels_are_tabled_with_their_goals(benchmark, monkeypatch):
    def body(label, trips, kernels, *loops, scopes=None):
        costs = (Kernel("", kernels),)
        return benchmark.kernels.Body(label, trips, kernels, 1, 0, 1_000_000, 2_000_000_000, scopes or {}, costs, loops)

    ours = body("rollout", 8, 3), body("epoch", 2, 5, body("minibatch", 4, 7))
    # 10 kernels, 6 of them of the returns; 8 x 3; and 2 x (5 + 4 x 7).
    programs = {
        "ours": body("", 1, 1, body("", None, 10, *ours, scopes={"returns": 6})),
        # Loops have no names: steps, advantages, epochs and their minibatches.
        "theirs": body("", 1, 1, body("", 5, 20, body("", 8, 9), body("", 8, 2), body("", 2, 5, body("", 4, 7)))),
    }
    monkeypatch.setattr(benchmark.kernels, "read_program", lambda text, bandwidth: programs[text])
    compiled = {"temporary": 2_500_000, "steps": 100, "length": 8}
    create = {"num_envs": 4, "num_steps": 8, "num_minibatches": 4, "total_timesteps": 160}
    counts = {
        "stoix_like": benchmark.kernels.read({"hlo": "ours", **compiled}, find_target("h200")),
        "rejax": benchmark.kernels.read({"hlo": "theirs", **compiled}, find_target("h200"), create),
    }
    names = "rollout returns rest launches per_step collectives megabytes gigaflops"
    names += " cost_rollout cost_rest cost predicted cost_per_step"
    rest = {"temporary": 2.5, "epoch": 5, "minibatch": 7, "cost_epoch": 66}
    # Predicted: of 100 launches, and of 174, 1.5 each. Every body moves 1 MB, and multiplies by 2 GFLOP.
    ours, theirs = (
        (3, 6, 4, 100, 1000, 19, 19, 38, 24, 10, 100, 250, 2500),
        (9, 16, 20, 174, 1740, 27, 27, 54, 72, 20, 174, 435, 4350),
    )
    expected = [dict(zip(names.split(), values, strict=True)) | rest for values in (ours, theirs)]
    assert counts == {"stoix_like": expected[0], "rejax": {**expected[1], "cost_returns": 16}}
    goal = benchmark.scenarios.KernelGoal
    goals = goal("h200", "sac", "launches", 50), goal("h200", "sac", "launches", 0.65, ("sac", "rejax"))
    monkeypatch.setattr(benchmark.kernels, "KERNEL_GOALS", goals)
    lines = benchmark.kernels.table("h200", {"sac": counts}).splitlines()
    assert lines[0] == "### NVIDIA H200"
    assert lines[4:6] == [
        "| sac | stoix_like | 3 | 6 | 5 | 7 | 4 | 100 | 1,000 | 2.5 | 19 | 19 | 38 |",
        "|  | rejax | 9 | 16 | 5 | 7 | 20 | 174 | 1,740 | 2.5 | 27 | 27 | 54 |",
    ]
    assert lines[7:11] == [
        "| predicted, microseconds per update |  | rollout | advantages or returns | epochs | rest | all kernels"
        " | with launches | per 1,000 environment steps |",
        "|---" * 9 + "|",
        "| sac | stoix_like | 24 |  | 66 | 10 | 100 | 250 | 2,500 |",
        "|  | rejax | 72 | 16 | 66 | 20 | 174 | 435 | 4,350 |",
    ]
    assert lines[12:] == ["- sac, launches: ≤ 50: 100, missed", "- sac, launches: ≤ 0.65 x rejax: 0.575, met"]


@pytest.mark.slow
def test_a_single_file_is_compared_with_its_system(benchmark):
    row = benchmark.single_files.measure("q_learning/ff_pqn", steps=1024, repeats=2, num_seeds=2)
    assert len(row["seconds"]) == 2
    assert all(seconds > 0.0 for run in row["seconds"] for seconds in run)
    file, ours = row["returns"]
    assert file == pytest.approx(ours)
    assert len(set(file)) == 2


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("single_files", "ppo/ff_ppo --into page.md", "--into=page.md replaces the whole table: name no systems"),
        ("single_files", "--steps 1000 --into page.md", "--into=page.md with --steps=1000 would publish a trial"),
        ("compare", "ppo_tiny", "ppo_small"),
        ("compare", "ppo_small --repeats 0", "repeats"),
        ("compare", "sac --scale 2", "scale"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(benchmark, monkeypatch, capsys, script, arguments, message):
    monkeypatch.setattr(sys, "argv", [script, *arguments.split()])
    with pytest.raises(SystemExit, match="2"):
        getattr(benchmark, script).main()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--systems", "ppo/ff_ppo"], ["--kinds", "image"]])
def test_a_page_of_the_smoke_test_takes_the_whole_table(monkeypatch, capsys, arguments):
    for directory in ("", "soak", "smoke"):
        monkeypatch.syspath_prepend(ROOT / "scripts" / directory)
    smoke = runpy.run_path(str(ROOT / "scripts/smoke/smoke.py"))
    monkeypatch.setattr(sys, "argv", ["smoke", *arguments, "--into", "page.md"])
    with pytest.raises(SystemExit, match="2"):
        smoke["main"]()
    assert "--into=page.md replaces the whole table: leave --systems and --kinds out" in capsys.readouterr().err


def test_differences_of_the_parity_tests_enter_their_rows():
    """The largest of a row; a name without a row is refused."""
    table = runpy.run_path(str(ROOT / "scripts/parity/table.py"))
    output = "test.py parity: SAC: loss: 3.9e-07\n.parity: SAC: policy: parameters: 7.6e-06\nparity: a, b: x: 0.0e+00\n"
    rows = table["largest"](output)
    assert rows == {"SAC": 7.6e-06, "a, b": 0.0}
    page = "| part | with | what | difference | why |\n| SAC | x | y | | z |\n| a, b | x | y | 1e-3 | z |\n"
    filled = table["fill"](page, rows).splitlines()
    assert filled[1:] == ["| SAC | x | y | 8e-6 | z |", "| a, b | x | y | 0 | z |"]
    with pytest.raises(ValueError, match="no row for TD3"):
        table["fill"](page, {"TD3": 1e-6})


def test_a_difference_of_the_parity_tests_is_relative_to_its_layer_and_may_be_nan():
    """A bias is off by 0.5 in a layer whose largest entry is 4."""
    expected = {"one": {"kernel": np.array([4.0, 1.0]), "bias": np.zeros(1)}, "other": {"kernel": np.ones(1)}}
    got = {**expected, "one": {**expected["one"], "bias": np.full(1, 0.5)}}
    assert parity.difference(got, expected) == 0.125
    for diverged in (
        got | {"other": {"kernel": np.full(1, np.nan)}},
        got | {"one": {"kernel": np.full(2, np.nan), "bias": np.zeros(1)}},
    ):
        with pytest.raises(AssertionError, match="SAC differs by nan, more than 0.2"):
            parity.agree("SAC", diverged, expected, 0.2)


@pytest.fixture
def byte_check(monkeypatch):
    """The module of the byte check."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    yield importlib.import_module("byte_check")
    for name in ("byte_check", "tiny_runs", "tiny_data"):
        sys.modules.pop(name)


@pytest.mark.slow
def test_every_case_of_the_byte_check_can_be_planned(byte_check):
    configs = {name: config_of(*overrides) for name, overrides in byte_check.all_cases().items()}
    found = {name: make_plan(config, config.arch.num_devices) for name, config in configs.items()}
    assert len(found) > 150
    systems = {name.split()[0] for name in found}
    assert set(composition.group_choices("system")) - systems == {byte_check.LEFT_OUT}
    assert all(plan.num_updates > 1 for plan in found.values())


def test_the_byte_check_says_where_both_versions_fail(byte_check, capsys):
    refused = ["exit 2: stoix-like: system.epochs=0 is out of range"]
    assert byte_check.report("one", ["{}"], ["{}"])
    assert not byte_check.report("two", refused, refused)
    assert not byte_check.report("three", ["{}"], refused)
    assert not byte_check.report("four", ["1"], ["2"])
    lines = capsys.readouterr().out.splitlines()
    judged = [line for line in lines if line[:1] != " "]
    assert judged == ["equal     one", "BOTH FAIL two", "DIFFERENT three", "DIFFERENT four"]
    assert f"    both: {refused[0]}" in lines
