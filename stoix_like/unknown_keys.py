"""Answers to unknown keys and choices: those of other frameworks or groups, and misspelt ones."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from stoix_like import renamed_keys
from stoix_like.envs.ids import preprocessed_id
from stoix_like.envs.suites import SUITES
from stoix_like.errors import listed, nearest
from stoix_like.foreign_keys import (
    ALGORITHMS,
    AMBIGUOUS,
    CHOICES,
    ENVIRONMENT,
    FOREIGN_KEYS,
    SWITCHED_OFF,
    SYSTEM,
    ForeignKey,
    rows_of,
)

# `CartPole-v1`, `ALE/Pong-v5`, `my_package:MyEnv-v0`; not the choices of a suite of this package.
GYMNASIUM_ID = re.compile(rf"(?!({'|'.join(SUITES)})/)[\w.:/-]+-v\d+")
_MOST_ENVIRONMENTS = 3
_TRANSLATED = tuple(row for row in FOREIGN_KEYS if row.ours)
_FALSE = ("false", "0", "none", "null", "disabled")


class UnknownKey(NamedTuple):
    """A key of an override that does not exist."""

    key: str  # the whole key
    missing: str  # the first part of it that does not exist, from the root on
    parent: DictConfig  # the node that does not have it
    text: str  # the value of the override as it was written


def find(parsed: Sequence[Override], config: DictConfig) -> list[UnknownKey]:
    """Find the keys of overrides that a composed configuration does not have."""
    return [unknown for override in parsed if (unknown := _find(override, config)) is not None]


def _find(override: Override, config: DictConfig) -> UnknownKey | None:
    node, key = config, override.key_or_group
    text = (override.input_line or "").partition("=")[2]
    for depth, name in enumerate(names := key.split("."), start=1):
        if name not in node:
            return UnknownKey(key, ".".join(names[:depth]), node, text)
        node = OmegaConf.select(node, name)
        if not isinstance(node, DictConfig):
            # What is a value here may be a group of another framework.
            return UnknownKey(key, key, OmegaConf.create({}), text) if depth < len(names) and rows_of(key) else None
    return None


def refusal(unknown: Sequence[UnknownKey], systems: Sequence[str], environments: Sequence[str]) -> str:
    """Say for each key what it may mean."""
    hints = [f"'{one.key}': {_hint(one, systems, environments)}" for one in unknown]
    return f"unknown key {hints[0]}" if len(hints) == 1 else "\n  ".join(["unknown keys:", *hints])


def _hint(unknown: UnknownKey, systems: Sequence[str], environments: Sequence[str]) -> str:
    key, missing, parent, text = unknown
    rows = _whole_rows(key, text)
    if answer := renamed_keys.hint(key, text) or _without_counterpart(missing, rows):
        return answer
    path = missing.rpartition(".")[0]
    prefix = f"{path}." if path else ""
    known = [f"{prefix}{name}" for name in flatten(OmegaConf.to_container(parent)) if not name.startswith("hydra")]
    siblings = [name for name in known if name.rpartition(".")[0] == path]
    if not siblings and not rows:
        return f"write +{key}=… to add it to {path}"
    end = key.removeprefix(prefix)
    if not rows and (inside := _further_inside(missing, end, known)):
        return f"did you mean {listed(inside, 'or')}?"
    # The row of a whole key, such as `system.n_steps`, may be about other algorithms.
    if not _existing(rows, prefix, known):
        parts = _rows_of_parts(key, end, text, known)
        rows = parts if not rows or _existing(parts, prefix, known) else rows
    rows.sort(key=lambda row: "=" not in row.theirs)  # a row of a value is about it
    if text.strip("'\"").lower() in _FALSE and any(row.is_switch for row in rows):
        rows = [row._replace(ours=(off,), note="") for row in rows if (off := SWITCHED_OFF.get(row.theirs))]
        if not rows:
            return "leave it out: it is off by default"
    if here := [name for name in _existing(rows, prefix, known) if name != key]:
        row = next((row for row in rows if here[0] in row.ours), rows[0])
        return _translation(unknown, row, here, systems, environments)
    if ours := [name for name in _ours(rows) if name != key]:
        return f"systems that have it call it {listed(ours, 'and')}"
    names = end.lower().split(".")
    elsewhere = [] if path else [name for name in known if name.rpartition(".")[2] == names[-1]]
    return nearest(names[-1], elsewhere) if elsewhere else nearest(key, siblings)


def _without_counterpart(missing: str, rows: Sequence[ForeignKey]) -> str:
    """Return what to write or know in place of a key that nothing replaces; empty if something may."""
    if missing.endswith(".input_layer"):
        return f"networks take the agent_view by default: write '+{missing}={{_target_: …}}' for another input layer"
    return f"it has no counterpart here: {rows[0].note}" if rows and not any(row.ours for row in rows) else ""


def _further_inside(missing: str, end: str, known: Sequence[str]) -> list[str]:
    """Return the keys further inside that end as a key does; of a network, or as the part of it that is missing."""
    path, _, name = missing.rpartition(".")
    ends = [end, name] if path == "network" else [end] if "." in end else []
    return next((found for last in ends if (found := [key for key in known if key.endswith(f".{last}")])), [])


def _ours(rows: Sequence[ForeignKey]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.ours))


def _existing(rows: Sequence[ForeignKey], prefix: str, known: Sequence[str]) -> list[str]:
    """Return our keys of rows, of those below `prefix` the known ones."""
    inside = (*known, "hydra.run.dir")
    return [name for name in _ours(rows) if not name.startswith(prefix) or name.partition("=")[0] in inside]


def _whole_rows(key: str, text: str) -> list[ForeignKey]:
    """Return the rows of a whole key, or of its value."""
    return [*rows_of(f"{key}={text}"), *rows_of(key)]


def _rows_of_parts(key: str, end: str, text: str, known: Sequence[str]) -> list[ForeignKey]:
    """Return the rows that share most last parts with a key; if none does, the rows of the key's group."""
    names, group = end.lower().split("."), key.removesuffix(end)

    def rank(row: ForeignKey) -> tuple[int, bool, bool]:
        theirs = row.theirs.lower().removesuffix(f"={text}".lower()).split(".")
        pairs = zip(reversed(names), reversed(theirs), strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        is_inside = bool(group) and any(name.startswith(group) for name in row.ours)
        if shared == 1 and names[-1] in AMBIGUOUS and key.lower() != row.theirs and not is_inside:
            return 0, False, False
        return shared, is_inside, shared == len(theirs)

    if group == "network.":  # What stands directly below it is the name of a network, which may be mistyped.
        rows = [row for row in FOREIGN_KEYS if row.is_switch and row.theirs.lower() in names]
        rows = [row for row in rows if not any(f".{row.theirs}." in name for name in known)]
        return rows or [row for row in rows_of(names[-1]) if any(name.startswith(group) for name in row.ours)]
    best = max(map(rank, _TRANSLATED))
    if best[0]:
        return [row for row in _TRANSLATED if rank(row) == best]
    if "agent" in names:  # the group of DreamerV3 whose own groups, such as `policy`, no other framework has
        return []
    # The name of a value in a group, `loss_scales.dyn`, is not that of the group `dyn`.
    whole, part = f".{key}.".lower(), f".{end}.".lower()
    rows = [row for row in _TRANSLATED if row.theirs not in AMBIGUOUS]
    return [row for row in rows if f".{row.theirs.lower()}." in (whole if "." in row.theirs else part)]


def _translation(
    unknown: UnknownKey, row: ForeignKey, ours: Sequence[str], systems: Sequence[str], environments: Sequence[str]
) -> str:
    """Name our keys for one of another framework; with its value, where that keeps its meaning."""
    if row.ours == SYSTEM and (hint := word_hint(unknown.text.strip("'\""), systems, environments)):
        return hint
    if row.ours == ENVIRONMENT and (found := _environments(unknown.text, environments)):
        return f"use {listed(found, 'or')}"
    if len(ours) == 1 and not row.note and "=" not in ours[0] and unknown.text:
        return f"use {ours[0]}={unknown.text}"
    return f"use {listed(ours, 'and')}{row.remark}"


def _environments(text: str, environments: Sequence[str]) -> list[str]:
    """Return the overrides for the environments of a name, such as `hopper`, `Hopper-v5` or `CartPole-v1`."""
    name = text.strip("'\"")
    if GYMNASIUM_ID.fullmatch(name) and (game := preprocessed_id(name)):
        return [f"env={game}"]
    found = [f"env={choice}" for choice in environments if "/" in choice and bare_name(choice) == bare_name(name)]
    ids = [f"env={name}"] if GYMNASIUM_ID.fullmatch(name) else []
    return [*ids, *found][:_MOST_ENVIRONMENTS]


def word_hint(word: str, systems: Sequence[str], environments: Sequence[str]) -> str:
    """Say what a word without `=` may mean, such as `PPO`, `size12m` or `cartpole`; empty if it is unknown."""
    for group, choices in (("system", systems), ("env", environments)):
        if exact := [choice for choice in choices if word == choice or choice.endswith(f"/{word}")]:
            return f"use {listed([f'{group}={choice}' for choice in exact[:_MOST_ENVIRONMENTS]], 'or')}"
    if found := [f"system={choice}" for choice in systems if bare_name(choice) == bare_name(word)]:
        return f"use {listed(found, 'or')}"
    if algorithm := ALGORITHMS.get(bare_name(word)):
        return f"use {algorithm}"
    if "/" not in word and (found := _environments(word, environments)):
        return f"use {listed(found, 'or')}"
    if not (rows := rows_of(word)):
        return ""
    return f"use {listed([name if '=' in name else f'{name}=…' for name in rows[0].ours], 'and')}{rows[0].remark}"


def choice_refusal(override: Override, choices: Sequence[str]) -> str:
    """Say what an unknown choice of a group may mean."""
    key, value = override.key_or_group, override.value()
    given = str(value) if isinstance(value, str) else (override.input_line or "").partition("=")[2]
    if key == "system" and (algorithm := ALGORITHMS.get(bare_name(given))):
        return f"{key}={given} is not known: use {algorithm}"
    suite, slash, name = given.partition("/")
    if translated := CHOICES.get((key, suite)):
        inside = [choice for choice in choices if choice.startswith(f"{translated}/")]
        hint = (
            nearest(f"{translated}/{name.removeprefix(f'{suite}_')}", inside) if inside else f"use {key}={translated}"
        )
        return f"{key}={given} is not known: {hint}"
    # Stoix has two systems where one takes both kinds of actions.
    bare = bare_name(given.removesuffix("_continuous") if key == "system" else given)
    alike = [choice for choice in choices if bare_name(choice) == bare]
    if key == "network" and not alike:  # The start names the kind of network, the end the algorithm.
        ends = given.partition("_")[0], given.rpartition("_")[2]
        alike = [choice for choice in choices if (choice.partition("_")[0], choice.rpartition("_")[2]) == ends]
    hint = nearest(given, alike or choices)
    suites = {choice.partition("/")[0] for choice in choices}
    if key == "env" and isinstance(value, str) and suite not in suites and (slash or hint.startswith("choose from")):
        return f"{key}={given}: '{suite}' is not a known suite of environments: {nearest(suite, suites)}"
    return f"{key}={given} is not known: {hint}"


def plus_refusal(override: Override, said: str, groups: Sequence[str]) -> str | None:
    """Say whether an override lacks a plus, or has one too many, if it is that."""
    key, line = override.key_or_group, override.input_line
    if override.is_add() and f"already at '{key}'" in said:
        return f"{line} adds a key that exists: leave out the plus"
    if key not in groups:
        return None
    if not override.is_add() and f"override '{key}'" in said:
        return f"{line} needs a plus, +{line}: nothing has chosen {key} before"
    if f"Multiple values for {key}." in said or f"{key} appears more than once" in said:
        return f"{line}: the experiment has chosen {key}, which {key}=… without the plus replaces"
    return None


def bare_name(choice: str) -> str:
    """Return the name of an algorithm or environment alone: `dqn` for `q_learning/ff_dqn` and `DQN`."""
    name = choice.rpartition("/")[2].lower().removeprefix("ff_").removeprefix("rec_")
    return re.sub(r"-v\d+$|[-_]", "", name)


def flatten(node: Any, path: str = "") -> Iterator[str]:
    """Yield the keys of a plain configuration, those of groups included."""
    if path:
        yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from flatten(value, f"{path}.{key}" if path else str(key))
