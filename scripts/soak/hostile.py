"""Load run directories made to do harm: nothing outside is touched or executed, and nothing hangs."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml
from tiny_runs import Bench, Outcome, complaints

SYSTEM = "ppo/ff_ppo"
CANARY = "keep me\n"


def attempt(bench: Bench, rng: random.Random, index: int) -> Outcome:
    """Plant one trap in a copy of a run, then evaluate or resume it."""
    name, plant = bench.in_turn(list(TRAPS.items()), index // 2)
    command = ("evaluate", "resume")[index % 2]
    run_dir = bench.unfinished(SYSTEM)
    outside = bench.scratch / "outside"
    (outside / "7").mkdir(parents=True)
    for canary in (outside / "canary", outside / "7" / "canary"):
        canary.write_text(CANARY)
    plant(run_dir, outside)
    bench.commands.append(f"# {name}: {plant.__doc__ or plant.__name__}")
    extra = ["--episodes", 2] if command == "evaluate" else []
    done = bench.cli(command, run_dir, *extra, RLIMIT_CPU=120)
    return Outcome(f"{command}, {name}", [*complaints(done), *harm(outside)], bench.commands)


def harm(outside: Path) -> list[str]:
    """Return what happened outside of the run directory."""
    expected = {Path("canary"), Path("7"), Path("7/canary")}
    present = {path.relative_to(outside) for path in outside.rglob("*")}
    problems = [f"HARM: {path} was deleted" for path in sorted(expected - present)]
    problems += [f"HARM: {path} was written" for path in sorted(present - expected)]
    files = [outside / path for path in sorted(expected & present) if path.name == "canary"]
    return problems + [f"HARM: {path.relative_to(outside)} was changed" for path in files if path.read_text() != CANARY]


def _link(name: str) -> Callable[[Path, Path], None]:
    """Return a trap that makes a file of the run a link to one outside."""

    def plant(run_dir: Path, outside: Path) -> None:
        path = run_dir / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(outside / "canary")

    plant.__doc__ = f"{name} is a link to a file outside"
    return plant


def _link_directory(name: str) -> Callable[[Path, Path], None]:
    def plant(run_dir: Path, outside: Path) -> None:
        shutil.rmtree(run_dir / name, ignore_errors=True)
        (run_dir / name).symlink_to(outside, target_is_directory=True)

    plant.__doc__ = f"{name} is a link to a directory outside"
    return plant


def _fifo(pattern: str) -> Callable[[Path, Path], None]:
    def plant(run_dir: Path, outside: Path) -> None:
        for path in sorted(run_dir.glob(pattern)) or [run_dir / pattern]:
            path.unlink(missing_ok=True)
            os.mkfifo(path)

    plant.__doc__ = f"{pattern} is a FIFO"
    return plant


def _text(text: str) -> Callable[[Path, Path], None]:
    def plant(run_dir: Path, outside: Path) -> None:
        with (run_dir / "config.yaml").open("a") as file:
            file.write(text.replace("OUTSIDE", str(outside)))

    plant.__doc__ = f"config.yaml ends with {text[:60]!r}"
    return plant


def _value(key: str, value: str) -> Callable[[Path, Path], None]:
    def plant(run_dir: Path, outside: Path) -> None:
        path = run_dir / "config.yaml"
        config = yaml.safe_load(path.read_text())
        node = config
        *parents, last = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value.replace("OUTSIDE", str(outside))
        path.write_text(yaml.safe_dump(config))
        # A module that may not be imported, in the working directory of the process.
        (run_dir.parent / "evil.py").write_text(f"open({str(outside / 'ran')!r}, 'w').close()\n")

    plant.__doc__ = f"config.yaml has {key}={value}"
    return plant


def _damaged_and_blocked(run_dir: Path, outside: Path) -> None:
    """the newest checkpoint is damaged, and checkpoints-damaged is a file"""
    newest = max((run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    (newest / "host_state" / "metadata").write_text("{}")
    (run_dir / "checkpoints-damaged").write_text("")


def _file_as_checkpoint(run_dir: Path, outside: Path) -> None:
    """a checkpoint newer than all others is an empty directory"""
    (run_dir / "checkpoints" / "999999").mkdir()


_LAUGHS = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 10))
_TORSO = "network.actor_network.pre_torso._target_"
TRAPS: dict[str, Callable[[Path, Path], None]] = {
    "link config.yaml.tmp": _link("config.yaml.tmp"),
    "link summary": _link("summary.json"),
    "link summary.json.tmp": _link("summary.json.tmp"),
    "link metrics": _link("metrics.jsonl"),
    "link metrics.jsonl.tmp": _link("metrics.jsonl.tmp"),
    "link lock": _link(".lock"),
    "link evaluation": _link("evaluations/best-seed0-2episodes.json.tmp"),
    "link evaluations": _link_directory("evaluations"),
    "link checkpoints": _link_directory("checkpoints"),
    "link damaged": _link_directory("checkpoints-damaged"),
    "FIFO config": _fifo("config.yaml"),
    "FIFO metrics": _fifo("metrics.jsonl"),
    "FIFO summary": _fifo("summary.json"),
    "FIFO lock": _fifo(".lock"),
    "YAML self-alias": _text("self: &self [*self]\n"),
    "YAML laughs": _text("l0: &l0 [lol, lol, lol]\n" + _LAUGHS),
    "YAML object": _text("x: !!python/object/apply:os.system ['touch OUTSIDE/ran']\n"),
    "YAML torn": _text("x: [1, {\n"),
    "YAML binary": _text("\0\1\2"),
    "target os.system": _value(_TORSO, "os.system"),
    "target module": _value(_TORSO, "evil.run"),
    "target hidden": _value("network.extra._target_", "subprocess.getoutput"),
    "system module": _value("system.module", "evil"),
    "interpolation": _value("arch.resume_from", "${oc.env:HOME}"),
    "wrong type": _value("arch", "nothing"),
    "huge budget": _value("arch.total_timesteps", "1e18"),
    "damaged and blocked": _damaged_and_blocked,
    "empty checkpoint": _file_as_checkpoint,
}
