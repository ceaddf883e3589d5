import io
import os
import pathlib
import pty
import re
import subprocess
import sys

import pytest

from stoix_like.loggers.console import ConsoleConfig, ConsoleLogger, _seconds_left, _TimeLeft
from stoix_like.loggers.formats import format_number, format_rate, format_seconds
from support import console_runs
from support.console_runs import SUMMARY, log_run, record, run_info


@pytest.mark.parametrize(
    ("num_seeds", "seeds"), [(None, "seeds from 3"), (8, "seeds from 3"), (2, "2 seeds from 3"), (1, "all with seed 3")]
)
def test_seeds_that_settings_share_are_counted(num_seeds, seeds, tmp_path, capsys):
    info = run_info(tmp_path)._replace(num_members=8, num_seeds=num_seeds)
    ConsoleLogger(ConsoleConfig()).start(info)
    assert f"gymnax/CartPole-v1, 8 members, {seeds}\n" in capsys.readouterr().out


def test_a_file_gets_plain_lines(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)
    log_run(ConsoleLogger(ConsoleConfig()), tmp_path / "runs" / "1")
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines() == [
        "ppo/ff_ppo on gymnax/CartPole-v1, seed 3",
        "  budget          1,280 env steps, 10 updates, 2 evaluations",
        "  devices         1 × cpu",
        "  run directory   runs/1",
        "  note            arch.total_timesteps [1300] is rounded down to 1,280",
        "  rows            mean episode return ± standard deviation over episodes, mean episode length",
        "  compiling: from seconds to minutes, less if the programs are cached",
        "      0   0%   return     9.25 ± 12.10    length    9.25      - steps/s  0:01",
        "    640  50%   return        - ± -        length       -  1.00k steps/s  0:03  0:02 left",
        "  1,280 100%   return   475.30 ± 12.10    length  475.30  1.00k steps/s  0:04",
        "  evaluating the best parameters on 320 episodes",
        "finished: 1,280 env steps",
        "  last evaluation 475.30 mean episode return",
        "  absolute metric 480.00 mean episode return of the best parameters, on ten times as many episodes",
        "  time            67.0 s: training 56.8, startup 7.0, compilation 3.2",
        "  speed           312k env steps/s",
        "  written to      runs/1",
    ]


def test_lines_of_jobs_that_run_at_the_same_time_begin_with_their_number(tmp_path, capsys):
    logger = ConsoleLogger(ConsoleConfig())
    logger.start(run_info(tmp_path)._replace(job=3))
    logger.log(record(640, 9.25, 3.0))
    logger.finish(SUMMARY)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10
    assert all(line.startswith("[3] ") for line in lines)


def test_long_paths_stay_on_one_line(tmp_path, capsys):
    run_dir = tmp_path / ("long" * 50)
    ConsoleLogger(ConsoleConfig()).start(run_info(run_dir))
    assert str(run_dir) in capsys.readouterr().out


def test_missing_results_are_omitted_or_printed_as_dashes(tmp_path, capsys):
    logger = ConsoleLogger(ConsoleConfig())
    logger.start(run_info(tmp_path)._replace(notes=(), devices=""))
    logger.log({"env_steps": 640})
    logger.finish({"eval/episode_return_mean": None, "timing": {"total": 1.0}})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == [
        "finished: 640 env steps",
        "  time            1.0 s: ",
        "  speed           - env steps/s",
        f"  written to      {tmp_path}",
    ]
    assert len(lines) == 10


def test_a_member_that_diverged_is_the_worst_without_a_return(capsys, tmp_path):
    """Its return is that of a frozen policy."""
    statistics = {f"eval/episode_return_{name}": 2.0 for name in ("iqm", "ci_low", "ci_high")}
    members = {"eval/episode_return_mean": [1.0, 500.0, 3.0], "population/best_member": 2, "population/worst_member": 1}
    logger = ConsoleLogger(ConsoleConfig())
    logger.start(run_info(tmp_path)._replace(num_members=3))
    logger.log({"env_steps": 640, **statistics, **members, "population/failed": [1]})
    assert "best 3.00 (#2)  worst diverged (#1)" in capsys.readouterr().out


@pytest.mark.parametrize(("history", "phase"), [((), "compiling"), ((record(640, 9.25, 3.0),), "training")])
def test_the_bar_shows_compilation_before_the_first_record_and_starts_at_the_checkpoint(
    tmp_path, monkeypatch, history, phase
):
    monkeypatch.setattr(ConsoleLogger, "_print", lambda *parts: None)
    logger = ConsoleLogger(ConsoleConfig())
    logger._terminal = logger._console.is_interactive = logger._console._force_terminal = True
    logger._console.file = io.StringIO()
    logger.start(run_info(tmp_path)._replace(history=history, env_steps=640 if history else 0))
    (task,) = logger._bar.tasks
    assert task.completed == (640 if history else 0)
    assert _TimeLeft().render(task).plain.startswith(f"{phase} 0:0")
    logger.log(record(640 if history else 0, 9.25, 4.0) | {"steps_per_second": None})
    assert _TimeLeft().render(task).plain.startswith("training 0:0")
    logger.close()


