"""What network configs name: activations, initialisers, recurrent cells; and networks built from a config."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers
from jaxtyping import Array
from omegaconf import OmegaConf

from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete, Space
from stoix_like.errors import ConfigError, nearest
from stoix_like.networks.inputs import FlattenInput
from stoix_like.networks.recurrent import LRUCell, MinGRUCell

Activation = Callable[[Array], Array]
"""A function from arrays to arrays."""
Initializer = Callable[..., Array]
"""A function `(key, shape, dtype) -> array`."""

# Names are listed, not searched for: `jax.nn` also holds reductions, attention and encodings.
_ACTIVATIONS: Mapping[str, Activation] = {
    function.__name__: function
    for function in (
        *(jax.nn.celu, jax.nn.elu, jax.nn.gelu, jax.nn.glu, jax.nn.hard_sigmoid, jax.nn.hard_silu, jax.nn.hard_tanh),
        *(jax.nn.leaky_relu, jax.nn.log_sigmoid, jax.nn.log_softmax, jax.nn.mish, jax.nn.relu, jax.nn.relu6),
        *(jax.nn.selu, jax.nn.sigmoid, jax.nn.silu, jax.nn.soft_sign, jax.nn.softmax, jax.nn.softplus),
        *(jax.nn.sparse_plus, jax.nn.sparse_sigmoid, jax.nn.squareplus, jax.nn.standardize, jax.nn.tanh, jnp.sin),
    )
} | {
    "hard_swish": jax.nn.hard_swish,
    "swish": jax.nn.swish,
    "identity": jax.nn.identity,
    "none": jax.nn.identity,
    "normalise": jax.nn.standardize,
    "normalize": jax.nn.standardize,
}

# Arguments of modules that count units, pixels or the like.
_SIZES = frozenset(
    (
        *("layer_sizes", "hidden_sizes", "hidden_size", "num_blocks", "hidden_state_dim", "features"),
        *("channel_sizes", "kernel_sizes", "strides", "channels_per_group", "blocks_per_group", "view_dims"),
        *("num_atoms", "num_quantiles", "num_cosines", "num_values"),
        *("action_dim", "number_of_dims_per_distribution", "output_dim", "pre_shape", "logits_shape"),
    )
)

_INITIALIZERS: dict[str, Callable[..., Initializer]] = {
    function.__name__: function
    for function in (
        *(initializers.constant, initializers.delta_orthogonal, initializers.normal, initializers.orthogonal),
        *(initializers.glorot_normal, initializers.glorot_uniform, initializers.he_normal, initializers.he_uniform),
        *(initializers.lecun_normal, initializers.lecun_uniform, initializers.truncated_normal, initializers.uniform),
    )
} | {
    "kaiming_normal": initializers.kaiming_normal,
    "kaiming_uniform": initializers.kaiming_uniform,
    "ones": lambda: initializers.ones,
    "xavier_normal": initializers.xavier_normal,
    "xavier_uniform": initializers.xavier_uniform,
    "zeros": lambda: initializers.zeros,
}

_RNN_CELLS: dict[str, type[nn.Module]] = {
    "lstm": nn.LSTMCell,
    "optimised_lstm": nn.OptimizedLSTMCell,
    "gru": nn.GRUCell,
    "mgu": nn.MGUCell,
    "simple": nn.SimpleCell,
    "mingru": MinGRUCell,
    "lru": LRUCell,
}


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


def parse_rnn_cell(rnn_cell_name: str) -> type[nn.Module]:
    """The recurrent cell of a name.

    Args:
        rnn_cell_name: `lstm`, `optimised_lstm`, `gru`, `mgu`, `simple`, or one of the linear recurrences `mingru`
            and `lru`, which a whole sequence passes in parallel.

    Returns:
        The class of the cell, to be made with `features`.

    Raises:
        ConfigError: where there is none of this name.
    """
    if rnn_cell_name not in _RNN_CELLS:
        raise ConfigError(f"unknown recurrent cell '{rnn_cell_name}': {nearest(rnn_cell_name, _RNN_CELLS)}")
    return _RNN_CELLS[rnn_cell_name]


_PARSERS = {
    "activation": parse_activation_fn,
    "kernel_init": parse_initializer,
    "bias_init": parse_initializer,
    "cell_type": parse_rnn_cell,
}


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
    """Whether a head can act in an action space, or a system learn to.

    They say so in two class variables: `action_spaces`, the types of space it can act in (any, where there is no
    such variable), and `needs_bounds`.

    Args:
        head: a head, a system's `Config`, or the class of either.
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


def mask_argument(head: nn.Module, action_mask: Any) -> dict[str, Any]:
    """An action mask as an argument for a head.

    Args:
        head: of a policy.
        action_mask: True where an action is legal.

    Returns:
        `{"action_mask": action_mask}` where the head can be called with that, else nothing.
    """
    parameters = inspect.signature(type(head).__call__).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {"action_mask": action_mask} if "action_mask" in parameters or takes_any else {}


