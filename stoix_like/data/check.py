"""Check of a data set against the run that is to learn from it, before anything compiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.dtypes import canonicalize_dtype

from stoix_like.data.dataset import DataHeader, DataSet, parts_of
from stoix_like.data.files import KEY
from stoix_like.envs.spaces import ActionSpace, Mixed, ObservationSpace, Space, bounds, choices, entries, first_choices
from stoix_like.errors import ConfigError

# Of the distance between the bounds of actions, or of one, as rescaled actions are rounded.
_TOLERANCE = 1e-5


def check_data(
    data: DataSet | DataHeader,
    observation_space: ObservationSpace,
    action_space: ActionSpace,
    env_name: str,
    key: str = KEY,
) -> None:
    """Refuse data that a run cannot learn from."""
    header = data if isinstance(data, DataHeader) else data.header
    if (problem := next(_problems(header, data, observation_space, action_space, env_name), None)) is not None:
        raise ConfigError(f"{key}={header.path}: {problem}")


def with_dtypes(data: DataSet, observation_space: ObservationSpace) -> DataSet:
    """Give whole numbers the dtypes that a run observes, such as flags recorded as bytes; pixels stay bytes."""
    view, spaces = data.observation.agent_view, entries(observation_space)
    if entries(view).keys() != spaces.keys():
        return data
    leaves = [_in_dtype(*each) for each in zip(entries(view).values(), spaces.values(), strict=True)]
    view = jax.tree.unflatten(jax.tree.structure(view), leaves)
    return data._replace(observation=data.observation._replace(agent_view=view))


def _in_dtype(array: np.ndarray, space: Any) -> np.ndarray:
    dtype, (low, high) = canonicalize_dtype(space.dtype), bounds(space)
    may_be_pixels = array.dtype == np.uint8 and array.ndim > 2 and dtype.kind == "f"
    if array.dtype == dtype or array.dtype.kind not in "biu" or may_be_pixels or array.shape[1:] != tuple(space.shape):
        return array
    return array.astype(dtype) if np.all((array >= low) & (array <= high)) else array


def _problems(header: DataHeader, data: Any, observation_space: Any, action_space: Any, env_name: str) -> Iterator[str]:
    """Yield what is wrong; later checks rely on earlier ones."""
    if header.environment and env_name != header.environment and not env_name.endswith(f"/{header.environment}"):
        yield f"the data are of {header.environment}, not of {env_name}: use data of the run's environment"
    if isinstance(data, DataHeader):
        if header.steps < 1:
            yield "the data have no valid step: record some"
        return
    space = action_space if isinstance(action_space, Space) else Mixed(action_space)
    yield from _wrong_arrays(data, observation_space, space)
    yield from _wrong_episodes(data)
    yield from _wrong_values(data, space)
    yield from _illegal_actions(data, space)


def _wrong_arrays(data: DataSet, observation_space: ObservationSpace, action_space: Any) -> Iterator[str]:
    """Compare names, shapes and dtypes."""
    view, spaces = (entries(nest, "observations") for nest in (data.observation.agent_view, observation_space))
    if missing := sorted(spaces.keys() - view.keys()):
        yield f"the data have no {missing[0]}, which the run observes: record data with the same env keys"
    if unknown := sorted(view.keys() - spaces.keys()):
        yield f"the data have {unknown[0]}, which the run does not observe: record data with the same env keys"
    expected = {name: (space.shape, space.dtype) for name, space in {**spaces, "actions": action_space}.items()}
    expected |= {"rewards": ((), np.float32), "action_mask": ((sum(choices(action_space)),), np.bool_)}
    expected |= {"step_count": ((), np.int32), **dict.fromkeys(("terminated", "truncated", "valids"), ((), np.bool_))}
    for path, array in data.arrays().items():
        name = ".".join(parts_of(path))
        shape, dtype = expected[name]
        if array.shape[1:] != tuple(shape):
            yield f"{name} has the shape {array.shape[1:]} per row, and in the run it is {tuple(shape)}: record it so"
        # In 32 bits, as jax has them.
        if array.dtype != (canonical := canonicalize_dtype(dtype)):
            yield f"{name} has the dtype {array.dtype}, and in the run it is {canonical}: convert the data"


def _wrong_episodes(data: DataSet) -> Iterator[str]:
    """Check that each episode has a step, ends once, and has a row for its last successor."""
    valid, flagged = data.valid, data.terminated | data.truncated
    if not valid.any():
        yield "the data have no valid step: record some"
    if (both := data.terminated & data.truncated).any():
        yield f"row {both.argmax()} is terminated and truncated: set one of the flags"
    if valid[-1]:
        yield "the last episode does not end: add a row with its last observation, where valids is False"
    if (empty := ~valid & ~np.append(False, valid[:-1])).any():
        yield f"row {empty.argmax()} follows no step, and valids is False: leave it out"
    ends = valid & ~np.append(valid[1:], False)
    if (unset := ends & ~flagged).any():
        yield f"the episode that ends in row {unset.argmax()} neither terminated nor was truncated there: set one flag"
    if (early := flagged & ~ends).any():
        yield (
            f"row {early.argmax()} has a flag, and is not the last step of its episode: add a row with its successor,"
            " where valids is False"
        )


def _wrong_values(data: DataSet, action_space: Any) -> Iterator[str]:
    """Check that all numbers are finite, and actions within their bounds."""
    for name, array in data.arrays().items():
        # The extremes first, without an array of flags as large as the data.
        if array.dtype.kind == "f" and array.size and not np.isfinite([array.min(), array.max()]).all():
            wrong = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
            # Of the last row of an episode, only the observation counts.
            wrong = wrong & data.valid if name in ("actions", "rewards") else wrong
            if wrong.any():
                yield f"{name} is not finite in row {wrong.argmax()}: leave its episode out"
    low, high = (np.asarray(bound, np.float64) for bound in bounds(action_space))
    with np.errstate(invalid="ignore"):
        span = high - low
    slack = _TOLERANCE * np.where(np.isfinite(span), np.fmax(1.0, span), 1.0)
    outside = (data.action < low - slack) | (data.action > high + slack)
    outside = outside.reshape(len(outside), -1).any(axis=1) & data.valid
    if outside.any():
        row = outside.argmax()
        action, least, largest = (np.array2string(x, precision=4) for x in (data.action[row], low, high))
        yield f"the action {action} in row {row} is not between {least} and {largest}: use the environment's units"


def _illegal_actions(data: DataSet, action_space: Any) -> Iterator[str]:
    """Check that choices are among those that their mask allows."""
    mask, sizes = data.observation.action_mask, choices(action_space)
    if mask is None or not sizes:
        return
    chosen = (data.action - first_choices(action_space)[None]).reshape(len(data.action), -1)
    if isinstance(action_space, Mixed):
        chosen = chosen[:, ~action_space.is_continuous]
    starts = np.cumsum((0, *sizes[:-1]))
    # Rows that belong to no step may hold anything; without any legal option, all are.
    places = np.where(data.valid[:, None], chosen, 0).astype(np.int64) + starts
    legal = np.take_along_axis(np.asarray(mask), places, axis=1) | ~np.logical_or.reduceat(mask, starts, axis=1)
    if (illegal := ~legal.all(axis=1) & data.valid).any():
        row = illegal.argmax()
        yield f"the action {data.action[row]} in row {row} is not legal there, see action_mask: leave its episode out"
