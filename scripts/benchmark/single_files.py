"""Compare single files with their systems: CPU time of training, and returns; the table of a guide.

    python scripts/benchmark/single_files.py --into docs/guides/single_files.md

CPU time is that of training without compilation and evaluations, in alternating runs with the same seeds; the ratio is
the median of the ratios of these runs. Returns are those of the last evaluation over seeds, trained in one program.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from report import write_into
from runner import SCRIPTS, Process

import stoix_like
from stoix_like.lab.analysis.statistics import aggregates
from stoix_like.lab.eject import SCRIPTS as SYSTEMS
from stoix_like.lab.eject import eject

# Environment steps that each system is trained for.
STEPS = dict.fromkeys(SYSTEMS, 100_000) | {"ppo/rec_ppo": 50_000, "sac/ff_sac": 5_000, "search/ff_az": 20_000}
ENVIRONMENTS = {"sac/ff_sac": "gymnax/pendulum"}
SETTINGS = ("logger=silent", "checkpoint.keep=0", "arch.absolute_metric=false", "arch.seed=0")


def main() -> None:
    """Measure, and print the table or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", help=f"of {', '.join(SYSTEMS)}; default: all")
    parser.add_argument("--repeats", type=int, default=3, help="alternating runs")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the returns")
    parser.add_argument("--steps", type=int, help="environment steps of every system, for a trial")
    parser.add_argument("--into", type=Path, help="page whose text between its markers is replaced")
    asked = parser.parse_args()
    if asked.into and asked.systems:
        parser.error(f"--into={asked.into} replaces the whole table: name no systems, or leave it out")
    if asked.into and asked.steps:
        parser.error(f"--into={asked.into} with --steps={asked.steps} would publish a trial: leave one of both out")
    rows = []
    for system in asked.systems or SYSTEMS:
        rows.append(measure(system, asked.steps or STEPS[system], asked.repeats, asked.seeds))
        print(rows[-1], file=sys.stderr, flush=True)
    if asked.into:
        write_into(asked.into, "single files", table(rows))
    else:
        print(table(rows))


def measure(system: str, steps: int, repeats: int, num_seeds: int) -> dict[str, Any]:
    """Train a system and its single file; return their CPU seconds in each run, and their returns by seed."""
    environment = ENVIRONMENTS.get(system, "gymnax/cartpole")
    overrides = [f"env={environment}", f"arch.total_timesteps={steps}", *SETTINGS]
    population = [f"arch.population.size={num_seeds}"]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"{system.rpartition('/')[2]}.py"
        eject(system, overrides, path)
        file = [sys.executable, str(SCRIPTS / "peer_file.py"), str(path)]
        ours = [sys.executable, str(SCRIPTS / "ours.py"), "train", "", f"system={system}", *overrides]
        seconds = alternate(Process(file), Process(ours), repeats)
        process = Process([*file, "returns", str(num_seeds)])
        returns = process.run()["returns"]
        process.close()
        result = stoix_like.train(system, [*overrides, *population], run_dir=Path(directory) / "run")
    evaluated = result.history[-1]["eval/episode_return_mean"]
    names = {"system": system, "environment": environment, "steps": steps}
    return names | {"seconds": seconds, "returns": (returns, np.asarray(evaluated).tolist())}


def alternate(file: Process, ours: Process, repeats: int) -> list[tuple[float, float]]:
    """Return the CPU seconds of a file and of its system in each run; a first run of both is not counted."""
    runs = [(file.run()["cpu"], ours.run()["cpu"]) for _ in range(repeats + 1)]
    for process in (file, ours):
        process.close()
    return runs[1:]


def table(rows: list[dict[str, Any]]) -> str:
    """Return a markdown table with one row for each file."""
    lines = [
        "| file | trained for | CPU seconds, file | system | ratio | return, file | system |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        file, ours = (statistics.median(times) for times in zip(*row["seconds"], strict=True))
        ratio = statistics.median(one / other for one, other in row["seconds"])
        name, environment = (row[key].rpartition("/")[2] for key in ("system", "environment"))
        cells = [
            f"`{name}.py`",
            f"{row['steps']:,} steps of {environment}",
            f"{file:.2f}",
            f"{ours:.2f}",
            f"{ratio:.2f}",
        ]
        lines.append(f"| {' | '.join([*cells, *map(interval, row['returns'])])} |")
    return "\n".join(lines)


def interval(returns: list[float]) -> str:
    """Return the interquartile mean of returns, and its 95 % bootstrap interval."""
    iqm = aggregates(np.asarray(returns)[:, None], target=0.0)["iqm"]
    return f"{iqm.estimate:,.1f} [{iqm.low:,.1f}, {iqm.high:,.1f}]"


if __name__ == "__main__":
    main()
