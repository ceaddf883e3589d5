"""Construction of modules from nested mappings with a `_target_`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from stoix_like.envs.spaces import Box, Dict, MultiDiscrete, ObservationSpace, Space, action_facts, describe, fits
from stoix_like.errors import ConfigError, nearest, raised_at, reason
from stoix_like.networks.feed_forward import CompositeNetwork
from stoix_like.networks.from_config.checks import accepted, as_dict, check_arguments, parameters_of
from stoix_like.networks.from_config.fitting import fit_input, observation_facts
from stoix_like.networks.inputs import ArrayInput
from stoix_like.networks.requirements import MisfitError, torsos_of
from stoix_like.networks.utils import RNN_CELLS
from stoix_like.schema import convert
from stoix_like.user_code import refusing, user_errors

# The parts of a network, with an example of each.
_PARTS = {
    "input_layer": "stoix_like.networks.inputs.ArrayInput",
    "pre_torso": "stoix_like.networks.torso.MLPTorso",
    "rnn_layer": "stoix_like.networks.base.ScannedRNN",
    "post_torso": "stoix_like.networks.torso.MLPTorso",
    "action_head": "stoix_like.networks.heads.policy_head",
    "critic_head": "stoix_like.networks.heads.ScalarCriticHead",
}


# The key that selects what the networks of each role observe.
_OBSERVATIONS = "observations"
_ROLES = {"actor": ("actor_network",), "critic": ("critic_network", "q_network")}
_FEATURE_INPUT = "stoix_like.networks.inputs.FeatureInput"
# Input layers that extend the output of another one.
_EXTENDING_INPUTS = ("ActionInput", "ActionOnehotInput", "StepCountInput", "TorsoInput")


# What action spaces say, and a configuration can only repeat.
_SIZES_OF_ACTIONS = {"action_dim", "number_of_dims_per_distribution"}
# Where the classes of each kind of part are; not imported here, because they import this module.
_KINDS = {"head": "stoix_like.networks.heads", "torso": "stoix_like.networks.torso"}


def choices(kind: str) -> dict[str, Any]:
    """Return what a network may name for one kind of part."""
    if kind == "cell":
        return dict(RNN_CELLS)
    path = _KINDS[kind]
    module = importlib.import_module(path)
    return {
        f"{path}.{name}": value
        for name, value in ((name, getattr(module, name)) for name in module.__all__)
        if name.lower().endswith((kind, "network")) and value.__module__.startswith(path) and name != "PolicyHead"
    }


class Context(NamedTuple):
    """Inputs to the construction of networks; None where networks do not depend on them."""

    action: Space | None = None  # the action space of the environment
    observation: ObservationSpace | None = None  # its observation space
    dtype: Any = None  # dtype in which torsos compute
    notes: list[str] | None = None  # collects the arguments that are left out
    fused: bool = False  # whether torsos may be fused with their heads

    @property
    def facts(self) -> dict[str, Any]:
        """What arguments are where they are not configured, by name."""
        facts = {"fused": True} if self.fused else {}
        facts |= {} if self.dtype is None else {"dtype": self.dtype}
        if self.observation is not None and not isinstance(self.observation, Dict):
            facts |= observation_facts(self.observation)
        return facts if self.action is None else facts | action_facts(self.action)


def build_networks(
    network_config: Any,
    action_space: Space,
    observation_space: ObservationSpace | None = None,
    key: str = "network",
    dtype: Any = None,
    notes: list[str] | None = None,
    fused: bool = False,
) -> SimpleNamespace:
    """Build the modules of a network configuration.

    Every mapping with a `_target_` becomes a call of the target with the other entries as arguments; lists become
    tuples. Arguments that are not configured follow from the spaces: `action_space`, `action_dim`, `minimum`, `maximum`
    and `number_of_dims_per_distribution` from the action space, `has_channels` and `num_symbols` from the observation
    space. A torso without an input layer takes the `agent_view`. Where a torso takes vectors and the environment has
    images or dictionaries, the input layer before the torso flattens them. Arguments of another head or torso, left
    from before its `_target_` was overridden, are left out.

    `observation_space`: the space of `Observation.agent_view`; None leaves input layers unchanged.
    """
    return _build(
        _select_observations(to_plain(network_config), observation_space, key),
        Context(action_space, observation_space, dtype, notes, fused),
        key,
    )


def _select_observations(config: Any, space: ObservationSpace | None, key: str) -> Any:
    """Replace the key `observations` by the input layers that it stands for."""
    if not isinstance(config, Mapping) or _OBSERVATIONS not in config:
        return config
    key, chosen = f"{key}.{_OBSERVATIONS}", config[_OBSERVATIONS]
    if not isinstance(chosen, Mapping) or not all(isinstance(name, str) for name in chosen.values()):
        raise ConfigError(f"{key}={chosen} must be a mapping: {{actor: agent_view.state, critic: agent_view}}")
    selected = {name: node for name, node in config.items() if name != _OBSERVATIONS}
    for role, feature in chosen.items():
        if role not in _ROLES:
            raise ConfigError(f"{key}.{role} is not a role: {nearest(str(role), _ROLES)}")
        # `state` is `agent_view.state`.
        is_entry = isinstance(space, Dict) and feature.partition(".")[0] in space.spaces
        layer = {"_target_": _FEATURE_INPUT, "feature_name": f"agent_view.{feature}" if is_entry else feature}
        networks = [name for name in _ROLES[role] if isinstance(selected.get(name), Mapping)]
        for name in networks:
            if "pre_torso" not in selected[name]:
                raise ConfigError(f"{key}.{role}={feature}: network.{name} shares its torso: use network=mlp or rnn")
            selected[name] = _with_input(selected[name], layer)
        if not networks:
            others = [
                one for one, names in _ROLES.items() if any(isinstance(selected.get(name), Mapping) for name in names)
            ]
            hint = f": use only +{key}.{others[0]}=…" if others else ""
            raise ConfigError(f"{key}.{role}={feature}: there is no network.{' or network.'.join(_ROLES[role])}{hint}")
    return selected


def _with_input(node: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block of a network or an input layer with another innermost input layer, if it has none."""
    own = node.get("input_layer")
    if own is None:
        return {**node, "input_layer": layer}
    takes_another = isinstance(own, Mapping) and str(own.get("_target_")).endswith(_EXTENDING_INPUTS)
    return {**node, "input_layer": _with_input(own, layer)} if takes_another else dict(node)


