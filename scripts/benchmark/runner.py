"""Alternating runs of the processes of a scenario."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scenarios import ARMS, SCENARIOS, Arm, Scenario

SCRIPTS = Path(__file__).resolve().parent
OURS = "stoix_like"


class Process:
    """A benchmark process, which measures one run per request.

    Args:
        command: program and arguments.
        memory: share of the memory of an accelerator that the process takes.
        environment: variables beside those of this process.
    """

    def __init__(self, command: list[str], memory: float = 0.75, environment: dict[str, str] | None = None) -> None:
        self._command = command
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        pipe = subprocess.PIPE
        env = os.environ | {
            name: f"{os.environ.get(name, '')} {value}".strip() for name, value in (environment or {}).items()
        }
        # With both names, jax would leave the GPU alone.
        if not {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & env.keys():
            env["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{memory:.2f}"
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, env=env)
        self.ready = self._read()

    def run(self) -> dict[str, Any]:
        """Measure once."""
        assert self._process.stdin
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Close the input of the process, which ends it."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        for line in self._process.stdout:
            # Libraries print as well.
            if line.startswith("{"):
                return json.loads(line)
        self._errors.seek(0)
        reason = self._errors.read()[-3000:]
        self.close()
        raise SystemExit(f"{' '.join(self._command)}\n{reason}")


def commands(
    name: str, pythons: dict[str, Path], profile: str, scale: float = 1.0, arms: bool = False
) -> dict[str, list[str]]:
    """Return the commands of a scenario: ours, and those of its installed peers or of our other arms."""
    scenario = SCENARIOS[name] if scale == 1.0 else SCENARIOS[name].scaled(scale)
    directory = str(Path(profile) / name) if profile else ""
    # One device, as the peers have, unless the scenario says otherwise.
    spread = any(override.startswith("arch.num_devices=") for override in scenario.overrides)
    overrides = scenario.overrides if spread else (*scenario.overrides, "arch.num_devices=1")
    ours = [sys.executable, str(SCRIPTS / "ours.py"), scenario.measure, directory, *overrides]
    if arms:
        return {who: [*ours, *arm.overrides] for who, arm in ARMS.items()}
    theirs = {
        peer: [str(pythons[peer]), str(SCRIPTS / f"peer_{peer}.py"), json.dumps(settings)]
        for peer, settings in scenario.peers.items()
        if peer in pythons
    }
    return {OURS: ours, **theirs}


def measure(
    name: str, pythons: dict[str, Path], repeats: int, profile: str = "", scale: float = 1.0, arms: bool = False
) -> list[dict[str, Any]]:
    """Measure a scenario in alternating runs; return one row for each process."""
    asked, variables = commands(name, pythons, profile, scale, arms), ARMS if arms else {}
    # All of them are there at once.
    processes = {
        who: Process(command, 0.9 / len(asked), variables.get(who, Arm()).environment) for who, command in asked.items()
    }
    _check_equal({who: process.ready for who, process in processes.items()})
    for process in processes.values():
        process.run()
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in processes}
    for _ in range(repeats):
        for who, process in processes.items():
            runs[who].append(process.run())
    for process in processes.values():
        process.close()
    rows = [
        {"scenario": name, "who": who, **processes[who].ready, **summarise_runs(measured)}
        for who, measured in runs.items()
    ]
    for row in rows[1:]:
        row["ratio"] = {number: rows[0][number] / row[number] for number in ("wall", "cpu")}
    goal, value = SCENARIOS[name].goal, _goal_value(SCENARIOS[name], rows)
    if scale == 1.0 and goal and value is not None:
        rows[0]["goal"] = {"value": value, "met": value >= goal.value if goal.at_least else value <= goal.value}
    return rows


def _check_equal(ready: dict[str, dict[str, Any]]) -> None:
    """Refuse processes with another jax or another device than ours."""
    for who, key in itertools.product(ready, ("jax", "device")):
        if (found := ready[who].get(key)) != (ours := ready[OURS].get(key)):
            raise SystemExit(f"{who} has {key} {found}, ours {ours}: install the peer again, rm -r .bench/{who}")


def _goal_value(scenario: Scenario, rows: list[dict[str, Any]]) -> float | None:
    """Return the number that the goal bounds; None if its peer was not measured."""
    if not scenario.goal or scenario.goal.number == "value":
        return rows[0].get("value")
    ratios = [row["ratio"] for row in rows[1:] if row["who"] == next(iter(scenario.peers))]
    return ratios[0][scenario.goal.number] if ratios else None


def summarise_runs(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Reduce several runs to one row: steps per second, or the median of another measure."""
    if "value" in runs[0]:
        return {"value": statistics.median(run["value"] for run in runs)}
    row = {
        "wall": statistics.median(run["steps"] / run["wall"] for run in runs),
        "cpu": max(run["steps"] / run["cpu"] for run in runs),
    }
    returns = [run["return"] for run in runs if "return" in run]
    return row | ({"return": statistics.mean(returns)} if returns else {})
