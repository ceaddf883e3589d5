"""Requirements of systems on networks, so that a network of another family is refused by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax

from stoix_like.errors import ConfigError
from stoix_like.networks.inputs import ArrayInput, FlattenInput

# What heads compute, the values of their class variable `outputs`.
STOCHASTIC_POLICY = "a stochastic policy"
DETERMINISTIC_POLICY = "a deterministic policy"
POLICY_AND_VALUE = "a policy and a value"
ACTION_VECTOR = "a vector of the shape of an action"
VALUE = "a value"
VALUE_DISTRIBUTION = "a distribution of values"
VALUE_ATOMS = "the atoms of a value"
VALUE_QUANTILES = "the quantiles of a value"
ACTION_VALUES = "action values"
ACTION_VALUE_ATOMS = "the atoms of action values"
ACTION_VALUE_QUANTILES = "the quantiles of action values"
ACTION_VALUE_ANY_QUANTILES = "the quantiles of action values at any levels"
REPRESENTATION = "a representation"
DISCOVERED_PREDICTIONS = "the predictions of a discovered update rule"

# Attributes of heads that the system sets: they determine what the network learns.
_HYPERPARAMETERS = ("num_atoms", "vmin", "vmax", "num_quantiles", "num_cosines", "sigma_zero")

# The parts of a network before its head, and those that recurrent networks have in addition.
_OTHER_PARTS = ("input_layer", "pre_torso")
_RECURRENT_PARTS = ("rnn_layer", "post_torso")


class MisfitError(ConfigError):
    """A network that does not fit the system or the environment."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}: {advice}")
        self.problem = problem


class HeadRequirement(NamedTuple):
    """Requirements of a system on one head, and on the torsos before it."""

    outputs: str  # what the head computes, as heads declare it in their class variable `outputs`
    hyperparams: tuple[str, ...] = ()  # attributes of the head that the system sets from its own hyperparameters
    # Whether torsos must apply layer normalisation; those without an attribute `use_layer_norm` are not checked.
    layer_norm: bool = False
    # Whether the system updates the running statistics of torsos with batch normalisation.
    batch_norm: bool = False
    # Whether the network has recurrent cells and a torso after them; such a network fits no other system.
    recurrent: bool = False
    cells_optional: bool = False  # whether a network without cells fits, too, where `recurrent`
    # A network that shares its input layer, torso and cells with the head, parameters included.
    shares_torso_of: str = ""
    dropout: bool = False  # whether the system draws masks for the dropout of torsos; otherwise nothing is dropped
    # Attributes of heads of the family that the system supports, with the values of the network.
    optional: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()  # what else the head may compute
    # Whether the input of the network is a latent state of a learned model, not the output of an input layer.
    latent: bool = False


def policy_and_critics(
    policy: str, critics: str, hyperparams: tuple[str, ...] = (), **properties: Any
) -> dict[str, HeadRequirement]:
    """Return the heads that a policy and critics of its actions need; `properties` are the critics'."""
    required = HeadRequirement(critics, hyperparams, **properties)
    return {"actor_network.action_head": HeadRequirement(policy), "q_network.critic_head": required}


def shares_torso(network: Any) -> bool:
    """Return whether a network has nothing but a head, and so shares the rest of another one."""
    return all(getattr(network, part, None) is None for part in (*_OTHER_PARTS, *_RECURRENT_PARTS))


def torsos_of(network: Any) -> Iterator[tuple[str, Any]]:
    """Yield the torsos of a network, including its input layer's and those in chains."""
    names = ("input_layer", "pre_torso", "post_torso", "layers")
    parts = {name: part for name in names if (part := getattr(network, name, None)) is not None}
    for keys, part in jax.tree.leaves_with_path(parts):
        path = jax.tree_util.keystr(keys, simple=True, separator=".")
        if path != "input_layer":
            yield path, part
        yield from ((f"{path}.{inner}", torso) for inner, torso in torsos_of(part))


