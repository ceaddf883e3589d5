"""Checks of the arguments that a configuration gives to a module."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any

from flax.core import FrozenDict

from stoix_like import schema
from stoix_like.errors import ConfigError, nearest
from stoix_like.networks.utils import parse_activation_fn, parse_initializer, parse_rnn_cell, plain_kwargs

# The packages where these names of arguments have one meaning.
_PACKAGES = ("stoix_like.", "flax.")
# Arguments of modules that are positive integers.
_SIZES = frozenset(
    (
        *("layer_sizes", "hidden_sizes", "hidden_size", "num_blocks", "hidden_state_dim", "num_layers", "features"),
        *("channel_sizes", "kernel_sizes", "strides", "channels_per_group", "blocks_per_group", "view_dims"),
        *("num_atoms", "num_quantiles", "num_cosines", "num_values", "num_symbols", "embedding_size"),
        *("action_dim", "number_of_dims_per_distribution", "output_dim", "pre_shape", "logits_shape"),
        *("lstm_size", "num_predictions", "units", "channels", "kernel_size", "deterministic_size"),
        *("num_latents", "num_classes"),
    )
)

_LEAST = {"num_atoms": 2}
_RANGES = {"min_scale": schema.at_least(0.0), "init_scale": schema.above(0.0), "max_scale": schema.above(0.0)}
# Lower and upper ends, and whether they may be equal.
_ORDERED = (("vmin", "vmax", False), ("min_scale", "max_scale", True), ("min_log_scale", "max_log_scale", True))
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
    hints, is_of_packages = _hints_of(target), str(getattr(target, "__module__", "")).startswith(_PACKAGES)
    converted = {}
    for name, value in frozen(arguments).items():
        if name not in known and not takes_any:
            raise ConfigError(f"{key}.{name} is not an argument of {path}: {nearest(str(name), known)}")
        if is_of_packages:
            _check_size(name, value, f"{key}.{name}", optional=name in known and defaults[name] is None)
        converted[name] = frozen(schema.convert(hints.get(name, Any), value, f"{key}.{name}"))
        if is_of_packages:
            _check_meaning(name, converted[name], f"{key}.{name}")
    if not is_of_packages:
        return converted
    _check_order(defaults | converted, key)
    if converted.keys() >= {"cell_type", "hidden_state_dim"} and "cell_kwargs" in known:
        converted["cell_kwargs"] = _check_cell_kwargs({"cell_kwargs": None} | converted, key)
    return converted


def _hints_of(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of the arguments of a target; none where they cannot be evaluated."""
    try:
        return schema.hints_of(target)
    except (ConfigError, TypeError, AttributeError):
        return {}


def frozen(value: Any) -> Any:
    """Return a value with frozen dictionaries in place of others and of namespaces, because modules are hashed."""
    if isinstance(value, SimpleNamespace | dict):
        items = value if isinstance(value, dict) else vars(value)
        return FrozenDict({name: frozen(item) for name, item in items.items()})
    return tuple(map(frozen, value)) if isinstance(value, tuple) else value


def _check_size(name: str, value: Any, key: str, optional: bool) -> None:
    least = _LEAST.get(name, 1)
    if name in _SIZES and not _positive(value, least) and not (optional and value is None):
        raise ConfigError(f"{key}={schema.shown(value)} is out of range: use integers of at least {least}")


def _check_meaning(name: str, value: Any, key: str) -> None:
    """Refuse names of functions that are unknown, and numbers out of range."""
    if name in _PARSERS and isinstance(value, str):
        try:
            _PARSERS[name](value)
        except ConfigError as error:
            raise ConfigError(f"{key}={error}") from None
    if name in _RANGES and isinstance(value, (int, float)):
        schema.convert(Annotated[float, _RANGES[name]], value, key)


def _check_order(arguments: Mapping[str, Any], key: str) -> None:
    """Refuse ranges that are empty."""
    for low, high, may_equal in _ORDERED:
        smallest, largest = arguments.get(low), arguments.get(high)
        if not isinstance(smallest, (int, float)) or not isinstance(largest, (int, float)) or smallest < largest:
            continue
        if smallest > largest or not may_equal:
            must = "be at most" if may_equal else "be less than"
            raise ConfigError(f"{key}.{low}={smallest:g} must {must} {high}={largest:g}: use a smaller {low}")


def _positive(sizes: Any, least: int) -> bool:
    if isinstance(sizes, tuple):
        return all(_positive(size, least) for size in sizes)
    whole = isinstance(sizes, int) or (isinstance(sizes, float) and sizes.is_integer())
    return whole and not isinstance(sizes, bool) and sizes >= least


def _check_cell_kwargs(arguments: Mapping[str, Any], key: str) -> FrozenDict[str, Any]:
    """Convert the further arguments of recurrent cells."""
    cell_type, key = arguments["cell_type"], f"{key}.cell_kwargs"
    if not isinstance(given := arguments["cell_kwargs"], Mapping | SimpleNamespace | None):
        raise ConfigError(f"{key}={given} must be options by name: use {key}={{name: value}}, or null")
    cell: Any = parse_rnn_cell(cell_type)
    kwargs = plain_kwargs(given)
    fields = {} if cell.__module__.startswith("flax.") else {field.name: field for field in dataclasses.fields(cell)}
    hints = schema.hints_of(cell) if fields else {}
    converted = {}
    for name, value in kwargs.items():
        if name not in fields.keys() - _OF_ALL_CELLS:
            known = sorted(fields.keys() - _OF_ALL_CELLS)
            hint = nearest(str(name), known) if known else "it has none, leave this out"
            raise ConfigError(f"{key}.{name} is not an option of cell_type={cell_type}: {hint}")
        converted[name] = schema.convert(hints[name], value, f"{key}.{name}")
    for low, high in (("dt_min", "dt_max"), ("min_radius", "max_radius")):
        smallest, largest = (converted.get(name, getattr(cell, name, 0.0)) for name in (low, high))
        if smallest > largest:
            raise ConfigError(f"{key}.{low}={smallest} must not exceed {high}={largest}: use a smaller {low}")
    width, heads = arguments["hidden_state_dim"], converted.get("num_heads", getattr(cell, "num_heads", 1))
    if width % heads:
        raise ConfigError(f"{key}.num_heads={heads} must divide hidden_state_dim={width}: use a divisor of it")
    return FrozenDict(converted)
