"""Count the kernels of training programs on accelerators that are not in the machine, ours and those of rejax.

Beside the counts stand the bytes that they read and write, the operations of their products of matrices, and the time
that a model predicts: microseconds on a GPU, of our model, and cycles on a TPU, of its compiler's. None depends on the
machine, and those of rejax that are recorded are not made again unless its settings have changed. `--check` compares
ours with the recorded ones, and fails where one has risen by more than 5 %.
"""

import argparse
import importlib.metadata
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from report import write_into
from runner import OURS, SCRIPTS
from scenarios import KERNEL_ARMS, KERNEL_GOALS, KERNEL_SCENARIOS

from stoix_like.lab.aot.kernels import Body, read_program
from stoix_like.lab.aot.report import LAUNCH
from stoix_like.lab.aot.targets import Target, find_target

TARGETS = ("h200", "v5e-1", "v5e-4")
# rejax uses one device.
LONE = ("h200", "v5e-1")
RECORD = SCRIPTS / "kernels.json"
LARGEST_RISE = 1.05
LOOPS = ("rollout", "returns", "epoch")
# A zero among them means none; among the others, that there is no such loop.
ALWAYS = ("rest", "launches", "temporary", "collectives")
ROWS = {
    "rollout": "step of the rollout",
    "returns": "advantages or returns",
    "epoch": "epoch",
    "minibatch": "minibatch",
    "rest": "rest of an update",
    "launches": "launches per update",
    "per_step": "launches per 1,000 environment steps",
    "temporary": "temporary memory, MB",
    "collectives": "all-reduces per update",
    "megabytes": "MB read and written per update",
    "gigaflops": "GFLOP of products per update",
}
# Predicted cost of one update: of all steps of a rollout, all epochs, and so on.
COSTS = {
    "cost_rollout": "rollout",
    "cost_returns": "advantages or returns",
    "cost_epoch": "epochs",
    "cost_rest": "rest",
    "cost": "all kernels",
    "predicted": "with launches",
    "cost_per_step": "per 1,000 environment steps",
}


