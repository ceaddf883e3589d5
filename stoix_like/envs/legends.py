"""Names, units and ranges of what environments observe and do, for pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stoix_like.envs.spaces import ArraySpace, Box, ObservationSpace, bounds, entries
from stoix_like.errors import ConfigError, nearest

VELOCITIES = "velocities"
"""Name of all entries of a view that are velocities."""
VIEW = "observation"
"""Name of a view that is a single array."""
LAST_STEP = LAST_ACTION, LAST_REWARD = "last_action", "last_reward"
"""Names of the entries of a view that hold the last action and the last reward."""


class Feature(NamedTuple):
    """A number in a view of the agent: one of its entries, or an angle that it holds as cosine and sine."""

    name: str  # its name, such as `pole_angle`
    places: tuple[int, ...]  # flat index of the entry, or of the cosine and the sine
    unit: str = ""  # its unit, `rad`; empty for none
    low: float | None = None  # lower end of its usual range; None if it is unknown
    high: float | None = None  # upper end
    leaf: str = ""  # dotted name of the array in a dictionary; empty if the view is an array

    @property
    def label(self) -> str:
        """Name and unit, for an axis."""
        name = self.name.replace("_", " ") if "[" not in self.name else self.name
        return f"{name} ({self.unit})" if self.unit else name

    def read(self, view: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the values `[B]` in views, arrays `[B, ...]` by dotted name."""
        flat = self._flat(view)
        if len(self.places) == 1:
            return flat[:, self.places[0]].astype(np.float64)
        cosine, sine = (flat[:, place].astype(np.float64) for place in self.places)
        return np.arctan2(sine, cosine)

    def unjoined(self, values: np.ndarray) -> np.ndarray:
        """Return values over steps with a gap where an angle jumps from one end of its range to the other."""
        if len(self.places) == 1:
            return values
        return np.where(np.abs(np.diff(values, prepend=values[:1])) > np.pi, np.nan, values)

    def write(self, view: Mapping[str, np.ndarray], values: np.ndarray) -> dict[str, np.ndarray]:
        """Return views, arrays `[B, ...]` by dotted name, with other values `[B]`."""
        flat = self._flat(view).copy()
        written = [values] if len(self.places) == 1 else [np.cos(values), np.sin(values)]
        for place, column in zip(self.places, written, strict=True):
            flat[:, place] = column
        return {**view, self.leaf: flat.reshape(view[self.leaf].shape)}

    def _flat(self, view: Mapping[str, np.ndarray]) -> np.ndarray:
        array = view[self.leaf]
        return array.reshape(len(array), -1)


class Legend(NamedTuple):
    """Description of the observations and actions of an environment."""

    features: tuple[Feature, ...] = ()  # named features of the observation, the most informative first
    actions: tuple[str, ...] = ()  # names of the discrete actions, or of the entries of an action, with their units
    # Flat indices of the entries of a vector that are velocities, besides the features'.
    velocities: tuple[int, ...] = ()

    def places_of(self, name: str) -> tuple[int, ...]:
        """Return the flat indices of the entries with a name: a feature's or `velocities`; none if unknown."""
        if name != VELOCITIES:
            return next((feature.places for feature in self.features if feature.name == name), ())
        moving = (feature.places for feature in self.features if feature.name.endswith("velocity"))
        return tuple(sorted({*self.velocities, *(place for places in moving for place in places)}))

    def select(self, indices: Sequence[int]) -> Legend:
        """Return the legend of a vector view that keeps only some entries, in a new order."""
        new = {old: place for place, old in enumerate(indices)}
        kept = (feature for feature in self.features if set(feature.places) <= set(new))
        return self._replace(
            features=tuple(feature._replace(places=tuple(new[place] for place in feature.places)) for feature in kept),
            velocities=tuple(new[place] for place in self.velocities if place in new),
        )


def find_legend(name: str, space: ObservationSpace | None = None) -> Legend:
    """Return the legend of an environment; gymnax, brax, gymnasium and envpool share ids and observations."""
    body = re.sub(r"-v\d+$", "", name).replace("_", "").lower()
    first, after = _VELOCITIES.get(body, {}).get(space.shape if isinstance(space, Box) else (), (0, 0))
    return _LEGENDS.get(name, Legend(velocities=tuple(range(first, after))))


