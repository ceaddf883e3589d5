"""Answers to unknown keys and choices: their row of another framework's names, or the nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from stoix_like.envs.ids import preprocessed_id
from stoix_like.envs.suites import SUITES
from stoix_like.errors import listed, nearest
from stoix_like.foreign_keys import ForeignKey, rows_of, tables

# `CartPole-v1`, `ALE/Pong-v5`, `my_package:MyEnv-v0`; not the choices of a suite of this package.
GYMNASIUM_ID = re.compile(rf"(?!({'|'.join(SUITES)})/)[\w.:/-]+-v\d+")
_MOST = 3


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
    """Translate the longest end of a key that another framework has, or else name the nearest key."""
    key, missing, parent, text = unknown
    path, _, name = missing.rpartition(".")
    prefix = f"{path}." if path else ""
    known = [f"{prefix}{one}" for one in flatten(OmegaConf.to_container(parent)) if not one.startswith("hydra")]
    inside = {*known, "hydra.run.dir"}
    ends = [key.split(".", depth)[-1] for depth in range(key.count(".") + 1)]
    found = [rows for end in ends for rows in (rows_of(f"{end}={text}"), rows_of(end)) if _fits(rows, end, key, prefix)]
    for rows in found:
        ours = [one for one in dict.fromkeys(one for row in rows for one in row.ours) if one != key]
        if here := [one for one in ours if not one.startswith(prefix) or one.partition("=")[0] in inside]:
            row = next(row for row in rows if here[0] in row.ours)
            return _translation(text, row, here, systems, environments)
    if found and rows_of(key):
        ours = [one for row in found[0] for one in row.ours]
        note = f"it has no counterpart here: {found[0][0].note}"
        return f"systems that have it call it {listed(ours, 'and')}" if ours else note
    for end in (key.removeprefix(prefix), name):
        if alike := [one for one in known if one.lower().endswith(f".{end.lower()}")]:
            return nearest(end, alike)
    siblings = [one for one in known if one.rpartition(".")[0] == path]
    return nearest(key, siblings) if siblings else f"write +{key}=… to add it to {path}"


def _fits(rows: Sequence[ForeignKey], end: str, key: str, prefix: str) -> bool:
    """Return whether rows may be about a key; a last name alone may be about another group."""
    ours = [one for row in rows for one in row.ours]
    return bool(rows) and ("." in end or end == key or any("=" in one or one.startswith(prefix) for one in ours))


def _translation(
    text: str, row: ForeignKey, ours: Sequence[str], systems: Sequence[str], environments: Sequence[str]
) -> str:
    """Name our keys for a row of another framework; with its value, where that keeps its meaning."""
    word, is_override = text.strip("'\""), all("=" in one for one in ours)
    if ours[0].startswith(("system=", "env=")) and (hint := word_hint(word, systems, environments)):
        return hint
    if is_override and word.lower() in ("false", "0", "none", "null"):
        return f"if true, use {listed(ours, 'and')}{row.remark}"
    if len(ours) == 1 and not row.note and not is_override and text:
        return f"use {ours[0]}={text}"
    return f"use {listed(ours, 'and')}{row.remark}"


def word_hint(word: str, systems: Sequence[str], environments: Sequence[str]) -> str:
    """Say what a word without `=` may mean, such as `PPO`, `size12m` or `cartpole`; empty if it is unknown."""
    known = [f"system={one}" for one in systems] + [f"env={one}" for one in environments]
    if exact := [one for one in known if one.partition("=")[2] == word or one.endswith(f"/{word}")]:
        return f"use {listed(exact[:_MOST], 'or')}"
    if algorithm := tables()["algorithms"].get(bare_name(word)):
        return f"use {algorithm}"
    if "/" in word:
        return ""
    ids = [f"env={preprocessed_id(word) or word}"] if GYMNASIUM_ID.fullmatch(word) else []
    if found := [*ids, *(one for one in known if bare_name(one) == bare_name(word))][:_MOST]:
        return f"use {listed(found, 'or')}"
    if rows := rows_of(word):
        return f"use {listed([one if '=' in one else f'{one}=…' for one in rows[0].ours], 'and')}{rows[0].remark}"
    return ""


def choice_refusal(override: Override, choices: Sequence[str]) -> str:
    """Say what an unknown choice of a group may mean."""
    key, value = override.key_or_group, override.value()
    given = str(value) if isinstance(value, str) else (override.input_line or "").partition("=")[2]
    if key == "system" and (algorithm := tables()["algorithms"].get(bare_name(given))):
        return f"{key}={given} is not known: use {algorithm}"
    suite, slash, name = given.partition("/")
    theirs = tables()["choices"].get(key, {}).get(suite, suite)
    # Stoix has two systems where one takes both kinds of actions.
    bare = bare_name(given.removesuffix("_continuous") if key == "system" else given)
    alike = [choice for choice in choices if bare_name(choice) == bare]
    hint = nearest(f"{theirs}{slash}{name.removeprefix(f'{suite}_')}", alike or choices)
    suites = {choice.partition("/")[0] for choice in choices}
    if key == "env" and isinstance(value, str) and theirs not in suites and (slash or hint.startswith("choose from")):
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
    name = re.split("[/=]", choice)[-1].lower().removeprefix("ff_").removeprefix("rec_")
    return re.sub(r"-v\d+$|[-_]", "", name)


def flatten(node: Any, path: str = "") -> Iterator[str]:
    """Yield the keys of a plain configuration, groups included."""
    if path:
        yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from flatten(value, f"{path}.{key}" if path else str(key))
