import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import filelock
import jax
import pytest
from omegaconf import OmegaConf

import stoix_like
from stoix_like.errors import ConfigError
from stoix_like.run.records import records
from stoix_like.storage.run_files import LAYOUT_NUMBER
from support import toys
from support.commands import COMMAND, variables
from support.composed import compose_config
from support.recorded import write_config
from support.set_ups import setup_of

ROOT = Path(__file__).parent.parent
specification = importlib.util.spec_from_file_location("results", ROOT / "scripts/results.py")
results = importlib.util.module_from_spec(specification)
specification.loader.exec_module(results)

TINY = [
    *toys.overrides(),
    "env=probe/policy",
    "arch.total_num_envs=4",
    "arch.total_timesteps=128",
    "arch.num_evaluation=1",
    "arch.num_eval_episodes=2",
    "logger=silent",
]
VERSIONS = {"python": "3.11.7", "jax": "0.10.2", "optax": None}


def resolved(overrides):
    return OmegaConf.to_container(compose_config(overrides), resolve=True)


def write_run(directory, overrides=(), finals=(1.0,), bests=None, **summary):
    """Write a run directory by hand: a single run, or a population if there are several returns."""
    config = resolved(overrides)
    seed, bests = config["arch"]["seed"], bests or finals
    numbers = [
        {"eval/episode_return_mean": final, "absolute/episode_return_mean": best}
        for final, best in zip(finals, bests, strict=True)
    ]
    members = [{"seed": seed + index, "failure": None, **number} for index, number in enumerate(numbers)]
    common = {
        "system": config["system"]["name"],
        "environment": f"gymnax/{config['env']['scenario']['name']}",
        "versions": VERSIONS,
        "devices": ["cpu:cpu"],
    }
    lists = {name: [number[name] for number in numbers] for name in numbers[0]}
    several = {**lists, "population/members": members, "population/varied": []} if len(finals) > 1 else numbers[0]
    directory.mkdir(parents=True)
    returns = list(finals) if len(finals) > 1 else finals[0]
    record = {"env_steps": 1000, "eval/episode_return_mean": returns}
    (directory / "metrics.jsonl").write_text(f"{json.dumps(record)}\n")
    write_config(directory, config)
    (directory / "summary.json").write_text(json.dumps(common | several | summary))
    (directory / ".hydra").mkdir()
    (directory / ".hydra/overrides.yaml").write_text(OmegaConf.to_yaml(list(overrides)))
    (directory / ".hydra/config.yaml").write_text(OmegaConf.to_yaml(config))
    return directory


def write_diverged(directory, *arguments):
    """Write a run whose training diverged after an evaluation."""
    run = write_run(directory, *arguments)
    (run / "summary.json").unlink()
    (run / "failure.txt").write_text("training diverged in update 7")


def cells(text):
    """Return the rows of the table as dictionaries."""
    head, _, *lines = (line for line in text.splitlines() if line.startswith("|"))
    titles = [title.strip() for title in head.strip("|").split("|")]
    return [dict(zip(titles, (cell.strip() for cell in line.strip("|").split("|")), strict=True)) for line in lines]


def rows(*directories, reference=None):
    members = (member for run in results.find_runs(directories) for member in results.read_counted(run))
    groups = results.group(members)
    return cells(results.table(groups, reference and results.read_references(reference)))


def test_returns_are_aggregated_to_an_interquartile_mean_with_an_interval(tmp_path):
    # Of 5 returns, the lowest and the highest are dropped: (2 + 3 + 4) / 3 = 3. Of 2, none is: (0 + 10) / 2 = 5.
    write_run(tmp_path / "five", finals=(4.0, 1.0, 2.0, 100.0, 3.0))
    # Resampling {0, 10} gives the means 0, 5 and 10 with probabilities 1/4, 1/2 and 1/4: the 95 % interval is [0, 10].
    write_run(
        tmp_path / "two", ["env=gymnax/acrobot", "arch.evaluation_greedy=false"], finals=(7.0, 7.0), bests=(0.0, 10.0)
    )
    two, five = rows(tmp_path / "two", tmp_path / "five")
    assert two["final policy"] == "7.0 [7.0, 7.0]"
    assert two["best policy"] == "5.0 [0.0, 10.0]"
    assert five["final policy"].startswith("3.0 [")
    assert (two["environment"], five["environment"]) == ("Acrobot-v1", "CartPole-v1")
    assert (two["seeds"], five["seeds"], five["env steps"]) == ("42, 43", "42–46", "500k")
    assert (two["episodes"], five["episodes"]) == ("32 sampled", "32 greedy")