def find_feature(name: str, features: Sequence[Feature], space: ObservationSpace) -> Feature:
    """Return the feature with a name: a named one, or an entry such as `observation[3]` or `position[0]`.

    `name`: its name; an entry of a dictionary has the dotted name of its array, and no index if it is a scalar.
    """
    for feature in features:
        if feature.name == name:
            return feature
    leaves = entries(space)
    found = re.fullmatch(r"(.*?)(?:\[([\d, ]+)\])?", name)
    path, index = (found[1], found[2]) if found else (name, None)
    leaf = "" if path == VIEW and "" in leaves else path
    place = tuple(int(part) for part in (index or "").replace(" ", "").split(",") if part)
    if leaf not in leaves:
        arrays = [entry_name(path or VIEW, [0] * len(part.shape)) for path, part in leaves.items()]
        known = [feature.name for feature in features] + arrays
        raise ConfigError(f"feature {name} is unknown: {nearest(name, known)}")
    shape = leaves[leaf].shape
    if len(place) != len(shape) or any(at >= size for at, size in zip(place, shape, strict=True)):
        last = entry_name(path, [size - 1 for size in shape])
        raise ConfigError(f"feature {name} is not an entry of an array of shape {list(shape)}: the last one is {last}")
    return _entry(leaf, place, leaves[leaf])


def all_features(features: Sequence[Feature], space: ObservationSpace) -> list[Feature]:
    """Return the named features, then all entries of the view that belong to none of them."""
    taken = {(feature.leaf, place) for feature in features for place in feature.places}
    others = [
        _entry(leaf, tuple(map(int, place)), part)
        for leaf, part in entries(space).items()
        for flat, place in enumerate(np.ndindex(part.shape))
        if (leaf, flat) not in taken
    ]
    return [*features, *others]


def entry_name(array: str, place: Sequence[int]) -> str:
    """Return the name of an entry of an array, such as `observation[3]`; a scalar is named like its array."""
    return array + (f"[{','.join(map(str, place))}]" if place else "")


def _entry(leaf: str, place: tuple[int, ...], space: ArraySpace) -> Feature:
    name = entry_name(leaf or VIEW, place)
    flat = int(np.ravel_multi_index(place, space.shape)) if place else 0
    low, high = (float(np.broadcast_to(np.asarray(end), space.shape)[place]) for end in bounds(space))
    known = math.isfinite(low) and math.isfinite(high) and max(-low, high) < np.finfo(np.float32).max
    return Feature(name, (flat,), "", low if known else None, high if known else None, leaf)


_PI = math.pi
_VALLEY = (Feature("position", (0,), "", -1.2, 0.6), Feature("velocity", (1,), "per step", -0.07, 0.07))
_LEGENDS = {
    "CartPole-v1": Legend(
        (
            Feature("pole_angle", (2,), "rad", -12 * _PI / 180, 12 * _PI / 180),
            Feature("pole_velocity", (3,), "rad/s", -2.0, 2.0),
            Feature("cart_position", (0,), "m", -2.4, 2.4),
            Feature("cart_velocity", (1,), "m/s", -2.0, 2.0),
        ),
        ("left", "right"),
    ),
    "Pendulum-v1": Legend(
        (Feature("angle", (0, 1), "rad", -_PI, _PI), Feature("angular_velocity", (2,), "rad/s", -8.0, 8.0)),
        ("torque (N m)",),
    ),
    "Acrobot-v1": Legend(
        (
            Feature("first_angle", (0, 1), "rad", -_PI, _PI),
            Feature("second_angle", (2, 3), "rad", -_PI, _PI),
            Feature("first_velocity", (4,), "rad/s", -4 * _PI, 4 * _PI),
            Feature("second_velocity", (5,), "rad/s", -9 * _PI, 9 * _PI),
        ),
        ("torque −1 N m", "no torque", "torque +1 N m"),
    ),
    "MountainCar-v0": Legend(_VALLEY, ("left", "no force", "right")),
    "MountainCarContinuous-v0": Legend(_VALLEY, ("force",)),
}
_LEGENDS["CartPole-v0"] = _LEGENDS["CartPole-v1"]
# By the shape of observations, the first velocity of brax's and MuJoCo's bodies, and the entry after the last one.
_VELOCITIES: dict[str, dict[tuple[int, ...], tuple[int, int]]] = {
    "ant": {(27,): (13, 27), (105,): (13, 27)},
    "halfcheetah": {(17,): (8, 17), (18,): (9, 18)},
    "hopper": {(11,): (5, 11), (12,): (6, 12)},
    "inverteddoublependulum": {(8,): (5, 8), (9,): (5, 8), (11,): (5, 8)},
    "invertedpendulum": {(4,): (2, 4)},
    "pusher": {(23,): (7, 14)},
    "reacher": {(10,): (6, 8), (11,): (6, 8)},
    "swimmer": {(8,): (3, 8), (10,): (5, 10)},
    "walker2d": {(17,): (8, 17), (18,): (9, 18)},
}
