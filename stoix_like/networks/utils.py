"""What network configs name: activations, initialisers, recurrent cells; and networks built from a config."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers
from jaxtyping import Array

from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete, Space
from stoix_like.errors import ConfigError, nearest

Activation = Callable[[Array], Array]
Initializer = Callable[..., Array]

_ACTIVATIONS: dict[str, Activation] = {
    name: getattr(jax.nn, name)
    for name in (
        "celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid log_softmax "
        "mish relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus "
        "standardize swish tanh"
    ).split()
} | {"none": jax.nn.identity, "normalise": jax.nn.standardize, "normalize": jax.nn.standardize, "sin": jnp.sin}

_INITIALIZERS: dict[str, Callable[..., Initializer]] = {
    name: getattr(initializers, name)
    for name in (
        "constant delta_orthogonal glorot_normal glorot_uniform he_normal he_uniform kaiming_normal kaiming_uniform "
        "lecun_normal lecun_uniform normal orthogonal truncated_normal uniform xavier_normal xavier_uniform"
    ).split()
} | {"ones": lambda: initializers.ones, "zeros": lambda: initializers.zeros}


def parse_activation_fn(activation_fn_name: str) -> Activation:
    """The activation function of a name.

    Args:
        activation_fn_name: the name of an activation function in `jax.nn`, or `sin`, or `none` for the identity.

    Returns:
        A function from arrays to arrays.

    Raises:
        ConfigError: where there is none of this name.
    """
    try:
        return _ACTIVATIONS[activation_fn_name]
    except KeyError:
        hint = nearest(activation_fn_name, _ACTIVATIONS)
        raise ConfigError(f"unknown activation '{activation_fn_name}': {hint}") from None


def parse_initializer(initializer: str | Initializer) -> Initializer:
    """The initialiser of a name.

    Args:
        initializer: the name of an initialiser in `jax.nn.initializers`, with or without numbers for its
            arguments, such as `lecun_normal` or `orthogonal(1.41)`; or an initialiser, which is left as it is.

    Returns:
        A function `(key, shape, dtype) -> array`.

    Raises:
        ConfigError: where there is none of this name, or it takes no such arguments.
    """
    if not isinstance(initializer, str):
        return initializer
    match = re.fullmatch(r"(\w+)(?:\((.*)\))?", initializer.strip())
    name, arguments = (match[1], match[2] or "") if match else (initializer, "")
    if name not in _INITIALIZERS:
        raise ConfigError(f"unknown initialiser '{name}': {nearest(name, _INITIALIZERS)}")
    try:
        return _INITIALIZERS[name](*(float(number) for number in arguments.split(",") if number.strip()))
    except (TypeError, ValueError):
        signature = inspect.signature(_INITIALIZERS[name])
        raise ConfigError(f"initialiser '{initializer}' must be numbers for {name}{signature}") from None


def action_facts(action_space: Space) -> dict[str, Any]:
    """What an action space tells a head, by the names that heads have for it.

    Args:
        action_space: of the environment.

    Returns:
        `action_space`, `action_dim` (the number of actions, of sub-actions, or of entries of an action; the shape
        where an action is not a vector), and as the space has them `number_of_dims_per_distribution`, `minimum`
        and `maximum`.
    """
    if isinstance(action_space, Discrete):
        return {"action_space": action_space, "action_dim": action_space.n}
    if isinstance(action_space, MultiDiscrete):
        sizes = tuple(int(size) for size in action_space.nvec)
        return {
            "action_space": action_space,
            "action_dim": len(sizes),
            "number_of_dims_per_distribution": sizes,
        }
    shape = tuple(action_space.shape)
    facts = {"action_space": action_space, "action_dim": shape[0] if len(shape) == 1 else shape}
    if action_space.bounded:
        facts["minimum"] = _as_tuples(np.broadcast_to(action_space.low, shape).tolist())
        facts["maximum"] = _as_tuples(np.broadcast_to(action_space.high, shape).tolist())
    return facts


def fits(head: Any, action_space: Space) -> bool:
    """Whether a head can act in an action space.

    A head says so in two class variables: `action_spaces`, the types of space it can act in (any, where it has no
    such variable), and `needs_bounds`.

    Args:
        head: a head or its class.
        action_space: of the environment.

    Returns:
        True where it can.
    """
    if not isinstance(action_space, getattr(head, "action_spaces", object)):
        return False
    bounded = not isinstance(action_space, Box) or action_space.bounded
    return bounded or not getattr(head, "needs_bounds", False)


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list | tuple) else value


def accepted(target: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `arguments` that `target` has a parameter for."""
    parameters = inspect.signature(target).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