def test_the_page_says_what_the_numbers_of_few_seeds_are():
    """A quarter of three returns, rounded down, is none: (0 + 3 + 9) / 3 = 4; of four, one at each end is dropped."""
    assert results.format_returns([9.0, 0.0, 3.0]).startswith("4.0 [")
    assert results.format_returns([9.0, 0.0, 3.0, 100.0]).startswith("6.0 [")
    page = (ROOT / "docs/results.md").read_text()
    for text in (results.EQUAL, results.LEGEND):
        assert "of fewer than four seeds" in text
        assert f"\n{text}\n" in page


def test_runs_that_differ_only_in_seed_and_logger_share_a_row(tmp_path):
    for seed, final in enumerate((10.0, 20.0, 60.0)):
        write_run(tmp_path / str(seed), [f"arch.seed={seed}", "logger=silent", "system.gamma=0.9"], [final])
    write_run(tmp_path / "other", ["arch.seed=0", "system.gamma=0.8"], [5.0])
    write_run(tmp_path / "more", ["arch.seed=7", "arch.population.size=2", "system.gamma=0.9"], [30.0, 80.0])
    joined, other = rows(tmp_path)
    # The lowest and the highest of 10, 20, 30, 60 and 80 are dropped: (20 + 30 + 60) / 3 = 36.7.
    assert joined["final policy"].startswith("36.7 [")
    assert joined["seeds"] == "0, 1, 2, 7, 8"
    assert joined["command"] == (
        "`stoix-like train -m system.gamma=0.9 'arch.seed=range(0,3)'`<br>"
        "`stoix-like train arch.population.size=2 system.gamma=0.9 arch.seed=7`"
    )
    assert (other["seeds"], other["final policy"]) == ("0", "5.0")


def test_a_run_that_was_resumed_for_longer_has_a_row_and_commands_of_its_own(tmp_path):
    write_run(tmp_path / "short", ["arch.total_timesteps=1e5", "arch.seed=0"])
    for seed in (0, 1):
        run = write_run(tmp_path / f"long{seed}", ["arch.total_timesteps=2e5", f"arch.seed={seed}"])
        (run / ".hydra/overrides.yaml").write_text(OmegaConf.to_yaml(["arch.total_timesteps=1e5"]))
        (run / ".hydra/config.yaml").write_text(OmegaConf.to_yaml(resolved(["arch.total_timesteps=1e5"])))
    short, long = rows(tmp_path / "short", tmp_path / "long0", tmp_path / "long1")
    assert (short["env steps"], short["command"]) == ("100k", "`stoix-like train arch.total_timesteps=1e5 arch.seed=0`")
    assert (long["env steps"], long["command"]) == (
        "200k",
        "`stoix-like train -m arch.total_timesteps=1e5 arch.seed=0,1; stoix-like resume RUN"
        " arch.total_timesteps=200000.0`",
    )


def test_members_with_different_hyperparameters_have_separate_rows(tmp_path):
    given = "arch.population.hyperparams={clip_eps: [0.1, 0.3]}"
    members = [
        {"seed": 42 + i, "clip_eps": eps, "failure": failure}
        for i, (eps, failure) in enumerate([(0.1, None), (0.1, "NaN"), (0.3, None), (0.1, None)])
    ]
    changes = {"population/members": members, "population/varied": ["clip_eps"], "absolute/episode_return_mean": None}
    # Of the member that diverged, 3 is the return of a frozen policy: it counts as the lowest, (1 + 1 + 2) / 3.
    write_run(tmp_path / "varied", [given], [1.0, 3.0, 5.0, 2.0], **changes)
    write_run(tmp_path / "single", ["system.clip_eps=0.3", "arch.seed=1"], [6.0])
    low, high = rows(tmp_path / "varied", tmp_path / "single")
    assert low["system"] == "`ppo/ff_ppo` `clip_eps=0.1`"
    assert (low["final policy"], low["best policy"], low["seeds"]) == ("1.3 [1.0, 2.0]", "", "42, 43, 45 (1 diverged)")
    assert (high["seeds"], high["final policy"]) == ("1, 44", "5.5 [5.0, 6.0]")
    assert shlex.split(low["command"].strip("`"))[2:] == [given, "arch.seed=42"]
    other = low | {"system": high["system"]}  # of the same grid, and so of the same command
    assert results.merge([low, other], [low, other]) == [low, other]