def to_plain(node: Any) -> Any:
    """Return plain containers for a DictConfig or ListConfig, with interpolations resolved; other values unchanged."""
    from omegaconf import OmegaConf  # here, so that importing networks does not import it

    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _build(node: Any, context: Context, key: str) -> Any:
    if isinstance(node, list | tuple):
        return tuple(_build(item, context, f"{key}[{i}]") for i, item in enumerate(node))
    if not isinstance(node, Mapping):
        return node
    built = {name: _build(value, context, f"{key}.{name}") for name, value in node.items()}
    if "_target_" not in node:
        if "pre_torso" in built:
            built.setdefault("input_layer", ArrayInput())
        _check_parts(built, context.dtype, key)
        parts = built if context.observation is None else fit_input(built, context.observation, key)
        return _Namespace(**parts)
    return _instantiate(built, context, key)


class _Namespace(SimpleNamespace):
    """A part of the networks, which names its own parts where one is missing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        parts = ", ".join(vars(self))
        raise AttributeError(f"there is no {name} in network, only {parts}: choose network=… that has it")


def _check_parts(group: Mapping[str, Any], dtype: Any, key: str) -> None:
    """Raise a ConfigError for a part of a network that is not a block, or cannot compute in a dtype."""
    for name, example in _PARTS.items():
        if name in group and not callable(group[name]):
            shown, hint = as_dict(group[name]), f"use a block with a _target_, such as {example}"
            if isinstance(group[name], SimpleNamespace):  # keys that an experiment has for another network
                others = [part for other, part in group.items() if other not in (name, "input_layer")]
                network = f"choose network=… with {key.rpartition('.')[2]}"
                hint += f", or leave it out: '~{key}.{name}'" if any(map(callable, others)) else f", or {network}"
            raise ConfigError(f"{key}.{name}={shown} is not a module: {hint}")
    # Heads compute in the dtype of their parameters.
    computing = {"rnn_layer": group.get("rnn_layer"), **dict(torsos_of(SimpleNamespace(**group)))}
    for name, part in computing.items() if dtype is not None else ():
        if not _has_dtype(part):
            raise ConfigError(
                f"{key}.{name}={type(part).__name__} cannot compute in {jnp.dtype(dtype).name}: give it an"
                " attribute `dtype: Any = None` that it passes to its layers, or set arch.compute_dtype=float32"
            )


def _has_dtype(module: Any) -> bool:
    """Return whether a module, or each of those that it consists of, has a dtype; functions are not checked."""
    if not isinstance(module, nn.Module) or hasattr(module, "dtype"):
        return True
    values = [getattr(module, field.name) for field in dataclasses.fields(module) if field.name != "parent"]
    parts = [part for part in jax.tree.leaves(values) if isinstance(part, nn.Module)]
    return bool(parts) and all(map(_has_dtype, parts))


def _instantiate(arguments: dict[str, Any], context: Context, key: str) -> Any:
    path, partial = arguments.pop("_target_"), arguments.pop("_partial_", False)
    target = _locate(path, key)
    partial = convert(bool, partial, f"{key}._partial_")
    arguments = _without_inherited(target, arguments, key, path, context.notes)
    arguments = check_arguments(target, arguments, key, path)
    facts = accepted(target, context.facts)
    if any(part.endswith("_head") for part in key.split(".")):
        facts = {name: fact for name, fact in facts.items() if name not in ("dtype", "fused")}
    if context.action is not None:
        if not fits(target, context.action):
            raise MisfitError(f"{key}={path} does not fit {describe(context.action)}", _advice(context.action))
        # Of several sub-actions, a head may be told the choices of all of them, and checks that itself.
        told = _SIZES_OF_ACTIONS - ({"action_dim"} if isinstance(context.action, MultiDiscrete) else set())
        for name in told & facts.keys() & arguments.keys():
            if hasattr(target, "outputs") and arguments[name] != facts[name]:
                raise ConfigError(
                    f"{key}.{name}={arguments[name]} does not fit {describe(context.action)}: leave it out, it"
                    f" is {facts[name]}"
                )
    if partial:
        return functools.partial(target, **facts | arguments)
    try:
        return target(**facts | arguments)
    except user_errors() as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{key}={path} cannot be built: {reason(error)}{raised_at(error)}") from error


def _without_inherited(
    target: Callable[..., Any], arguments: dict[str, Any], key: str, path: str, notes: list[str] | None
) -> dict[str, Any]:
    """Leave out arguments that only other heads or torsos have: they belong to the default `_target_`."""
    kind = next((kind for kind in _KINDS if key.endswith(f"_{kind}")), None)
    known, takes_any = parameters_of(target)
    if kind is None or takes_any or not (unknown := arguments.keys() - known.keys()):
        return arguments
    of_others = {name for other in choices(kind).values() for name in parameters_of(other)[0]}
    inherited = sorted(unknown & of_others)
    if inherited and notes is not None:
        notes.append(f"{key}: left out {', '.join(inherited)}, which {path.rpartition('.')[2]} does not take")
    return {name: value for name, value in arguments.items() if name not in inherited}


def _locate(path: Any, key: str) -> Callable[..., Any]:
    module_name, _, name = str(path).rpartition(".")
    with refusing(f"{key}._target_={path} cannot be imported", "use the import path of a class or function"):
        module = importlib.import_module(module_name)
    if not callable(getattr(module, name, None)):
        known = [known for known in dir(module) if callable(getattr(module, known)) and not known.startswith("_")]
        raise ConfigError(f"{key}._target_={path} does not exist: {nearest(name, known)}")
    return getattr(module, name)


def _advice(action_space: Space) -> str:
    """Name networks that support an action space."""
    if isinstance(action_space, Box) and action_space.bounded:
        return "choose network=mlp_continuous, or network=mlp or network=cnn, whose heads follow the action space"
    return "choose network=mlp or network=cnn, whose heads follow the action space"


def chained_torsos(torso_cfgs: Sequence[Any], **kwargs: Any) -> CompositeNetwork:
    """Build a chain of torsos.

    Args:
        torso_cfgs: the torsos in order: modules, or configurations with a `_target_` (mappings or DictConfigs).
        **kwargs: arguments added to every configuration.

    Returns:
        A network that applies the torsos in order.

    Raises:
        ConfigError: a configuration cannot be built.
    """

    def build(torso: Any, key: str) -> nn.Module:
        if isinstance(torso, nn.Module):
            return torso
        module: nn.Module = _build({**to_plain(torso), **kwargs}, Context(), key)
        return module

    return CompositeNetwork(tuple(build(torso, f"torso_cfgs[{i}]") for i, torso in enumerate(torso_cfgs)))
