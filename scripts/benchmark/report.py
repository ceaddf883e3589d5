"""Tables of the documentation: rows, the machine, and the sections that they are written into."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from runner import OURS
from scenarios import SCENARIOS, Scenario

COLUMNS = ("scenario", "", "compile, s", "steps / wall s", "steps / CPU s", "return", "goal")


def cells(row: dict[str, Any]) -> list[str]:
    """Format a row of the table."""
    scenario, ours = SCENARIOS[row["scenario"]], row["who"] == OURS
    compiling = "" if row["compile"] is None else f"{row['compile']:.1f}"
    if "value" in row:
        speeds = [f"{row['value']:.3g} {scenario.unit}", ""]
    else:
        speeds = [f"{row['wall']:,.0f}", f"{row['cpu']:,.0f}"]
        if "ratio" in row:
            pairs = zip(speeds, row["ratio"].values(), strict=True)
            speeds = [f"{speed} (ours {ratio:.2f} x)" for speed, ratio in pairs]
    final = f"{row['return']:.0f}" if "return" in row else ""
    return [row["scenario"] if ours else "", row["who"], compiling, *speeds, final, _format_goal(scenario, row)]


def _format_goal(scenario: Scenario, row: dict[str, Any]) -> str:
    if "goal" not in row or not scenario.goal:
        return ""
    goal, reached = scenario.goal, row["goal"]
    sign = "≥" if goal.at_least else "≤"
    if goal.number == "value":
        return f"{sign} {goal.value:g} {scenario.unit}: {'met' if reached['met'] else 'missed'}"
    peer = next(iter(scenario.peers))
    per = {"wall": "wall", "cpu": "CPU"}[goal.number]
    return (
        f"{sign} {goal.value:g} x {peer} per {per} s: {reached['value']:.2f}, {'met' if reached['met'] else 'missed'}"
    )


def markdown(rows: list[dict[str, Any]], command: str) -> str:
    """Format the table for the documentation, below the command and the machine."""
    lines = [f"    {command}", "", f"{describe_machine()}, jax {rows[0]['jax']}.", ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(row))} |" for row in rows)])


def describe_machine() -> str:
    """Return the name of the processor or of the accelerator."""
    accelerator = query_device()
    if accelerator["platform"] != "cpu":
        return accelerator["kind"]
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(": ")[1] for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores"


def query_device() -> dict[str, str]:
    """Query jax's device in a separate process, because the first process takes the memory of an accelerator."""
    code = "import jax, json; d = jax.devices()[0]; print(json.dumps({'platform': d.platform, 'kind': d.device_kind}))"
    return json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def write_into(page: Path, name: str, table: str) -> None:
    """Replace the text of a page between `<!-- name -->` and `<!-- end -->`."""
    before, found, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, closed, after = rest.partition("<!-- end -->")
    if not found or not closed:
        raise SystemExit(f"{page} has no <!-- {name} --> … <!-- end -->")
    page.write_text(f"{before}{found}\n{table}\n\n{closed}{after}")


def write_section(page: Path, table: str) -> None:
    """Write the section of this accelerator into a page, between `<!-- accelerators -->` and its end.

    The section of an earlier measurement is replaced, and those of other accelerators stay.
    """
    heading = describe_machine()
    _, _, rest = page.read_text().partition("<!-- accelerators -->")
    sections = rest.partition("<!-- end -->")[0].split("### ")[1:]
    others = [section.strip() for section in sections if section.partition("\n")[0] != heading]
    today = f"{datetime.date.today():%d %B %Y}, {describe_versions()}."
    sections = [*others, f"{heading}\n\n{today}\n\n{table}"]
    write_into(page, "accelerators", "\n\n".join(f"### {section}" for section in sorted(sections)))


def describe_versions() -> str:
    """Return the versions of the packages that the results on an accelerator depend on."""
    packages = ("stoix_like", "jax", "jaxlib", "flax", "gymnax", "brax", "playground", "mujoco-mjx")
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(f"{name} {version}" for name, version in found.items())
