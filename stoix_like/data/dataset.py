"""Recorded episodes as rows of arrays, in the compact layout of OGBench.

An episode of T steps has T + 1 rows. A row holds an observation, the action taken there, and the reward and the flags
of that step; in the last row of an episode only the observation counts, the true successor of the step before. So the
successor of a valid row is always the next row, and each observation is stored once.

Shape letters: R rows, M steps, E episodes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from stoix_like.base_types import Observation, PyTree
from stoix_like.storage.contents import parse_json

FORMAT = 1
RETURNS = ("return_mean", "return_min", "return_max")
_UNKNOWN = (
    "the successors of the last steps of episodes are unknown: the last step of each truncated episode is left out, and"
    " the successor of a terminated one is its own observation"
)
_FORM = {
    **dict.fromkeys(("format", "steps", "episodes"), int),
    **dict.fromkeys(("environment", "system", "run", "policy"), str),
    **dict.fromkeys(RETURNS, int | float | None),
    "arguments": {},
    "versions": {"*": str | None},
    "notes": [str],
}
# Fields of `DataSet`, in their order, by their names in files.
_FIELDS = {
    "actions": "action",
    "rewards": "reward",
    "terminated": "terminated",
    "truncated": "truncated",
    "valids": "valid",
}


@dataclass(frozen=True, kw_only=True)
class DataHeader:
    """Description of a data set, as recorded in its file."""

    format: int = FORMAT  # number of the format
    # Suite and scenario, `gymnax/CartPole-v1`; without a suite, an id of gymnasium; empty: unknown.
    environment: str = ""
    # Keys of the environment and its wrappers that are not at their defaults.
    arguments: Mapping[str, Any] = field(default_factory=dict)
    system: str = ""  # the system that acted
    run: str = ""  # hash of the configuration of its run
    policy: str = ""  # how it acted: `best`, `mix:0.3`, `replay`
    steps: int = 0  # number of steps, the valid rows
    episodes: int = 0  # number of episodes
    return_mean: float | None = None  # mean sum of the rewards of an episode; None if it is not finite, likewise below
    return_min: float | None = None  # the least one
    return_max: float | None = None  # the largest one
    versions: Mapping[str, str | None] = field(default_factory=dict)  # versions of the packages that recorded it
    notes: tuple[str, ...] = ()  # sentences about what a reader of the data should know
    path: str = ""  # the file that it was read from; not recorded

    def to_json(self) -> str:
        """Return the header as it is recorded."""
        values = {name: value for name, value in dataclasses.asdict(self).items() if name != "path"}
        return json.dumps(values, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, path: str = "") -> DataHeader:
        """Read a recorded header."""
        found = parse_json(text, _FORM, "the header")
        values = {name: found[name] for name in _FORM}
        return cls(**{**values, "notes": tuple(values["notes"]), "path": path})


class DataSet(NamedTuple):
    """Recorded episodes, one after the other, as host arrays."""

    header: DataHeader  # what they are
    observation: Observation  # `[R, ...]`; the view may be a nested dictionary, the mask and the step count may be None
    action: np.ndarray  # `[R, ...]`, in the units of the environment; parts of a `Mixed` space side by side
    reward: np.ndarray  # `[R]` float32, of the environment
    terminated: np.ndarray  # `[R]` bool, whether the episode terminated with the step of this row
    truncated: np.ndarray  # `[R]` bool, whether it was truncated there, never both
    valid: np.ndarray  # `[R]` bool, False in the last row of each episode

    @property
    def episode_lengths(self) -> np.ndarray:
        """Steps of each episode, `[E]`."""
        return np.diff(np.flatnonzero(~self.valid), prepend=-1) - 1

    @property
    def episode_returns(self) -> np.ndarray:
        """Sums of the rewards of each episode, `[E]` float64."""
        if not (ends := np.flatnonzero(~self.valid)).size:
            return np.zeros(0)
        rewards = np.where(self.valid, self.reward, 0.0)[: ends[-1] + 1]
        return np.add.reduceat(rewards, np.append(0, ends[:-1] + 1), dtype=np.float64)

    def with_statistics(self) -> DataSet:
        """Return the data with a header that has the counts and returns of the arrays."""
        returns = self.episode_returns
        values = (returns.mean(), returns.min(), returns.max()) if returns.size else ()
        found: dict[str, Any] = {
            name: float(value) if np.isfinite(value) else None for name, value in zip(RETURNS, values, strict=False)
        }
        found |= {"steps": int(self.valid.sum()), "episodes": returns.size}
        return self._replace(header=dataclasses.replace(self.header, **found))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by their names in files: `observations/joint/pos`, `actions`, `rewards`, …."""
        observed = {name: getattr(self.observation, name) for name in ("action_mask", "step_count")}
        steps = {name: getattr(self, field) for name, field in _FIELDS.items()}
        found = paths(self.observation.agent_view, "observations") | observed | steps
        return {name: array for name, array in found.items() if array is not None}

    @classmethod
    def from_arrays(cls, header: DataHeader, arrays: Mapping[str, Any]) -> DataSet:
        """Build a data set of what `arrays` returns."""
        view: Any = arrays.get("observations", {})
        for name in (name for name in arrays if name.startswith("observations/")):
            *parents, last = parts_of(name)[1:]
            node = view
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = arrays[name]
        if isinstance(view, dict) and not view:
            raise KeyError("observations")
        observation = Observation(view, arrays.get("action_mask"), arrays.get("step_count"))
        return cls(header, observation, *(arrays[name] for name in _FIELDS))


