"""Append the systems of a family, their sources, what they take, and their results to its page; run by mkdocs."""

import ast
import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import mkdocs_gen_files

from stoix_like.composition import group_choices
from stoix_like.config import import_build, schema_of
from stoix_like.envs.spaces import Box, Dict, Discrete, Mixed, MultiDiscrete, fits

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "docs"))
import gen_results  # noqa: E402

# The families of systems on each page.
PAGES = {
    "ppo": ("ppo",),
    "policy_gradients": ("vpg", "impala"),
    "q_learning": ("q_learning",),
    "soft_actor_critic": ("sac",),
    "deterministic_policy_gradients": ("ddpg",),
    "regularised_policy_improvement": ("mpo", "awr", "reppo"),
    "search": ("search", "spo"),
    "world_models": ("dreamer", "tdmpc"),
    "goals": ("goals",),
    "discovered_update_rules": ("disco_rl",),
    "offline": ("offline",),
}
_BOX = Box(-1.0, 1.0, (2,))
ACTIONS = {
    "Discrete": Discrete(2),
    "MultiDiscrete": MultiDiscrete((2, 3)),
    "Box": _BOX,
    "mixed": Mixed(Dict({"choice": Discrete(2), "push": _BOX})),
}
# Columns, and their names in the table of the smoke test.
TRIED = {"masks": "masked", "dictionaries": "dictionary", "populations": "population, resumed, exported"}
YES, NO = "✓", "–"
LEGEND = """
`Box` has bounds; mixed actions are a `Dict` or a `Tuple` of the others; recurrent systems have cells in their networks;
masks say which choices are legal; dictionaries are those of observations; populations train in one program. Actions and
cells are what a system declares; the rest is what two updates of it
[passed](../guides/systems.md#what-each-system-takes). What a system does not take is refused by name, before anything
compiles.
"""


def systems(page: str) -> list[str]:
    """Return the names of the systems of a page."""
    return [name for name in group_choices("system") if name.partition("/")[0] in PAGES[page]]


def smoke_rows(text: str) -> dict[str, dict[str, str]]:
    """Read the table of the smoke test: its cells by system and column, without the numbers of reasons."""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)]
    head = next(row for row in rows if row[0] == "system")
    found = [row for row in rows if re.fullmatch(r"`\w+/\w+`", row[0])]
    return {row[0].strip("`"): {k: v.partition(" [")[0] for k, v in zip(head, row, strict=True)} for row in found}


def cells(system: str, smoke: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return what a system takes, by column: action spaces and cells as it declares them, the rest as it was tried."""
    module = f"stoix_like.systems.{system.replace('/', '.anakin.')}"
    schema = schema_of(import_build(module))
    has_cells = any(head.recurrent for head in getattr(schema, "network_heads", {}).values())
    return {
        **{name: YES if fits(schema, space) else NO for name, space in ACTIONS.items()},
        "recurrent": YES if has_cells else NO,
        **{name: smoke[system][column] for name, column in TRIED.items()},
    }


def table(names: list[str], smoke: Mapping[str, Mapping[str, str]]) -> str:
    """Return a table of what systems take."""
    rows = {name: cells(name, smoke) for name in names}
    columns = list(next(iter(rows.values())))
    lines = [["system", *columns], ["---"] * (1 + len(columns))]
    lines += [[f"`{name}`", *row.values()] for name, row in rows.items()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def contents(names: list[str]) -> str:
    """List systems with their sources, and with links to their code, keys, module and defaults."""
    lines, defaults = [], (ROOT / "docs/defaults.md").read_text("utf-8")
    for name in names:
        module, keys = name.replace("/", "/anakin/"), name.replace("/", "")
        links = [
            f"[code](https://github.com/stoix-like/stoix_like/blob/main/stoix_like/systems/{module}.py)",
            f"[keys](../configuration/system.md#{keys})",
            f"[module](../reference/systems/{module}.md)",
            *(["[returns by default](../defaults.md)"] if f"| `{name}` |" in defaults else []),
            *(["[published settings](../defaults.md#compared-with-the-papers)"] if f"| `{name}`:" in defaults else []),
        ]
        lines.append(f"- `{name}`: {source(ROOT / f'stoix_like/systems/{module}.py')}. {', '.join(links)}.\n")
    return "".join(lines)


def source(path: Path) -> str:
    """Return the first line of a module, which names its algorithm and paper, with links."""
    line = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0].rstrip(".")
    line = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", line)
    line = re.sub(r"doi[: ](10\.[\w./-]+)", r"[doi:\1](https://doi.org/\1)", line)
    return re.sub(r"(openreview\.net/forum\?id=\w+)", r"[\1](https://\1)", line)


def rows(entries: list[gen_results.Entry]) -> str:
    """Return the results of a family by system."""
    ordered = sorted(entries, key=lambda entry: entry.row["system"])
    cells = [{"system": entry.row["system"], **gen_results.cells(entry, "environment")} for entry in ordered]
    table = "\n".join(gen_results.results.format_table(cells))
    return f"{table}\n\n{gen_results.commands(ordered)}"


def write_pages() -> None:
    """Append both to each page, whose prose is written by hand."""
    # It still uses names that jax has deprecated.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="tensorflow_probability")
    smoke = smoke_rows((ROOT / "docs/guides/systems.md").read_text("utf-8"))
    entries, _ = gen_results.read_entries()
    for page in PAGES:
        names = systems(page)
        with mkdocs_gen_files.open(f"algorithms/{page}.md", "a") as file:
            file.write(f"\n## Systems\n\n{contents(names)}\n## Can I use it?\n\n{table(names, smoke)}{LEGEND}")
            if found := [entry for entry in entries if entry.row["system"].split("`")[1] in names]:
                file.write(f"\n## Results\n\n{rows(found)}")


write_pages()
