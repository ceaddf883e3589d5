"""Blocks of updates between two evaluations, each with metrics of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stoix_like.architectures.types import RunningSums
from stoix_like.run.records import records

# The metrics of the blocks of one call stay on the device until its end.
_MAX_BLOCKS = 256
_MIN_BLOCKS = 16
_MAX_VALUES_PER_METRIC = 1024


class Call(NamedTuple):
    """One call of the training program."""

    done: int  # updates of the interval before it
    num_updates: int  # its own updates
    interval: int  # updates of the whole interval


def max_blocks(num_members: int) -> int:
    """Return how many blocks one call may have at most."""
    return max(_MIN_BLOCKS, min(_MAX_BLOCKS, _MAX_VALUES_PER_METRIC // num_members))


def fit(call: Call, every: int, num_blocks: int) -> Call:
    """Shorten a call so that it consists of whole blocks, or is part of a single one."""
    left_of_block = -call.done % every
    num_updates = min(call.num_updates, left_of_block or num_blocks * every)
    if every < num_updates < call.interval - call.done:
        num_updates -= num_updates % every
    return call._replace(num_updates=num_updates)


def split(
    blocks: RunningSums, call: Call, every: int, before: Mapping[str, Any]
) -> tuple[list[int], list[dict[str, Any]], Mapping[str, Any]]:
    """Return the metrics of the blocks that a call completes."""
    end = call.done + call.num_updates
    first = call.done - call.done % every + every
    ends = [min(done, end) for done in range(first, end + every, every)]
    if ends and ends[-1] % every and ends[-1] < call.interval:
        ends.pop()
    if not ends:
        return [], [], before
    sums = {name: values[..., : len(ends)] for name, values in records.running_sums(blocks).items()}
    return ends, records.blocks(sums, before), {name: values[..., -1].tolist() for name, values in sums.items()}