def test_a_run_that_diverged_counts_as_the_lowest_of_its_row(tmp_path, capsys):
    for seed, final in ((1, 2.0), (2, 3.0)):
        write_run(tmp_path / f"{seed}", [f"arch.seed={seed}"], [final])
    write_diverged(tmp_path / "0", ["arch.seed=0"], [9.0])
    results.main([str(tmp_path)])
    (row,) = cells(capsys.readouterr().out)
    # (2 + 2 + 3) / 3; there is no best policy of all.
    assert (row["system"], row["final policy"], row["best policy"]) == ("`ppo/ff_ppo`", "2.3 [2.0, 3.0]", "")
    assert row["seeds"] == "0–2 (1 diverged)"
    with pytest.raises(ConfigError, match="0 has no return: training diverged; leave it out"):
        results.read_members(tmp_path / "0")


@pytest.mark.slow
def test_a_sweep_and_a_population_are_summarised_in_a_page(tmp_path, capsys):
    # In a separate process, because Hydra reconfigures logging.
    command = [COMMAND, "train", "-m", *TINY, "arch.seed=0,1"]
    environment = variables()
    subprocess.run([*command, f"hydra.sweep.dir={tmp_path}/sweep"], env=environment, check=True, capture_output=True)
    overrides = [*TINY, "arch.population.size=3", "arch.seed=2", "arch.num_devices=1"]
    command = [command[0], "train", *overrides, f"hydra.run.dir={tmp_path}/population"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    population = stoix_like.resume(tmp_path / "population")
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n\n{results.BEGIN}\nold\n{results.END}\n\nafter\n")
    reference = tmp_path / "references.yaml"
    published = "{return: -80.5, env_steps: 2.0e+4, source: me}, {return: 7, env_steps: null, source: you}"
    sources = "{me: {title: Mine, url: m.org, what: tuned}, you: {title: Yours, url: y.org, what: not tuned}}"
    reference.write_text(f"sources: {sources}\nreturns: {{toy: {{probe/policy: [{published}]}}}}\n")
    arguments = [f"{tmp_path}/sweep", f"{tmp_path}/population", "--reference", str(reference)]
    capsys.readouterr()
    results.main(arguments)
    text = capsys.readouterr().out
    results.main([*arguments, "--into", str(page)])
    assert page.read_text() == f"# Before\n\n{results.BEGIN}\n{text}{results.END}\n\nafter\n"

    swept, members = cells(text)
    statistics = records.aggregate([member["eval/episode_return_mean"] for member in population.members], [0, 0, 0])
    assert members["final policy"] == "{iqm:.2f} [{ci_low:.2f}, {ci_high:.2f}]".format(**statistics)
    assert members["final policy"].split()[0] == f"{population.eval_return:.2f}"
    assert (swept["seeds"], members["seeds"], swept["env steps"]) == ("0, 1", "2–4", "128")
    assert swept["published"] == "-80.5 (me, 20k)<br>7 (you, ?)"
    assert "- you: [Yours](y.org), not tuned" in text.splitlines()
    assert f"jax {jax.__version__}" in text
    assert "on cpu:cpu" in text
    for row, run in ((swept, tmp_path / "sweep/1-seed1"), (members, tmp_path / "population")):
        given = [override for override in shlex.split(row["command"].strip("`"))[2:] if override != "-m"]
        config = OmegaConf.to_container(OmegaConf.load(run / "config.yaml"))
        assert config.pop("layout") == LAYOUT_NUMBER
        # The command reproduces the configuration, apart from the logger and the seeds of the sweep.
        again = resolved([*given[:-1], f"arch.seed={config['arch']['seed']}", "logger=silent"])
        # How the processes of a run are started is not recorded.
        for one in (again, config):
            one["arch"].pop("distributed", None)
        assert again == config


def test_a_page_keeps_the_rows_of_other_commands_and_begins_with_equal_budgets(tmp_path):
    """Of three published returns at half a million steps, 440 is the mean, 480 ends the interval, 500 is above it."""
    page, reference = tmp_path / "page.md", tmp_path / "references.yaml"
    page.write_text(f"{results.BEGIN}\n{results.END}\n")
    entries = [
        "{return: 440, env_steps: 5.0e+5, source: me}",
        "{return: 480, env_steps: 5.0e+5, source: me, note: of two seeds.}",
        "{return: 500, env_steps: 5.0e+5, source: me, note: its seeds are the best of ten.}",
        "{return: 300, env_steps: 1.0e+5, source: me}",
    ]
    first = "gymnax/Acrobot-v1: [{return: -95, env_steps: 5.0e+5, source: me}]"
    returns = f"{{ppo/ff_ppo: {{{first}, gymnax/CartPole-v1: [{', '.join(entries)}]}}}}"
    reference.write_text(f"sources: {{me: {{title: Mine, url: m.org, what: tuned}}}}\nreturns: {returns}\n")

    def write(name, *arguments, **summary):
        run = write_run(tmp_path / name, *arguments, **summary)
        results.main([str(run), "--reference", str(reference), "--into", str(page)])
        return page.read_text()

    # An earlier setting with the same budget, which only the second table has.
    write("tried", ["system=ppo/ff_ppo", "env=gymnax/cartpole", "system.gamma=0.9"], (100.0, 120.0))
    write("ppo", ["system=ppo/ff_ppo", "env=gymnax/cartpole"], (400.0, 480.0))
    write("dqn", ["system=q_learning/ff_dqn"], versions={**VERSIONS, "jax": "0.11.2"})
    # The command of the first in another order, and another one of the same system.
    write("again", ["env=gymnax/cartpole", "system=ppo/ff_ppo"], (400.0, 480.0), (450.0, 460.0))
    # A reference that is newer than the page also enters the rows that stay.
    later = reference.read_text().replace("source: me}]", "source: me}, {return: 7, env_steps: null, source: me}]")
    reference.write_text(later)
    text = write("acrobot", ["env=gymnax/acrobot"], (-90.0,))
    published = [row["published"] for row in results.read_table(text)]
    cart_pole = "440 (me, 500k)<br>480 (me, 500k)<br>500 (me, 500k)<br>300 (me, 100k)<br>7 (me, ?)"
    assert published[0] == published[1] == cart_pole
    assert published[2:] == ["-95 (me, 500k)<br>7 (me, ?)", ""]
    assert results.read_table(text)[1]["best policy"] == "455.0 [450.0, 460.0]"
    systems = [(row["system"], row["environment"]) for row in results.read_table(text)]
    assert systems == [
        ("`ppo/ff_ppo`", "CartPole-v1"),
        ("`ppo/ff_ppo`", "CartPole-v1"),
        ("`ppo/ff_ppo`", "Acrobot-v1"),
        ("`q_learning/ff_dqn`", "CartPole-v1"),
    ]
    measured = [line.split(": ")[-1] for line in text.splitlines() if line.startswith("Measured with")]
    assert measured == [
        "q_learning/ff_dqn on CartPole-v1 at 500k.",
        "ppo/ff_ppo on CartPole-v1 at 500k, ppo/ff_ppo on Acrobot-v1 at 500k.",
    ]
    equal = results.read_table(text[: text.index("All rows:")])
    assert [(row["published"], row[""]) for row in equal] == [  # in the order of the references
        ("-95 (me)", "reached"),
        ("440 (me)", "reached"),
        ("480 (me)", "within the interval: of two seeds."),
        ("500 (me)", "**lower**: its seeds are the best of ten."),
    ]
    with pytest.raises(SystemExit, match="published.*: give --reference"):
        results.main([str(tmp_path / "ppo"), "--into", str(page)])
    assert page.read_text() == text


def test_returns_up_to_one_are_in_hundredths():
    assert results.format_returns([-0.915]) == "-0.92"
    assert results.format_returns([0.5, 0.5]) == "0.50 [0.50, 0.50]"
    assert results.format_returns([0.5, 1.25]) == "0.9 [0.5, 1.2]"


def test_the_published_returns_are_readable_and_have_sources():
    references = results.read_references(ROOT / "docs/reference_returns.yaml")
    assert {entry.source for entries in references.returns.values() for entry in entries} <= set(references.sources)
    assert results.Published(-110.4, 1e6, "sb3-zoo") in references.returns["ppo/ff_ppo", "gymnax/MountainCar-v0"]


def test_the_page_has_the_published_returns_as_they_are(tmp_path):
    text, page = (ROOT / "docs/results.md").read_text(), tmp_path / "results.md"
    page.write_text(text)
    results.main(["--reference", str(ROOT / "docs/reference_returns.yaml"), "--into", str(page)])
    assert page.read_text() == text


@pytest.mark.parametrize("given", [[], ["--into", "page.md"], ["--reference", "returns.yaml"]])
def test_without_runs_a_page_and_references_are_needed(given, capsys):
    with pytest.raises(SystemExit) as exit_code:
        results.main(given)
    assert exit_code.value.code == 2
    assert "give --reference and --into" in capsys.readouterr().err


def test_missing_unfinished_and_damaged_runs_are_refused(tmp_path, capsys):
    good = write_run(tmp_path / "good", finals=(1.0,))
    write_run(tmp_path / "unfinished/run")
    (tmp_path / "unfinished/run/summary.json").unlink()
    write_run(tmp_path / "torn/run")
    (tmp_path / "torn/run/summary.json").write_text("{")
    write_run(tmp_path / "nan/run", finals=(None,))
    write_diverged(tmp_path / "lost/run")
    lost = [{"seed": seed, "failure": "NaN"} for seed in (42, 43)]
    write_run(tmp_path / "all/run", (), (1.0, 2.0), **{"population/members": lost})
    write_run(tmp_path / "twice/run")
    (tmp_path / "empty").mkdir()
    for paths, message in (
        (["nowhere"], "nowhere is not a directory"),
        (["empty"], "empty holds no run"),
        (["good", "unfinished"], "unfinished/run is not finished"),
        (["torn"], "torn/run is not finished"),
        (["nan"], "the return of seed 42 is not finite"),
        (["lost"], "lost/run has no return: every seed diverged"),
        (["all"], "all/run has no return: every seed diverged"),
        (["good", "twice"], "seed 42 occurs twice"),
    ):
        with pytest.raises(SystemExit, match=f"^results.py: .*{message}"):
            results.main([str(tmp_path / path) for path in paths])
    # A directory that is named twice is read once.
    results.main([str(good), str(tmp_path / "good/../good")])
    assert "| 42 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("returns: {}", "must hold sources"),
        ("sources: {}\nreturns: {ppo/ff_ppo: {gymnax/CartPole-v1: [{return: 500}]}}", "KeyError: 'env_steps'"),
        (
            "sources: {}\nreturns: {ppo/ff_ppo: {gymnax/CartPole-v1: [{return: 5, env_steps: null, source: me}]}}",
            "no source is called me",
        ),
        ("a: [", "cannot be read"),
    ],
)
def test_invalid_references_are_refused(text, message, tmp_path):
    (tmp_path / "references.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        results.read_references(tmp_path / "references.yaml")


@pytest.mark.parametrize(
    "text", ["", results.BEGIN, f"{results.END}\n{results.BEGIN}\n", f"{results.BEGIN}\n" * 2 + results.END]
)
def test_a_page_without_both_markers_is_not_changed(text, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ConfigError, match="once each"):
        results.replace_block(page, "new")
    assert page.read_text() == text


@pytest.fixture
def defaults(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("defaults")


@pytest.mark.slow
def test_the_table_of_defaults_reads_finished_runs_and_says_which_seeds_learned(tmp_path, defaults):
    for system, finals in (("search/ff_az", (500.0, 450.0)), ("sac/ff_sac", (-140.0, -1200.0))):
        write_run(tmp_path / system, [f"system={system}"], finals, env_steps=1000)
    systems = ["search/ff_az", "sac/ff_sac", "ppo/ff_ppo", "disco_rl/ff_disco103", "vpg/ff_a2c"]
    written = {"vpg/ff_a2c": ["cartpole", "100k", "500.0", "yes"], "search/ff_az": ["cartpole", "1k", "9.0", "no"]}
    table = defaults.table(tmp_path, systems, written).splitlines()
    assert table[2] == "| `search/ff_az` | cartpole | 1k | 500.0, 450.0 | yes |"
    assert table[3] == "| `sac/ff_sac` | pendulum | 1k | -140.0, -1200.0 | 1 of 2 |"
    assert table[4:] == ["| `vpg/ff_a2c` | cartpole | 100k | 500.0 | yes |"]
    (tmp_path / "page.md").write_text("\n".join(table))
    assert defaults.table(tmp_path / "none", systems, defaults.written_rows(tmp_path / "page.md")).splitlines() == table


def test_the_table_of_defaults_shows_what_diverged_and_no_earlier_row(tmp_path, defaults):
    members = [{"seed": seed, "failure": failure} for seed, failure in ((42, None), (43, "NaN"))]
    system, lost = "search/ff_az", "ppo/ff_ppo"
    write_run(
        tmp_path / system, [f"system={system}"], (500.0, 500.0), env_steps=1000, **{"population/members": members}
    )
    write_diverged(tmp_path / lost, [f"system={lost}"], (400.0, 500.0))
    written = {name: ["cartpole", "100k", "500.0, 500.0, 500.0", "yes"] for name in (system, lost)}
    assert defaults.table(tmp_path, [system, lost], written).splitlines()[2:] == [
        "| `search/ff_az` | cartpole | 1k | 500.0, diverged | 1 of 2 |",
        "| `ppo/ff_ppo` | cartpole | 100k | diverged | 0 of 3 |",
    ]
    assert [results.format_run(tmp_path / name) for name in (system, lost)] == ["–", "–"]


@pytest.mark.slow
def test_tables_resume_runs_with_checkpoints_and_repeat_others_that_are_unfinished(tmp_path, monkeypatch, defaults):
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command[3:]))
    system, run = "ppo/ff_ppo", tmp_path / "ppo/ff_ppo"
    new = [*defaults.command_of(system), f"hydra.run.dir={run}"]
    overrides = new[1:-1]
    write_run(run, overrides)
    defaults.train(tmp_path, system)
    assert commands == []
    # Killed after a checkpoint, while the first one was written, and before anything was.
    for name, command in (("100", ["resume", str(run)]), (".100.tmp", new), ("", new)):
        shutil.rmtree(run)
        write_run(run, overrides)
        (run / "summary.json").unlink()
        (run / "checkpoints" / name).mkdir(parents=True)
        defaults.train(tmp_path, system)
        assert commands.pop() == command
        assert run.exists() == (command != new)
        run.mkdir(exist_ok=True)
    with filelock.FileLock(write_run(tmp_path / "sac/ff_sac", defaults.command_of("sac/ff_sac")[1:]) / ".lock"):
        (tmp_path / "sac/ff_sac/summary.json").unlink()
        defaults.train(tmp_path, "sac/ff_sac")
    assert commands == []


