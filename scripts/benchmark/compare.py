"""Measure the speed of stoix_like, alone or compared with other frameworks.

Each scenario and each of its peers compiles in its own process and starts with one run that does not count; then the
runs alternate. Steps per wall second are the median of the runs, steps per CPU second (of all threads) the best of
them: on a busy machine, the minimum of the CPU time is the most stable number.
"""

import argparse
import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

from report import COLUMNS, cells, markdown, query_device, write_into, write_section
from rich.console import Console
from rich.table import Table
from runner import measure
from scenarios import GROUPS, SCENARIOS


def find_peers(directory: Path | None) -> dict[str, Path]:
    """Return the Python interpreters of the peers below a directory, by name."""
    finished = directory.glob("*/.installed") if directory else ()
    found = {path.parent.name: path.parent / "bin/python" for path in finished}
    if directory and not found:
        raise SystemExit(f"no peer is installed in {directory}: make bench-peers")
    return found


def parse_arguments() -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "scenarios",
        nargs="*",
        metavar="scenario",
        help=f"{', '.join([*GROUPS, *SCENARIOS])} (default: all for this machine)",
    )
    parser.add_argument("--repeats", type=int, default=5, help="runs that count, per process (default: 5)")
    parser.add_argument("--peers", type=Path, help="directory with one virtual environment per peer: rejax, sbx")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--into", type=Path, help="write the table into this page of the documentation")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the environments, members and steps, for a trial: 0.004"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    parser.add_argument(
        "--arms", action="store_true", help="measure our other types, kernels and flags instead of other frameworks"
    )
    parser.add_argument("--profile", default="", help="write traces of jax's profiler to this directory")
    asked = parser.parse_args()
    unknown = [name for name in asked.scenarios if name not in {**SCENARIOS, **GROUPS}]
    if unknown:
        parser.error(f"unknown scenario {unknown[0]!r}: choose from {', '.join([*GROUPS, *SCENARIOS])}")
    if asked.repeats < 1:
        parser.error(f"--repeats={asked.repeats} must be at least 1")
    if asked.into and asked.scenarios not in ([], ["accelerator"]):
        parser.error(f"--into={asked.into} replaces the whole table: name no scenarios, or print them with --markdown")
    if asked.into and asked.arms:
        parser.error(f"--into={asked.into} has the table of the default: print --arms with --markdown")
    if asked.into and asked.scale < 1.0 and asked.scenarios != ["accelerator"]:
        parser.error(f"--into={asked.into} with --scale={asked.scale} would publish a trial: leave one of both out")
    if not 0.0 < asked.scale <= 1.0:
        parser.error(f"--scale={asked.scale} must be more than 0 and at most 1: use 0.004")
    return asked


def main() -> None:
    """Measure the requested scenarios and print a table."""
    asked = parse_arguments()
    # The suites themselves, brax's trainer and mctx are installed beside us.
    pythons = dict.fromkeys(("suite", "brax", "mctx"), Path(sys.executable)) | find_peers(asked.peers)
    if asked.scenarios == ["accelerator"]:
        pythons.pop("sbx", None)  # installed for CPUs
    on_cpu = query_device()["platform"] == "cpu"
    # Scenarios without an installed peer belong to the other table.
    default = [name for name, scenario in SCENARIOS.items() if (scenario.on_cpu or not on_cpu)]
    default = [name for name in default if not asked.peers or set(SCENARIOS[name].peers) & set(pythons)]
    rows: list[dict[str, Any]] = []
    for name in chain.from_iterable(GROUPS.get(name, (name,)) for name in asked.scenarios or default):
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += measure(name, pythons, asked.repeats, asked.profile, asked.scale, asked.arms)
        if asked.json:
            # Keeps the results so far if a later scenario fails.
            asked.json.write_text(json.dumps(rows, indent=2))
    if asked.scenarios == ["accelerator"]:
        table = markdown(rows, "make bench-accelerator")
        if asked.into and (on_cpu or asked.scale < 1.0):
            print(f"{asked.into} stays as it is: this is not a measurement on an accelerator", file=sys.stderr)
        elif asked.into:
            write_section(asked.into, table)
    else:
        target = "bench-peers" if asked.peers else "bench"
        options = f' ARGS="{" ".join(asked.scenarios)}"' if asked.scenarios else ""
        table = markdown(rows, f"make {target}{options}")
        if asked.into:
            write_into(asked.into, target, table)
    if asked.markdown:
        print(table)
    else:
        shown = Table(*COLUMNS)
        for row in rows:
            shown.add_row(*cells(row))
        Console(width=None if sys.stdout.isatty() else 160).print(shown)