def test_a_resumed_run_does_not_say_that_it_compiles(tmp_path, capsys):
    """Its header is printed after it has."""
    ConsoleLogger(ConsoleConfig()).start(run_info(tmp_path)._replace(history=(record(640, 9.25, 3.0),), env_steps=640))
    assert "compiling" not in capsys.readouterr().out


def program(run_dir, pause=0.0):
    """Return a program that calls `log_run` in a separate process."""
    here = pathlib.Path(console_runs.__file__)
    return (
        f"import sys, pathlib; sys.path.insert(0, {str(here.parent)!r}); import {here.stem} as here; "
        "from stoix_like.loggers import LoggerConfig, make_logger; "
        f"here.log_run(make_logger(LoggerConfig(), pathlib.Path({str(run_dir)!r})), "
        f"pathlib.Path({str(run_dir)!r}), {pause})"
    )


def run_on_terminal(run_dir, code=None, **variables):
    """Return the output of a program, by default `log_run`, on a terminal of 100 columns."""
    parent, child = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **variables}
    process = subprocess.Popen([sys.executable, "-c", code or program(run_dir, pause=0.6)], stdout=child, env=env)
    os.close(child)
    sent = b""
    try:
        while chunk := os.read(parent, 4096):
            sent += chunk
    except OSError:  # Linux signals the end of a pseudo-terminal by an error
        pass
    os.close(parent)
    assert process.wait(timeout=20) == 0
    return sent.decode()


@pytest.mark.slow
def test_a_terminal_shows_a_progress_bar(tmp_path):
    sent = run_on_terminal(tmp_path)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", sent)
    assert "compiling" in text
    assert "training" in text
    assert re.search(r"ppo/ff_ppo [━╸╺ ]+ 50% return -  1.00k steps/s 0:0[12] left", text)
    rows = [line for line in text.replace("\r", "\n").split("\n") if "length" in line and "%" in line]
    assert [row.split()[0] for row in rows] == ["0", "640", "1,280"]
    # Each row ends its line, and only lines of the bar are erased: they stand alone after it.
    assert all(f"{row}\r\n" in text for row in rows)
    # The bar hides the cursor and restores it before the summary.
    assert "\x1b[?25l" in sent
    assert sent.rindex("\x1b[?25h") < sent.index("finished")


