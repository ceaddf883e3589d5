"""Variables of networks that are no parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from stoix_like.config import RunConfig
from stoix_like.errors import ConfigError
from stoix_like.networks.normalisation import STATISTICS
from stoix_like.utils.jax_utils import path_name

_PARAMS = "params"
# Fields of the states of optimisers that have the form of what is trained, as optax names them.
_MOMENTS = {"mu", "nu", "trace"}
_ADVICE = "compute constants as arrays in setup or __call__ of the module"
_STATISTICS_ADVICE = (
    "use layer normalisation, or a system that updates batch statistics and declares HeadRequirement(batch_norm=True),"
    " such as system=sac/ff_crossq"
)


def check_variables(shared: Any, config: RunConfig) -> None:
    """Refuse networks with collections besides `params`, such as constants, that an optimiser would change.

    Systems that declare `batch_norm` in `HeadRequirement` update running statistics themselves.
    """
    heads = getattr(config.system, "network_heads", {}).values()
    known = {_PARAMS, *(STATISTICS for head in heads if head.batch_norm)}
    others = [
        (path_name(path), name)
        for path, variables in jax.tree.leaves_with_path(shared, is_leaf=_is_variables)
        if _is_variables(variables)
        for name, collection in variables.items()
        if name not in known and isinstance(collection, Mapping) and jax.tree.leaves(collection)
    ]
    trained = {name for place, name in others if _MOMENTS & {*place.split(".")}}
    for place, name in others:
        if name in trained:
            raise ConfigError(
                f"system={config.system_name} would train the collection {name} of the network {place} like its"
                f" parameters: {_STATISTICS_ADVICE if name == STATISTICS else _ADVICE}"
            )


def _is_variables(tree: Any) -> bool:
    return isinstance(tree, Mapping) and _PARAMS in tree
