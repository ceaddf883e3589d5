"""Observation normalisation by running statistics, as functions of their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from stoix_like.base_types import Axes, Observation
from stoix_like.utils import running_statistics


class Normalizer(NamedTuple):
    """Normalisation of the `agent_view` of observations; integers and booleans, such as pixels, pass through.

    Attributes:
        init: `(observation [N, ...]) -> state`, empty statistics.
        update: `(state, observation [T, N, ...]) -> state`, merges the batch of all shards.
        apply: `(state, observation [..., ...]) -> observation`.
    """

    init: Callable[[Observation], Any]
    update: Callable[[Any, Observation], Any]
    apply: Callable[[Any, Observation], Observation]


def make_normalizer(enabled: bool, axes: Axes, max_abs_value: float = 10.0) -> Normalizer:
    """Build a normaliser, or the identity with an empty state.

    Args:
        enabled: whether to normalise; False gives the identity.
        axes: the mapped axes that a batch is spread over.
        max_abs_value: clipping limit of normalised values, in standard deviations.

    Returns:
        The functions of the normaliser.
    """
    if not enabled:
        return Normalizer(lambda _: (), lambda state, _: state, lambda _, observation: observation)

    def init(observation: Observation) -> Any:
        return running_statistics.initialize_statistics(jax.tree.map(lambda x: x[0], observation.agent_view))

    def update(state: Any, observation: Observation) -> Any:
        return running_statistics.update_statistics(state, observation.agent_view, pmap_axes=axes.names or None)

    def apply(state: Any, observation: Observation) -> Observation:
        view = running_statistics.normalize(observation.agent_view, state, max_abs_value)
        return observation._replace(agent_view=view)

    return Normalizer(init, update, apply)
