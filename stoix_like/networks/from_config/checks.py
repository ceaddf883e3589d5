"""Checks of the arguments that a configuration gives to a module."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import jax
from flax.core import FrozenDict

from stoix_like import schema
from stoix_like.errors import ConfigError, nearest
from stoix_like.networks.utils import parse_activation_fn, parse_initializer, parse_rnn_cell

# The packages where these names of arguments have one meaning.
_PACKAGES = ("stoix_like.", "flax.")
_SIZES = (
    *("layer_sizes", "hidden_sizes", "hidden_size", "num_blocks", "hidden_state_dim", "num_layers", "features"),
    *("channel_sizes", "kernel_sizes", "strides", "channels_per_group", "blocks_per_group", "view_dims"),
    *("num_quantiles", "num_cosines", "num_symbols", "embedding_size", "action_dim", "expansion", "group_size"),
    *("number_of_dims_per_distribution", "output_dim", "pre_shape", "logits_shape", "lstm_size", "num_predictions"),
    *("units", "channels", "kernel_size", "deterministic_size", "num_latents", "num_classes"),
)
# Of each number in an argument.
_RANGES = dict.fromkeys(_SIZES, schema.at_least(1)) | {
    "num_layers": schema.between(1, 1000),  # each is built
    "num_atoms": schema.at_least(2),
    "min_scale": schema.at_least(0.0),
    "init_scale": schema.above(0.0),
    "max_scale": schema.above(0.0),
}
# Lower and upper ends, and whether they may be equal.
_ORDERED = (
    *(("vmin", "vmax", False), ("min_scale", "max_scale", True), ("min_log_scale", "max_log_scale", True)),
    *(("dt_min", "dt_max", True), ("min_radius", "max_radius", True)),
)
# Fields of cells that `ScannedRNN` sets.
_OF_ALL_CELLS = frozenset(("features", "dtype", "parent", "name"))

_PARSERS = {
    "activation": parse_activation_fn,
    "kernel_init": parse_initializer,
    "bias_init": parse_initializer,
    "cell_type": parse_rnn_cell,
}


def accepted(target: Callable[..., Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that a class or function has an argument for."""
    known, _ = parameters_of(target)
    return {name: value for name, value in facts.items() if name in known}


def parameters_of(target: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """Return the default of each argument by name, and whether the target takes any other keyword argument.

    The arguments of a dataclass, such as a flax module, are its fields.
    """
    if dataclasses.is_dataclass(target):
        return {field.name: field.default for field in dataclasses.fields(target) if field.init}, False
    parameters = inspect.signature(target).parameters.values()
    return {p.name: p.default for p in parameters}, any(p.kind is p.VAR_KEYWORD for p in parameters)


def check_arguments(target: Callable[..., Any], arguments: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
    """Convert arguments to the annotations of the target."""
    defaults, takes_any = parameters_of(target)
    known = defaults.keys() - {"parent", "name"}
    hints, converted = _hints_of(target), {}
    for name, value in arguments.items():
        if name not in known and not takes_any:
            raise ConfigError(f"{key}.{name} is not an argument of {path}: {nearest(str(name), known)}")
        converted[name] = _frozen(schema.convert(hints.get(name, Any), as_dict(value), f"{key}.{name}"))
    if str(getattr(target, "__module__", "")).startswith(_PACKAGES):
        for name, value in converted.items():
            _check_meaning(name, value, f"{key}.{name}")
        _check_order(defaults | converted, key)
        if converted.keys() >= {"cell_type", "hidden_state_dim"} and "cell_kwargs" in known:
            converted["cell_kwargs"] = _check_cell_kwargs({"cell_kwargs": None} | converted, key)
    return converted


def as_dict(value: Any) -> Any:
    """Return a value with dictionaries in place of namespaces."""
    if isinstance(value, SimpleNamespace):
        return {name: as_dict(item) for name, item in vars(value).items()}
    return tuple(map(as_dict, value)) if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    """Return a value with frozen dictionaries, because modules are hashed."""
    if isinstance(value, dict):
        return FrozenDict({name: _frozen(item) for name, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, tuple) else value


def _hints_of(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the arguments of a class or function; none where they cannot be evaluated."""
    try:
        return schema.hints_of(target)
    except (ConfigError, TypeError, AttributeError):
        return {}


def _check_meaning(name: str, value: Any, key: str) -> None:
    """Refuse names of functions that are unknown, and numbers out of range."""
    if name in _PARSERS and isinstance(value, str):
        try:
            _PARSERS[name](value)
        except ConfigError as error:
            raise ConfigError(f"{key}={error}") from None
    for number in jax.tree.leaves(value) if name in _RANGES else ():
        if isinstance(number, (int, float)) and number not in _RANGES[name]:
            raise ConfigError(f"{key}={value} is out of range: it must be {_RANGES[name]}")


def _check_order(arguments: Mapping[str, Any], key: str) -> None:
    """Refuse ranges that are empty."""
    for low, high, may_equal in _ORDERED:
        smallest, largest = arguments.get(low), arguments.get(high)
        if not isinstance(smallest, (int, float)) or not isinstance(largest, (int, float)) or smallest < largest:
            continue
        if smallest > largest or not may_equal:
            must = "be at most" if may_equal else "be less than"
            raise ConfigError(f"{key}.{low}={smallest:g} must {must} {high}={largest:g}: use a smaller {low}")


def _check_cell_kwargs(arguments: Mapping[str, Any], key: str) -> FrozenDict[str, Any]:
    """Convert the further arguments of recurrent cells."""
    cell_type, width, key = arguments["cell_type"], arguments["hidden_state_dim"], f"{key}.cell_kwargs"
    cell: Any = parse_rnn_cell(cell_type)
    kwargs = schema.convert(dict[str, Any], arguments["cell_kwargs"] or {}, key)
    fields = () if cell.__module__.startswith("flax.") else dataclasses.fields(cell)
    options = {field.name for field in fields} - _OF_ALL_CELLS
    if unknown := kwargs.keys() - options:
        raise ConfigError(
            f"{key}.{min(unknown)} is not an option of cell_type={cell_type}: {nearest(min(unknown), options)}"
        )
    converted = check_arguments(cell, kwargs, key, cell_type)
    if width % (heads := converted.get("num_heads", getattr(cell, "num_heads", 1))):
        raise ConfigError(f"{key}.num_heads={heads} must divide hidden_state_dim={width}: use a divisor of it")
    return FrozenDict(converted)
