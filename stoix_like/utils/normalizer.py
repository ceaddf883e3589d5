"""Observation normalisation by running statistics, as a pair of functions around their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from stoix_like.base_types import Axes, Observation
from stoix_like.utils import running_statistics


class Normalizer(NamedTuple):
    """Normalises the `agent_view` of observations.

    Attributes:
        init: `(observation [N, ...]) -> state`, statistics of nothing yet.
        update: `(state, observation [T, N, ...]) -> state`, over the whole batch on all shards.
        apply: `(state, observation [..., ...]) -> observation`.
    """

    init: Callable[[Observation], Any]
    update: Callable[[Any, Observation], Any]
    apply: Callable[[Any, Observation], Observation]


def make_normalizer(enabled: bool, axes: Axes, max_abs_value: float = 10.0) -> Normalizer:
    """A normaliser, or the identity with an empty state.

    Args:
        enabled: False gives the identity.
        axes: the mapped axes that a batch is spread over.
        max_abs_value: normalised values are clipped to `[-max_abs_value, max_abs_value]`, in deviations.

    Returns:
        The three functions.
    """
    if not enabled:
        return Normalizer(lambda _: (), lambda state, _: state, lambda _, observation: observation)

    def init(observation: Observation) -> Any:
        return running_statistics.initialize_statistics(observation.agent_view[0])

    def update(state: Any, observation: Observation) -> Any:
        return running_statistics.update_statistics(state, observation.agent_view, pmap_axes=axes.names or None)

    def apply(state: Any, observation: Observation) -> Observation:
        view = running_statistics.normalize(observation.agent_view, state, max_abs_value)
        return observation._replace(agent_view=view)

    return Normalizer(init, update, apply)