def main() -> None:
    """Count, print, and write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help=f"{', '.join(KERNEL_SCENARIOS)} (default: all)")
    parser.add_argument("--peers", type=Path, help="directory with the virtual environment of rejax")
    parser.add_argument("--into", type=Path, help="write the tables into this page of the documentation")
    parser.add_argument("--check", action="store_true", help="compare with the recorded counts; write nothing")
    asked = parser.parse_args()
    if unknown := set(asked.scenarios) - set(KERNEL_SCENARIOS):
        parser.error(f"unknown scenario {min(unknown)!r}: choose from {', '.join(KERNEL_SCENARIOS)}")
    recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    jax = importlib.metadata.version("jax")
    if recorded.get("jax") != jax:
        if asked.check or asked.scenarios:
            parser.error(f"jax {jax} is installed, and jax {recorded.get('jax')} made the recorded counts: count all")
        # Another compiler: rejax is counted again.
        recorded = {"jax": jax}
    found: dict[str, Any] = {}
    for target, name in itertools.product(TARGETS, asked.scenarios or KERNEL_SCENARIOS):
        print(f"{name} on {target} …", file=sys.stderr, flush=True)
        arms = arms_for(find_target(target))
        counts = found.setdefault(target, {})[name] = {arm: count_ours(name, find_target(target), arm) for arm in arms}
        if asked.check:
            continue
        before = recorded.setdefault(target, {}).get(name, {})
        before = {who: values for who, values in before.items() if who in arms or target in LONE}
        # As JSON has them.
        settings = json.loads(json.dumps(KERNEL_SCENARIOS[name].peers.get("rejax")))
        if asked.peers and target in LONE and settings and before.get("rejax", {}).get("settings") != settings:
            theirs = count_rejax(name, find_target(target), asked.peers / "rejax/bin/python")
            counts["rejax"] = theirs | {"settings": settings}
        merged = {**recorded[target], name: before | counts}
        recorded[target] = {one: merged[one] for one in KERNEL_SCENARIOS if one in merged}
        RECORD.write_text(json.dumps(recorded, indent=1) + "\n")
    if asked.check:
        rises = list(find_rises(found, recorded))
        print("\n".join(rises) or "no count has risen")
        sys.exit(bool(rises))
    tables = "\n\n".join(table(target, recorded[target]) for target in TARGETS)
    print(tables)
    if asked.into:
        write_into(asked.into, "kernels", f"jax {jax}.\n\n{tables}")


def arms_for(target: Target) -> list[str]:
    """Return our programs that are counted on a target."""
    return [OURS] if target.platform == "tpu" else [*KERNEL_ARMS]


def count_ours(name: str, target: Target, arm: str) -> dict[str, Any]:
    """Compile our training program in a process of its own, and return its counts."""
    overrides = [*KERNEL_SCENARIOS[name].overrides, *KERNEL_ARMS[arm]]
    counts = read(_run([sys.executable, str(SCRIPTS / "kernels_ours.py"), target.name, *overrides]), target)
    return counts | {"settings": overrides}


def count_rejax(name: str, target: Target, python: Path) -> dict[str, Any]:
    """Compile the same of rejax, for one device, and return its counts."""
    settings = KERNEL_SCENARIOS[name].peers["rejax"]
    topology = {"title": target.title, "platform": target.platform, "topology": target.topology}
    command = [str(python), str(SCRIPTS / "kernels_rejax.py"), json.dumps(settings), json.dumps(topology)]
    return read(_run(command), target, settings["create"])


def _run(command: list[str]) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("r") as out:
        done = subprocess.run([*command], env={**os.environ, "KERNELS_OUT": out.name}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
        return json.load(out)


def read(compiled: dict[str, Any], target: Target, rejax: dict[str, Any] | None = None) -> dict[str, float]:
    """Return the counts of a program, and the predicted cost of its kernels.

    Args:
        compiled: its HLO, temporary memory, length of rollouts and environment steps per update.
        target: what it is compiled for.
        rejax: the settings of rejax if it is rejax's, whose loops have no names.
    """
    program = read_program(compiled["hlo"], target.rates)
    update = find_update(program, rejax)
    loops = {body.label: body for body in update.all()}
    rollouts = [body for body in update.loops if body.label == "rollout"]
    inside = update.scopes.get("returns", 0)
    returns = [body for body in update.loops if body.label == "returns"]
    counts: dict[str, float] = {
        # Of one step, where a pass of the loop takes several.
        "rollout": sum((body.trips or 1) * body.launches for body in rollouts) / compiled["length"],
        "returns": inside + sum((body.trips or 1) * body.launches for body in returns),
        "epoch": loops["epoch"].kernels if "epoch" in loops else 0,
        "minibatch": loops["minibatch"].launches if "minibatch" in loops else 0,
        "rest": update.kernels - inside,
        "launches": update.launches,
        "per_step": round(1000 * update.launches / compiled["steps"], 3),
        "temporary": round(compiled["temporary"] / 1e6, 1),
        "collectives": collectives(update),
        "megabytes": round(update.bytes_accessed / 1e6, 1),
        "gigaflops": round(update.products / 1e9, 3),
    }
    cost = {
        label: sum((body.trips or 1) * body.cost for body in update.loops if body.label == label) for label in LOOPS
    }
    own = {"cost_rest": update.cost - sum(cost.values()), "cost": update.cost}
    predicted = {f"cost_{label}": value for label, value in cost.items()} | own
    if target.platform != "tpu":
        predicted["predicted"] = update.cost + LAUNCH * update.launches
    predicted["cost_per_step"] = 1000 * predicted.get("predicted", update.cost) / compiled["steps"]
    counts |= {name: round(value, 1) for name, value in predicted.items()}
    return {name: value for name, value in counts.items() if value or name in ALWAYS}


def find_update(program: Body, rejax: dict[str, Any] | None) -> Body:
    """Return the body of the loop over updates, with names for the loops of rejax."""
    if rejax is None:
        return next((loop for loop in program.loops if loop.trips is None), program)
    length = rejax.get("num_steps", 1)
    updates = math.ceil(rejax["total_timesteps"] / (rejax["num_envs"] * length))
    update = next(body for body in program.all() if body.trips == updates and body.launches > 10)
    names = iter(("rollout", "returns"))
    loops = []
    for loop in update.loops:
        if loop.loops and "num_minibatches" in rejax:
            inner = tuple(one._replace(label="minibatch") for one in loop.loops)
            loops.append(loop._replace(label="epoch", loops=inner))
        else:
            # PQN needs no return of the last step.
            over_time = length > 1 and loop.trips in (length, length - 1)
            loops.append(loop._replace(label=next(names, "") if over_time else loop.label))
    return update._replace(loops=tuple(loops))


def collectives(body: Body) -> int:
    """Return the collectives of one run of a body."""
    return body.collectives + sum((loop.trips or 1) * collectives(loop) for loop in body.loops)


def find_rises(found: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    """Return a line for each of our counts that has risen, in scenarios that are recorded."""
    return [
        f"{target}, {name}{'' if arm == OURS else f', {arm}'}: {(ROWS | COSTS)[row]}: {value:g}, was {before:g}"
        for target, scenarios in found.items()
        for name, counts in scenarios.items()
        for arm, values in counts.items()
        if (known := recorded.get(target, {}).get(name, {}).get(arm))
        for row, value in values.items()
        if row != "settings"
        # Loops that a program does not have are not recorded.
        and value > LARGEST_RISE * (before := known.get(row, 0))
    ]


def table(target: str, scenarios: dict[str, Any]) -> str:
    """Format the counts on a target."""
    described = find_target(target)
    lines = [f"### {described.title}{f', {described.num_devices} devices' if described.num_devices > 1 else ''}", ""]
    found = [(name, who, values) for name, counts in scenarios.items() for who, values in counts.items()]
    lines += _rows("scenario", ROWS, found)
    predicted = [row for row in found if "cost" in row[2]]
    unit = "cycles" if described.platform == "tpu" else "microseconds"
    shown = {column: title for column, title in COSTS.items() if any(column in values for *_, values in predicted)}
    lines += ["", *_rows(f"predicted, {unit} per update", shown, predicted)]
    goals = [line for goal in KERNEL_GOALS if goal.target == target if (line := goal.line(scenarios))]
    return "\n".join([*lines, *(["", *goals] if goals else [])])


def _rows(head: str, columns: dict[str, str], found: list[tuple[str, str, dict[str, float]]]) -> list[str]:
    """Return the lines of a table with a row for each program."""
    lines = [f"| {head} |  | {' | '.join(columns.values())} |", "|---" * (2 + len(columns)) + "|"]
    for name, who, values in found:
        cells = [_format(values.get(column)) for column in columns]
        lines.append(f"| {name if who == OURS else ''} | {who} | {' | '.join(cells)} |")
    return lines


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


if __name__ == "__main__":
    main()
