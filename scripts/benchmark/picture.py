"""Draw the comparison of docs/benchmarks.md: steps per wall second, relative to rejax.

python scripts/benchmark/picture.py
"""

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = {
    "ppo_small": "PPO, 4 envs\nCartPole",
    "ppo_wide": "PPO, 512 envs\nCartPole",
    "dqn": "DQN\nCartPole",
    "sac": "SAC\nPendulum",
    "population": "16 × PPO\nCartPole",
}
COLOURS = {"stoix_like": "#3949ab", "rejax": "#b0bec5", "sbx": "#eceff1"}


def read(page: str) -> tuple[str, dict[str, dict[str, float]]]:
    """Return the machine, and the steps per wall second of each framework by scenario."""
    block = page.partition("<!-- bench-peers -->")[2].partition("<!-- end -->")[0]
    machine = re.findall(r"^(\S.*, jax [\d.]+)\.$", block, re.MULTILINE)[0]
    speeds: dict[str, dict[str, float]] = {}
    scenario = ""
    for row in re.findall(r"^\|(.*)\|$", block, re.MULTILINE):
        name, who, _, wall, *_ = (cell.strip() for cell in row.split("|"))
        if who in COLOURS:
            scenario = name or scenario
            speeds.setdefault(scenario, {})[who] = float(wall.split()[0].replace(",", ""))
    return machine, speeds


def main() -> None:
    """Write docs/images/speed.png."""
    machine, speeds = read((DOCS / "benchmarks.md").read_text())
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    for index, (who, colour) in enumerate(COLOURS.items()):
        places = [place + 0.27 * (index - 1) for place, name in enumerate(NAMES) if who in speeds[name]]
        heights = [speeds[name][who] / speeds[name]["rejax"] for name in NAMES if who in speeds[name]]
        bars = axes.bar(places, heights, 0.25, color=colour, edgecolor="#546e7a", linewidth=0.5, label=who)
        axes.bar_label(bars, [f"{height:.2f}" for height in heights], fontsize=7)
    axes.set_xticks(range(len(NAMES)), NAMES.values(), fontsize=8)
    axes.set_ylabel("env steps per second,\nrejax = 1")
    axes.set_title(f"Training speed on {machine}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(DOCS / "images/speed.png", dpi=150)


if __name__ == "__main__":
    main()