def test_directories_of_other_runs_and_files_are_left_alone(tmp_path):
    run = write_run(tmp_path / "run", ["system.gamma=0.9"])
    with pytest.raises(SystemExit, match=r"run was trained by stoix-like train system\.gamma=0\.9: choose another"):
        results.train(run, ["train", "system.gamma=0.8"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("")
    with pytest.raises(SystemExit, match="other holds other files"):
        results.train(tmp_path / "other", ["train"])
    assert (tmp_path / "other/thesis.txt").exists()


@pytest.mark.slow
def test_the_defaults_of_every_system_are_measured_on_an_environment_that_fits(defaults):
    for system in defaults.SYSTEMS:
        train, *overrides = defaults.command_of(system)
        assert train == "train"
        if system != "disco_rl/ff_disco103":  # its weights are a download
            setup_of(*overrides)


def test_populations_are_compared_with_those_of_population_based_training_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    script = importlib.import_module("compare_populations")
    several = ["arch.population.size=2"]
    pbt = [*several, "arch.population.pbt.every_evals=1"]
    for name, overrides, gain in (("fixed", several, 0.0), ("pbt", pbt, 1.0)):
        for seed in (0, 2):
            bests = (5.0 + gain * (1 + seed) + seed, 90.0)
            summary = {"eval/episode_return_iqm": 3.0 + gain * (2 + seed) + seed}
            write_run(tmp_path / name / str(seed), [*overrides, f"arch.seed={seed}"], (4.0, 2.0), bests, **summary)
    write_run(tmp_path / "alone")
    monkeypatch.setattr(sys, "argv", ["compare_populations.py", str(tmp_path)])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert f"{tmp_path}/alone is left out: it has no population, or no absolute metric" in lines
    labels = [line.split()[0] for line in lines if line.startswith("  ") and line.endswith("runs")]
    assert labels == ["fixed", "pbt", "fixed", "pbt"]
    # Of the two pairs, pbt is better by 1 and 3 in its best member, and by 2 and 4 in its mean.
    assert [line.split()[3] for line in lines if "fixed - pbt" in line] == ["-2.0", "-3.0"]
