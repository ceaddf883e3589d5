"""Arrange the results by environment: a picture, and rows with their verdict and command; run by mkdocs."""

import collections
import html
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import mkdocs_gen_files

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/results.md"
sys.path.append(str(ROOT / "scripts"))
import results  # noqa: E402

VERDICTS = {"reached": "reached", "within": "within the interval", "lower": "**lower**"}
TITLES = ("published", "final policy", "best policy", "env steps", "seeds, episodes")
_KEY = ("system", "environment", "env steps")
_LABEL, _WIDTH, _ROW, _MARGIN = 250, 850, 18, 24  # pixels of a picture: labels, in all, a row, above and below
_IMAGE = re.compile(r"^!\[(.*)\]\(.*\)\n\n?", re.MULTILINE)


class Entry(NamedTuple):
    """A row of the table, and the published returns at its budget with their verdicts."""

    row: dict[str, str]
    compared: list[dict[str, str]]


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell: a mean and, of several seeds, its interval."""
    return [float(number) for number in re.findall(r"-?\d[\d.]*", cell)]


def picture(entries: Iterable[Entry]) -> str:
    """Draw the interval of each row, and the published returns at its budget as diamonds, as SVG."""
    bars = [
        (
            f"{entry.row['system'].replace('`', '')}, {entry.row['env steps']}",
            numbers(entry.row["final policy"]),
            [numbers(published["published"])[0] for published in entry.compared],
        )
        for entry in entries
    ]
    values = [value for _, bar, published in bars for value in (*bar, *published)]
    low, high = min(values), max(values)

    def x(value: float) -> float:
        return _LABEL + 10 + (_WIDTH - _LABEL - 30) * (value - low) / ((high - low) or 1.0)

    height = 2 * _MARGIN + _ROW * len(bars)
    shapes = [
        f'<text x="{x(value):.0f}" y="{height - 8}" text-anchor="middle">{value:g}</text>'
        f'<path d="M{x(value):.1f} {_MARGIN}V{height - _MARGIN}" stroke-opacity="0.3"/>'
        for value in dict.fromkeys((low, (low + high) / 2, high))
    ]
    for index, (label, bar, published) in enumerate(bars):
        y = _MARGIN + _ROW * (index + 0.5)
        shapes.append(f'<text x="{_LABEL}" y="{y + 4}" text-anchor="end">{html.escape(label)}</text>')
        shapes.append(f'<path class="ours" d="M{x(min(bar)):.1f} {y}H{x(max(bar)):.1f}"/>')
        shapes.append(f'<circle class="ours" cx="{x(bar[0]):.1f}" cy="{y}" r="3.5"/>')
        shapes += [f'<path class="theirs" d="M{x(value):.1f} {y - 6}l5 6l-5 6l-5 -6z"/>' for value in published]
    style = (
        "text{font:11px sans-serif;fill:#757575}path{stroke:#757575;fill:none}"
        ".ours{stroke:#4051b5;fill:#4051b5;stroke-width:3}.theirs{stroke:#e0701c;stroke-width:1.5}"
    )
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{"".join(shapes)}</svg>\n'


def key(row: Mapping[str, str]) -> tuple[str, ...]:
    """Return system, environment and budget of a row."""
    return tuple(row[title] for title in _KEY)


def verdict(compared: Mapping[str, str]) -> str:
    """Return the verdict, the published return and what there is to say of them."""
    word, _, note = compared[""].partition(": ")
    return f"{word} {compared['published']}{': ' * bool(note)}{note}"


def cells(entry: Entry, first: str = "system") -> dict[str, str]:
    """Return a row of the page."""
    row = entry.row
    fields = ("final policy", "best policy", "env steps")
    values = ("<br>".join(map(verdict, entry.compared)), *(row[name] for name in fields))
    return {first: row[first], **dict(zip(TITLES, (*values, f"{row['seeds']}, {row['episodes']}"), strict=True))}


def commands(entries: Iterable[Entry]) -> str:
    """Return the commands of rows, behind a click."""
    lines = [
        f"# {entry.row['system'].replace('`', '')}, {entry.row['env steps']}\n{wrapped(command)}"
        for entry in entries
        for command in re.findall(r"`(.+?)`", entry.row["command"])
    ]
    return '??? example "Commands"\n\n' + textwrap.indent("\n".join(["```sh", *lines, "```"]), " " * 4) + "\n"


def wrapped(command: str) -> str:
    """Break a long command between its arguments."""
    # Spaces within quotes do not separate arguments.
    joined = re.sub(r"'[^']*'", lambda quoted: quoted[0].replace(" ", "\0"), command)
    lines = textwrap.wrap(joined, 100, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines).replace("\0", " ")


def summary(equal: Iterable[Mapping[str, str]]) -> str:
    """Count the verdicts, and list what is lower."""
    counts = collections.Counter(row[""].partition(":")[0] for row in equal)
    counted = {name: counts[verdict] for name, verdict in VERDICTS.items()}
    lower = [
        {
            **{name: row[name] for name in ("environment", "system", "final policy", "published")},
            "why": row[""].partition(": ")[2],
        }
        for row in equal
        if row[""].startswith(VERDICTS["lower"])
    ]
    text = (
        f"Of {sum(counted.values())} comparisons with published returns at their budgets, **{counted['reached']} are"
        f" reached, {counted['within']} lie within the interval of our seeds, and {counted['lower']} are lower**:\n\n"
    )
    return text + "\n".join(results.format_table(lower)) + "\n\n"


def read_entries() -> tuple[list[Entry], list[dict[str, str]]]:
    """Read the rows with what they are compared with, those that are compared first, and all comparisons."""
    rows = results.read_written(PAGE).rows
    equal = results.equal_budgets(rows, results.read_references(ROOT / "docs/reference_returns.yaml"))
    compared = collections.defaultdict(list)
    for row in equal:
        compared[key(row)].append(row)
    last = {key(row): row for row in rows}
    entries = [Entry(row, compared[key(row)] if last[key(row)] is row else []) for row in rows]
    return sorted(entries, key=lambda entry: not entry.compared), equal


def write_page() -> None:
    """Write the page of results, and its pictures, in place of the file that `scripts/results.py` keeps."""
    before, block, after = results.read_block(PAGE)
    entries, equal = read_entries()
    tasks = collections.defaultdict(list)
    for entry in entries:
        tasks[entry.row["environment"]].append(entry)
    sections = []
    for task, found in sorted(tasks.items(), key=lambda item: -len(item[1])):
        name = f"images/results/{task}.svg"
        with mkdocs_gen_files.open(name, "w") as file:
            file.write(picture(found))
        curves = [match[0] for match in _IMAGE.finditer(after) if re.search(rf"\b{re.escape(task)}\b(?!-)", match[1])]
        table = "\n".join(results.format_table(list(map(cells, found))))
        sections.append(
            f"### {task}\n\n![Final returns on {task}]({name})\n\n{''.join(curves)}{table}\n\n{commands(found)}"
        )
        for curve in curves:
            after = after.replace(curve, "")
    title, _, notes = before.removesuffix(f"{results.BEGIN}\n").partition("\n")
    legend = block[block.rindex(" |\n") + 3 :]
    text = [f"{title}\n\n{summary(equal)}{results.EQUAL.split(' Where several')[0]}\n\n## By environment\n\n"]
    text += ["Bars are ours, diamonds the published returns of the same system and budget.\n\n", "\n".join(sections)]
    text += [f"\n## What the numbers are\n\n{notes.strip()}\n\n{legend}", after.removeprefix(results.END)]
    with mkdocs_gen_files.open("results.md", "w") as file:
        file.write("".join(text))


if __name__ == "<run_path>":  # not where another script imports it
    write_page()