def paths(nest: Any, name: str) -> dict[str, Any]:
    """Return the arrays of nested dictionaries by their path, such as `observations/joint/pos`.

    Slashes within names are written as in JSON pointers (RFC 6901): `~1`, and tildes `~0`.
    """
    if not isinstance(nest, Mapping):
        return {name: nest}
    own = {key: str(key).replace("~", "~0").replace("/", "~1") for key in sorted(nest)}
    return {path: leaf for key in own for path, leaf in paths(nest[key], f"{name}/{own[key]}").items()}


def parts_of(path: str) -> list[str]:
    """Return the names that `paths` joined."""
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")]


def from_steps(
    header: DataHeader,
    observation: Observation,
    action: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    last: PyTree = None,
) -> DataSet:
    """Build a data set of steps with the next observations as successors, except at ends.

    `observation`: `[M, ...]`.
    `action`: `[M, ...]`, in the units of the environment.
    `reward`: `[M]`.
    `terminated`: `[M]` bool.
    `truncated`: `[M]` bool, ignored with `terminated`; the last step ends its episode in any case.
    `last`: `[E, ...]` like `observation`, the true successors of the steps that end; None if they are unknown.
    """
    truncated = truncated & ~terminated
    truncated[-1:] |= ~terminated[-1:]
    ends = terminated | truncated
    if last is None:
        header = dataclasses.replace(header, notes=(*header.notes, _UNKNOWN))
        starts = np.append(True, ends[:-1])[: len(ends)]
        # The step before one that is left out is truncated in its place.
        kept, truncated = ~truncated, np.append((truncated & ~starts)[1:], False)[: len(ends)]
        ends = terminated | truncated
        successor = np.flatnonzero(ends) + truncated[ends]
        last = jax.tree.map(lambda x: x[successor], observation)
        steps = observation, action, reward, terminated, truncated, ends
        observation, action, reward, terminated, truncated, ends = jax.tree.map(lambda x: x[kept], steps)
    row = np.arange(len(ends)) + np.cumsum(ends) - ends

    def place(steps: np.ndarray, successors: np.ndarray | None = None) -> np.ndarray:
        rows = np.zeros((len(ends) + ends.sum(), *steps.shape[1:]), steps.dtype)
        rows[row] = steps
        if successors is not None:
            rows[row[ends] + 1] = successors
        return rows

    flags = [place(x) for x in (terminated, truncated, np.ones_like(ends))]
    view = jax.tree.map(place, observation, last)
    return DataSet(header, view, place(action), place(reward.astype(np.float32)), *flags).with_statistics()