def build_networks(network_config: Any, action_space: Space, key: str = "network") -> SimpleNamespace:
    """Make the modules that a network config describes.

    Every mapping with a `_target_` is called with its other entries; lists become tuples. A target that has a
    parameter `action_space`, `action_dim`, `minimum`, `maximum` or `number_of_dims_per_distribution` gets it from
    the action space, unless the config gives it.

    Args:
        network_config: the composed config, a DictConfig or nested dicts.
        action_space: of the environment.
        key: where the config sits, for messages.

    Returns:
        Nested namespaces of unbound modules, such as `networks.actor_network.action_head`.

    Raises:
        ConfigError: for a target that cannot be imported, an argument or activation that it does not know, or a
            head that does not fit the action space; the message names the key.
    """
    if not isinstance(network_config, Mapping):
        from omegaconf import OmegaConf  # plain dicts do without it

        network_config = OmegaConf.to_container(network_config, resolve=True)
    return _build(network_config, action_space, key)


def _build(node: Any, action_space: Space, key: str) -> Any:
    if isinstance(node, list | tuple):
        return tuple(_build(item, action_space, f"{key}[{i}]") for i, item in enumerate(node))
    if not isinstance(node, Mapping):
        return node
    built = {name: _build(value, action_space, f"{key}.{name}") for name, value in node.items()}
    if "_target_" not in node:
        return SimpleNamespace(**built)
    return _instantiate(built, action_space, key)


def _instantiate(arguments: dict[str, Any], action_space: Space, key: str) -> Any:
    path, partial = arguments.pop("_target_"), arguments.pop("_partial_", False)
    target = _locate(path, key)
    parameters = inspect.signature(target).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for name in arguments.keys() - (parameters.keys() - {"parent", "name"}):
            known = parameters.keys() - {"parent", "name"}
            raise ConfigError(f"{key}.{name} is not an argument of {path}: {nearest(name, known)}")
    _check_names(arguments, key)
    if not fits(target, action_space):
        raise ConfigError(f"{key}={path} does not fit {_describe(action_space)}: {_advice(action_space)}")
    arguments = accepted(target, action_facts(action_space)) | arguments
    if partial:
        return functools.partial(target, **arguments)
    try:
        return target(**arguments)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}={path} cannot be made: {error}") from error


def _check_names(arguments: Mapping[str, Any], key: str) -> None:
    """Look names up now, for modules would only do so when they are first called."""
    parsers = {"activation": parse_activation_fn, "kernel_init": parse_initializer, "cell_type": parse_rnn_cell}
    for name, parser in parsers.items():
        if isinstance(arguments.get(name), str):
            try:
                parser(arguments[name])
            except ConfigError as error:
                raise ConfigError(f"{key}.{name}: {error}") from error


def _locate(path: Any, key: str) -> Callable[..., Any]:
    module_name, _, name = str(path).rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{key}._target_={path} cannot be imported: {error}") from error
    if not callable(getattr(module, name, None)):
        known = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise ConfigError(f"{key}._target_={path} does not exist: {nearest(name, known)}")
    return getattr(module, name)


def _describe(action_space: Space) -> str:
    if isinstance(action_space, Discrete):
        return f"{action_space.n} discrete actions"
    if isinstance(action_space, MultiDiscrete):
        return f"discrete actions of sizes {action_facts(action_space)['number_of_dims_per_distribution']}"
    return f"{'bounded' if action_space.bounded else 'unbounded'} continuous actions of shape {action_space.shape}"


def _advice(action_space: Space) -> str:
    """Which network would do."""
    if isinstance(action_space, Box) and action_space.bounded:
        return "choose network=mlp_continuous, or network=mlp or network=cnn, whose heads follow the action space"
    return "choose network=mlp or network=cnn, whose heads follow the action space"


def parse_rnn_cell(rnn_cell_name: str) -> type[nn.Module]:
    """The recurrent cell of a name."""
    raise ConfigError(f"unknown recurrent cell '{rnn_cell_name}'")
