"""Compare whole populations that differ in population-based training, in pairs with the same `arch.seed`.

Of each run: the best policy of the member that is best in the last evaluation, on the episodes of the absolute metric;
and the interquartile mean over its members in the last evaluation. Printed are means over runs and of paired
differences, with 95 % intervals of Student's t, and the p-values of the paired t-test.

    python scripts/compare_populations.py runs/fixed_* runs/pbt_*
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from scipy import stats

from stoix_like.lab.analysis import statistics
from stoix_like.storage.recorded_runs import BEST_RETURN, evolves, find_runs, read_run

Scores = Mapping[int, float]


def main() -> None:
    """Print the comparison for each environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run directories, or directories that contain them")
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for path in find_runs(parser.parse_args().runs):
        run = read_run(path)
        arch, summary = run.config["arch"], run.summary
        if not summary:
            print(f"{path} has not finished")
            continue
        best = summary.get("population/members", [{}])[run.last.get("population/best_member", 0)].get(BEST_RETURN)
        if best is None:
            print(f"{path} is left out: it has no population, or no absolute metric")
            continue
        name = "pbt" if evolves(run) else "fixed"
        scores = {"best member": best, "interquartile mean": summary["eval/episode_return_iqm"]}
        for score, value in scores.items():
            seeds = found[summary["environment"], score][name]
            if seeds.setdefault(arch["seed"], value) is not value:
                sys.exit(f"{path}: another run has seed {arch['seed']}, too: compare one setting of each kind")
    for (environment, score), by_name in found.items():
        print(f"{environment}, {score}")
        for name, values in by_name.items():
            print(f"  {name:20} {_describe(np.array(list(values.values())))}  {len(values)} runs")
        for one, other in itertools.combinations(by_name, 2):
            seeds = sorted(by_name[one].keys() & by_name[other].keys())
            x, y = (np.array([by_name[name][seed] for seed in seeds]) for name in (one, other))
            p = statistics.p_value("welch", x, y, paired=True)
            print(f"  {f'{one} - {other}':20} {_describe(x - y)}  {len(seeds)} pairs, p = {p:.3f}")


def _describe(values: np.ndarray) -> str:
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    return f"{values.mean():9.1f} [{low:.1f}, {high:.1f}]"


if __name__ == "__main__":
    main()