def accepted(target: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the arguments that a function knows.

    Args:
        target: a function or class.
        arguments: values by name.

    Returns:
        Those of `arguments` that `target` has a parameter for.
    """
    parameters = inspect.signature(target).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


class Spaces(NamedTuple):
    """What an environment tells of the networks that fit it; None where nothing depends on it."""

    action: Space | None = None
    observation: Space | None = None


def build_networks(
    network_config: Any, action_space: Space, observation_space: Space | None = None, key: str = "network"
) -> SimpleNamespace:
    """Make the modules that a network config describes.

    Every mapping with a `_target_` is called with its other entries; lists become tuples. A target that has a
    parameter `action_space`, `action_dim`, `minimum`, `maximum` or `number_of_dims_per_distribution` gets it from
    the action space, unless the config gives it; one that has a parameter `has_channels` likewise from the
    observation space. Where a torso takes vectors and the environment shows images, the input layer before it
    flattens them.

    Args:
        network_config: the composed config, a DictConfig or nested dicts.
        action_space: of the environment.
        observation_space: of the environment's `agent_view`; None leaves input layers as they are.
        key: where the config sits, for messages.

    Returns:
        Nested namespaces of unbound modules, such as `networks.actor_network.action_head`.

    Raises:
        ConfigError: for a target that cannot be imported, an argument or activation that it does not know, or a
            head that does not fit the action space; the message names the key.
    """
    return instantiate(network_config, action_space, observation_space, key)


def instantiate(
    node: Any, action_space: Space | None = None, observation_space: Space | None = None, key: str = "network"
) -> Any:
    """Make what one node of a config describes; see `build_networks`, of which this is the step.

    Args:
        node: a DictConfig, or plain containers and values.
        action_space: of the environment; None where nothing depends on it.
        observation_space: of the environment; None where nothing depends on it.
        key: where the node sits, for messages.

    Returns:
        What the `_target_` makes, a namespace for a mapping without one, a tuple for a list, else the value.

    Raises:
        ConfigError: as `build_networks`.
    """
    plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    return _build(plain, Spaces(action_space, observation_space), key)


def _build(node: Any, spaces: Spaces, key: str) -> Any:
    if isinstance(node, list | tuple):
        return tuple(_build(item, spaces, f"{key}[{i}]") for i, item in enumerate(node))
    if not isinstance(node, Mapping):
        return node
    built = {name: _build(value, spaces, f"{key}.{name}") for name, value in node.items()}
    if "_target_" not in node:
        return SimpleNamespace(**_fit_input(built, spaces.observation, key))
    return _instantiate(built, spaces, key)


def _fit_input(group: dict[str, Any], observation_space: Space | None, key: str) -> dict[str, Any]:
    """Let the input layer of a network flatten views that its torso cannot take as they are."""
    view_dims = getattr(group.get("pre_torso"), "view_dims", None)
    if observation_space is None or view_dims is None or "input_layer" not in group:
        return group
    shown = len(observation_space.shape)
    if shown in view_dims:
        return group
    if view_dims != (1,):
        raise ConfigError(
            f"{key}.pre_torso does not fit observations of shape {tuple(observation_space.shape)}: choose network=mlp"
        )
    return {**group, "input_layer": FlattenInput(group["input_layer"], shown)}


def _instantiate(arguments: dict[str, Any], spaces: Spaces, key: str) -> Any:
    path, partial = arguments.pop("_target_"), arguments.pop("_partial_", False)
    target = _locate(path, key)
    _check_arguments(target, arguments, key, path)
    if spaces.action is not None:
        if not fits(target, spaces.action):
            raise ConfigError(f"{key}={path} does not fit {describe(spaces.action)}: {_advice(spaces.action)}")
        arguments = accepted(target, action_facts(spaces.action)) | arguments
    if spaces.observation is not None:
        arguments = accepted(target, {"has_channels": len(spaces.observation.shape) != 2}) | arguments
    if partial:
        return functools.partial(target, **arguments)
    try:
        return target(**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}={path} cannot be made: {error}") from error


def _check_arguments(target: Callable[..., Any], arguments: Mapping[str, Any], key: str, path: str) -> None:
    """Refuse arguments that the target does not know, and names that modules would only look up when called."""
    parameters = inspect.signature(target).parameters
    known = parameters.keys() - {"parent", "name"}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name, value in arguments.items():
        if name not in known and not takes_any:
            raise ConfigError(f"{key}.{name} is not an argument of {path}: {nearest(name, known)}")
        optional = name in parameters and parameters[name].default is None
        if name in _SIZES and not _positive(value) and not (optional and value is None):
            raise ConfigError(f"{key}.{name}={_plain(value)} is out of range: sizes are whole numbers of at least 1")
        if name in _PARSERS and isinstance(value, str):
            try:
                _PARSERS[name](value)
            except ConfigError as error:
                raise ConfigError(f"{key}.{name}: {error}") from None


def _positive(sizes: Any) -> bool:
    if isinstance(sizes, tuple):
        return all(_positive(size) for size in sizes)
    return isinstance(sizes, int) and not isinstance(sizes, bool) and sizes >= 1


def _plain(sizes: Any) -> Any:
    return list(sizes) if isinstance(sizes, tuple) else sizes


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


def describe(action_space: Space) -> str:
    """An action space in words, for messages."""
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
