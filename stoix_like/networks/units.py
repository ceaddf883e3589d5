"""Records of what the units of networks compute, for diagnostics.

Torsos declare their hidden units by `declare`, which costs nothing unless the units are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import flax.linen as nn
import jax

COLLECTION = "units"
"""The collection of flax that declared units go to."""
FEATURES = "features"
"""The name of what the heads of a network take."""

_listener: ContextVar[list[Recorded] | None] = ContextVar("listener", default=None)


class Recorded(NamedTuple):
    """One application of a network."""

    variables: Any  # its variables, the very arrays of the caller
    # By path, such as `("torso", "Dense_0_units")`, the outputs `[..., F]` of units.
    units: dict[tuple[str, ...], jax.Array]


def declare(module: nn.Module, layer: nn.Module, outputs: jax.Array) -> jax.Array:
    """Declare the outputs of units, `[..., F]`, after the activation function, and return them.

    `layer`: the dense layer of `module` before the activation function.
    """
    _sow(module, f"{layer.name}_units", outputs)
    return outputs


def declare_features(network: Any, features: jax.Array) -> jax.Array:
    """Declare what the heads of a network take, `[..., F]`, and return it."""
    _sow(network, FEATURES, features)
    return features


def _sow(module: Any, name: str, outputs: jax.Array) -> None:
    # Initialisation would return what is declared among the variables.
    if not module.is_initializing():
        module.sow(COLLECTION, name, outputs)


@contextmanager
def recording() -> Iterator[list[Recorded]]:
    """Record the units of all networks that are applied, outside of mapped functions and loops."""
    records: list[Recorded] = []
    token = _listener.set(records)
    try:
        yield records
    finally:
        _listener.reset(token)


def is_recording() -> bool:
    """Return whether units are recorded; then, networks are applied one by one."""
    return _listener.get() is not None


def record(variables: Any, units: Any) -> None:
    """Add an application of a network to the current records."""
    records = _listener.get()
    assert records is not None
    leaves = jax.tree.leaves_with_path(units.get(COLLECTION, {}))
    records.append(Recorded(variables, {tuple(key.key for key in path[:-1]): leaf for path, leaf in leaves}))