def check_networks(networks: SimpleNamespace, config: Any, system_name: str) -> None:
    """Refuse networks of another family than the system's.

    A system declares what it needs in the class variable `network_heads` of its `Config`: a `HeadRequirement` by the
    path of the head, such as `actor_network.action_head`. Systems and heads that declare nothing are not checked.
    Torsos with noisy layers, which have an attribute `sigma_zero`, fit only feed-forward networks of systems that draw
    noise for them: those with the class variable `noisy_layers = True`.
    """
    requirements: Mapping[str, HeadRequirement] = getattr(config, "network_heads", {})
    for path, requirement in requirements.items():
        name, _, part = path.partition(".")
        group = getattr(networks, name, None)
        torso_of = requirement.shares_torso_of if shares_torso(group) and requirement.shares_torso_of else name
        body = getattr(networks, torso_of, None)
        needed = {name: group, path: getattr(group, part, None)}
        has_cells = any(getattr(body, part, None) is not None for part in _RECURRENT_PARTS)
        needs_cells = requirement.recurrent and (has_cells or not requirement.cells_optional)
        parts = (*_OTHER_PARTS, *(_RECURRENT_PARTS if needs_cells else ()))
        needed |= {f"{torso_of}.{other}": getattr(body, other, None) for other in parts}
        for missing, value in needed.items():
            if value is None:
                _refuse(f"network.{missing} is not set, but system={system_name} needs it for {requirement.outputs}")
        for unread in () if requirement.recurrent else _RECURRENT_PARTS:
            if getattr(group, unread, None) is not None:
                _refuse(f"network.{name}.{unread} is set, but system={system_name} is not recurrent")
        if requirement.latent:
            _check_latent_input(group, f"network.{name}", system_name)
        noisy = getattr(config, "noisy_layers", False) and not requirement.recurrent
        _check_torsos(body, requirement, noisy, f"network.{torso_of}", system_name)
        head = needed[path]
        _check_head(head, requirement, f"network.{path}={type(head).__name__}", system_name)


def check_latent_width(latent: jax.Array, following: jax.Array) -> None:
    """Refuse dynamics that do not return latents `[..., D]` as wide as the representation's."""
    if following.shape[-1] != latent.shape[-1]:
        raise ConfigError(
            f"network.dynamics_network.pre_torso returns {following.shape[-1]} units, and"
            f" network.representation_network.pre_torso {latent.shape[-1]}: use layers that end with the same width"
        )


def unused_dropout(networks: SimpleNamespace, config: Any) -> list[str]:
    """Return the dropout rates, `key=value`, of torsos in which the system drops nothing."""
    requirements: Mapping[str, HeadRequirement] = getattr(config, "network_heads", {})
    without = [path.partition(".")[0] for path, requirement in requirements.items() if not requirement.dropout]
    torsos = {f"{name}.{path}": torso for name in without for path, torso in torsos_of(getattr(networks, name, None))}
    rates = {path: getattr(torso, "dropout_rate", 0.0) for path, torso in torsos.items()}
    return [f"network.{path}.dropout_rate={rate}" for path, rate in rates.items() if rate]


def _check_torsos(network: Any, requirement: HeadRequirement, noisy: bool, key: str, system_name: str) -> None:
    for path, torso in torsos_of(network):
        what, normalises = f"{key}.{path}={type(torso).__name__}", getattr(type(torso), "batch_norm", False)
        if normalises and not requirement.batch_norm:
            _refuse(f"{what} normalises batches, but system={system_name} does not")
        if requirement.batch_norm and not normalises and path == "pre_torso":
            _refuse(f"{what} does not normalise batches, but system={system_name} needs it")
        if hasattr(torso, "sigma_zero") and not noisy:
            _refuse(f"{what} has noisy layers, but system={system_name} draws no noise for them")
        if not requirement.layer_norm:
            continue
        has_layers = getattr(torso, "layer_sizes", True)
        if path == "pre_torso" and not has_layers:
            _refuse(f"{key}.{path} has no layers, but system={system_name} needs layer normalisation")
        if has_layers and not getattr(torso, "use_layer_norm", True):
            _refuse(f"{key}.{path}.use_layer_norm=false, but system={system_name} needs layer normalisation")


def _check_latent_input(network: Any, key: str, system_name: str) -> None:
    layer = getattr(network, "input_layer", None)
    while isinstance(layer, FlattenInput):  # where the environment has images or dictionaries
        layer = layer.input_layer
    if not isinstance(layer, ArrayInput | None):
        raise ConfigError(
            f"{key}.input_layer={type(layer).__name__}, which network.observations sets, too, has no effect, because"
            f" system={system_name} learns a model of whole observations, whose latent states this network takes: use a"
            " system without a learned model, or leave entries out with an ObservationWrapper in env.wrappers"
        )


def _check_head(head: Any, requirement: HeadRequirement, what: str, system_name: str) -> None:
    for name in requirement.hyperparams:
        if not hasattr(head, name):
            _refuse(f"{what} has no {name}, which system={system_name} sets")
    declared = getattr(type(head), "outputs", None)
    read = (*requirement.hyperparams, *requirement.optional)
    unread = [name for name in _HYPERPARAMETERS if hasattr(head, name) and name not in read]
    if declared is not None and unread:
        _refuse(f"{what} has {', '.join(unread)}, which system={system_name} does not read")
    if declared not in (None, requirement.outputs, *requirement.alternatives):
        _refuse(f"{what} computes {declared}, but system={system_name} needs {requirement.outputs}")


def _refuse(problem: str) -> None:
    raise MisfitError(problem, "choose the network that the system chooses by default")
