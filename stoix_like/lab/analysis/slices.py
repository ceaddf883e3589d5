"""Slices of a policy and its critic over one or two features of the observation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from stoix_like.base_types import Observation
from stoix_like.envs.legends import Feature, all_features, find_feature
from stoix_like.envs.spaces import entries
from stoix_like.errors import ConfigError, nearest
from stoix_like.policies.policy import Inspection, Policy
from stoix_like.policies.visits import Visits

OTHERS = ("typical", "sampled")
# Points along each axis, for slices over one and over two features.
_POINTS = {1: 201, 2: 61}
# Visited states that a slice averages over.
_NUM_SAMPLED = 32
# Observations per call of the policy.
_BATCH = 4096
# Features in a title.
_MAX_HELD = 8

View = dict[str, np.ndarray]


class Slice(NamedTuple):
    """Outputs of a policy and its critic over a line or a plane of observations."""

    features: tuple[Feature, ...]  # the features that vary, one or two
    grids: tuple[np.ndarray, ...]  # the values of each of them, `[G]`
    held: dict[str, float]  # the values of the other named features, by name; empty where they are sampled
    found: Inspection  # what is said, with leading axes `[G]`, or `[G1, G2]` for two features
    policy: Policy  # the policy
    visits: Visits  # episodes of the policy

    def read(self, feature: int) -> np.ndarray:
        """Return the values `[M]` of a feature in the visited states."""
        return self.features[feature].read(view_of(self.visits.observation))


def take_slice(
    policy: Policy,
    features: Sequence[str] = (),
    *,
    fixed: Mapping[str, float] | None = None,
    others: str = "typical",
    visits: Visits | None = None,
    points: int | None = None,
) -> Slice:
    """Evaluate a policy and its critic over one or two features of the observation.

    The other features come from one visited state, the one nearest to the medians of all, or the results are
    averages over visited states.

    Args:
        policy: from `load_policy`.
        features: names of one or two features, such as `pole_angle` or `observation[2]`; by default the first two that
            the environment names, or the two entries that vary most.
        fixed: values of other features, by name.
        others: `typical` for the others of a typical state, `sampled` for averages over visited states.
        visits: from `policy.play`; by default ten episodes.
        points: points along each axis, at least 2.

    Raises:
        ConfigError: a feature is unknown, or an argument is out of range.
    """
    if others not in OTHERS:
        raise ConfigError(f"others={others} is unknown: {nearest(others, OTHERS)}")
    visits = policy.play() if visits is None else visits
    chosen = choose_features(policy, features, visits)
    fixed = dict(fixed or {})
    held_fixed = [_find(policy, name) for name in fixed]
    if both := [feature.name for feature in held_fixed if _overlaps(feature, chosen)]:
        raise ConfigError(f"{both[0]} is fixed and varies: leave it out of one of both")
    base = _base(visits, others)
    view = view_of(base)
    for feature, value in zip(held_fixed, fixed.values(), strict=True):
        view = feature.write(view, np.full(len(feature.read(view)), value))
    grids = tuple(_grid(feature, visits, points or _POINTS[len(chosen)]) for feature in chosen)
    found = _inspect(policy, base, view, chosen, grids)
    named = all_features(policy.legend.features, policy.observation_space)
    held = {one.name: float(one.read(view)[0]) for one in named[:_MAX_HELD] if not _overlaps(one, chosen)}
    return Slice(chosen, grids, held if others == "typical" else fixed, found, policy, visits)


def _overlaps(feature: Feature, others: Sequence[Feature]) -> bool:
    """Return whether a feature has an entry of the view in common with one of others, under whatever names."""
    return any(feature.leaf == other.leaf and set(feature.places) & set(other.places) for other in others)


def choose_features(policy: Policy, names: Sequence[str], visits: Visits, most: int = 2) -> tuple[Feature, ...]:
    """Return the features with the given names."""
    if len(names) > most:
        raise ConfigError(f"features={','.join(names)} are too many: choose at most {most}")
    if names:
        return tuple(_find(policy, name) for name in names)
    if named := policy.legend.features[:2]:
        return named
    view = view_of(visits.observation)
    spread = {leaf: np.std(array.reshape(len(array), -1).astype(np.float64), axis=0) for leaf, array in view.items()}
    found = all_features((), policy.observation_space)
    found.sort(key=lambda feature: -spread[feature.leaf][feature.places[0]])
    return tuple(found[:2])


def _find(policy: Policy, name: str) -> Feature:
    return find_feature(name, policy.legend.features, policy.observation_space)


def view_of(observation: Observation) -> View:
    """Return the arrays `[B, ...]` of the agent's view by dotted name."""
    return {name: np.asarray(leaf) for name, leaf in entries(observation.agent_view).items()}


def _base(visits: Visits, others: str) -> Observation:
    """Return the visited observations `[K, ...]` that give the features which do not vary."""
    leaves = view_of(visits.observation).values()
    flat = np.concatenate([leaf.reshape(len(leaf), -1).astype(np.float64) for leaf in leaves], axis=1)
    if others == "sampled":
        rows = np.random.default_rng(0).permutation(len(flat))[:_NUM_SAMPLED]
    else:
        scale = np.std(flat, axis=0)
        distance = np.abs(flat - np.median(flat, axis=0)) / np.where(scale > 0.0, scale, 1.0)
        rows = distance.sum(axis=1).argmin()[None]
    return _rows(visits.observation, rows)


def _rows(observation: Observation, rows: np.ndarray) -> Observation:
    taken: Observation = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], observation)
    return taken


def _grid(feature: Feature, visits: Visits, points: int) -> np.ndarray:
    """Return values over the usual range of a feature, or over the visited one."""
    low, high = feature.low, feature.high
    if low is None or high is None:
        values = feature.read(view_of(visits.observation))
        low, high = float(values.min()), float(values.max())
        margin = 0.05 * (high - low) if high > low else 1.0
        low, high = low - margin, high + margin
    return np.linspace(low, high, points)


def _inspect(
    policy: Policy, base: Observation, view: View, features: tuple[Feature, ...], grids: tuple[np.ndarray, ...]
) -> Inspection:
    """Inspect the policy at every point of the grid, and average over the K base observations."""
    points = np.asarray(list(itertools.product(*grids)))  # [G, F]
    size, structure = len(next(iter(view.values()))), jax.tree.structure(base.agent_view)
    base = base._replace(agent_view=jax.tree.unflatten(structure, list(view.values())))
    per_call = max(1, _BATCH // size)
    # Equal sizes compile once.
    padded = np.concatenate([points, np.repeat(points[-1:], -len(points) % per_call, axis=0)])
    parts = []
    for first in range(0, len(padded), per_call):
        chunk = np.repeat(padded[first : first + per_call], size, axis=0)
        repeated = _rows(base, np.tile(np.arange(size), per_call))
        changed = view_of(repeated)
        for feature, values in zip(features, chunk.T, strict=True):
            changed = feature.write(changed, values)
        changed_view = jax.tree.unflatten(structure, list(changed.values()))
        parts.append(policy.inspect(repeated._replace(agent_view=changed_view)))

    def joined(*leaves: np.ndarray) -> np.ndarray:
        every = np.concatenate(leaves).reshape(len(padded), size, *leaves[0].shape[1:])[: len(points)]
        mean = every[:, 0] if size == 1 else every.mean(axis=1)
        return mean.reshape(*map(len, grids), *mean.shape[1:])

    return Inspection(*(jax.tree.map(joined, *fields) for fields in zip(*parts, strict=True)))