LONG_RUN = """
import pathlib, time
from stoix_like.loggers import RunInfo
from stoix_like.loggers.console import ConsoleConfig, ConsoleLogger
logger = ConsoleLogger(ConsoleConfig())
name, env = "q_learning/ff_dqn_reg", "gymnax/MountainCarContinuous-v0"
logger.start(RunInfo(pathlib.Path("run"), name, env, 3, 976562, 10**9, 21, {}, ("a note " * 20,)))
record = {"wall_seconds": 9e3, "steps_per_second": 1.25e6, "eval/episode_return_mean": -1234.5}
lone = {**record, "eval/episode_return_std": -120.1, "eval/episode_length_mean": 1000.0}
iqm = {f"eval/episode_return_{end}": -2345.6 for end in ("iqm", "ci_low", "ci_high")}
members = {**record, **iqm, "population/best_member": 1, "population/worst_member": 0, "population/failed": []}
members["eval/episode_return_mean"] = [-1234.5, -1234.5]
for steps in (250_000_000, 10**9):
    for each in (lone, members):
        logger.log({"env_steps": steps, **each})
        time.sleep(0.6)
logger.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80])
def test_rows_and_bars_of_long_runs_fit_the_terminal(tmp_path, columns):
    sent = run_on_terminal(tmp_path, LONG_RUN, COLUMNS=str(columns))
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", sent))
    assert max(map(len, lines)) <= columns
    rows = [line for line in lines if re.match(r" .*%.*return", line) and "━" not in line]
    assert sum(" 100%" in row for row in rows) == 2
    assert all("steps/s" in row for row in rows)
    bars = [line for line in lines if "━" in line]
    assert any("25%" in bar and "left" in bar for bar in bars)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value", "codes"), [("NO_COLOR", "1", r"\[[0-9;]*3[0-7][;m]"), ("TERM", "dumb", "")])
def test_no_color_disables_colors_and_a_dumb_terminal_gets_plain_lines(tmp_path, name, value, codes):
    assert not re.search(rf"\x1b{codes}", run_on_terminal(tmp_path, **{name: value}))


@pytest.mark.parametrize(
    "variables", [{"PYTHONIOENCODING": "ascii"}, pytest.param({"PYTHONIOENCODING": "latin-1"}, marks=pytest.mark.slow)]
)
def test_characters_outside_the_encoding_raise_no_error(tmp_path, variables):
    env = {**os.environ, **variables}
    done = subprocess.run([sys.executable, "-c", program(tmp_path)], capture_output=True, env=env, check=True)
    assert done.stderr == b""
    assert b"written to" in done.stdout
    assert b"\x1b" not in done.stdout


@pytest.mark.slow
def test_a_broken_pipe_stops_only_the_console(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", program(tmp_path, pause=0.2)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=20) == 0
    assert errors.startswith("logger 'console' failed; the run continues without it: BrokenPipeError")
    assert errors.count("\n") == 1
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_grid_ends_with_a_table_of_its_points(tmp_path, capsys):
    names = ("mean", "iqm", "ci_low", "ci_high")
    rows = [[2.0, 1.0, 0.5, 3.0], [8.0, None, None, None], [4.0, 5.0, 4.5, 5.5]]
    points = [
        {"gamma": gamma, "seeds": [0, 1], "members": [2 * i, 2 * i + 1]}
        | {f"eval/episode_return_{name}": value for name, value in zip(names, row, strict=True)}
        for i, (gamma, row) in enumerate(zip((0.9, 0.95, 0.99), rows, strict=True))
    ]
    logger = ConsoleLogger(ConsoleConfig(progress_bar=False))
    logger.start(run_info(tmp_path))
    logger.finish(
        {
            **SUMMARY,
            **{"population/points": points, "population/best_point": points[2], "population/size": 6},
            **{
                f"absolute/episode_return_{name}": x
                for name, x in zip(names[1:], (-1205.0, -1300.0, -1105.0), strict=True)
            },
            **{"timing": {"training": 60.0, "startup": 7.0, "total": 67.0}, "profile": "profile/trace.gz"},
        }
    )
    printed = capsys.readouterr().out.splitlines()
    meaning = "IQM over members of the best parameters, on ten times as many episodes"
    assert f"  absolute metric -1,205 [-1,300, -1,105] {meaning}" in printed
    assert max(len(line) for line in printed if str(tmp_path) not in line) <= 120
    lines = [line.split() for line in printed]
    assert ["best", "point", "gamma=0.99"] in lines
    assert ["time", "67.0", "s:", "training", "60.0,", "startup", "7.0"] in lines
    assert any(line[:1] == ["trace"] and line[1].endswith("profile/trace.gz,") for line in lines)
    start = lines.index(["gamma", "mean", "IQM", "95", "%", "interval", "seeds"])
    assert [line[0] for line in lines[start + 1 : start + 4]] == ["0.99", "0.9", "0.95"]
    assert lines[start + 1][1:] == ["4.00", "-", "[4.50,", "5.50]", "0–1"]
    assert lines[start + 3][1:] == ["8.00", "-", "-", "0–1"]


def test_time_left_includes_evaluations():
    # 320 steps are left, and the last 320 steps took 2 s including the evaluation.
    assert _seconds_left(record(320, 1.0, 3.0), record(640, 1.0, 5.0), 960, num_members=2) == 2.0
    assert _seconds_left(record(0, 1.0, 1.0), record(640, 1.0, 30.0), 1280, num_members=1) == 29.0
    # The first record after a resume: 640 steps are left, at 1000 steps per second.
    assert _seconds_left({}, record(640, 1.0, 30.0), 1280, num_members=1) == 0.64
    # The speed is that of all members, the steps those of each.
    assert _seconds_left({}, record(640, 1.0, 30.0), 1280, num_members=4) == 2.56
    assert _seconds_left({}, record(0, 1.0, 1.0), 1280, num_members=1) is None


@pytest.mark.parametrize(
    ("format", "texts"),
    [
        (format_number, {None: "-", 0: "0.00", -200: "-200.00", 1234.5: "1,234", 0.00123: "0.0012", 3e8: "3.00e+08"}),
        (format_number, {(1.0,): "-", float("nan"): "nan", float("inf"): "inf"}),
        (format_rate, {None: "-", 0.0: "0.00", 85: "85.0", 999.6: "1.00k", 312_345.0: "312k", 999_600: "1.00M"}),
        (format_rate, {1.25e7: "12.5M"}),
        (format_seconds, {None: "-", 59.6: "1:00", 7: "0:07", 3723: "1:02:03"}),
    ],
)
def test_numbers_rates_and_durations_keep_three_digits_or_are_those_of_a_clock(format, texts):
    assert {value: format(value) for value in texts} == texts
