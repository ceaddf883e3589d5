"""What a system needs of its networks, so that a network of another family is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from stoix_like.errors import ConfigError

# What heads compute, the values of their class variable `outputs`.
STOCHASTIC_POLICY = "a stochastic policy"
DETERMINISTIC_POLICY = "a deterministic policy"
POLICY_AND_VALUE = "a policy and a value"
ACTION_VECTOR = "a vector of the shape of an action"
VALUE = "a value"
VALUE_DISTRIBUTION = "a distribution of values"
VALUE_ATOMS = "the atoms of a value"
VALUE_QUANTILES = "the quantiles of a value"
VALUE_ANY_QUANTILES = "the quantiles of a value at any levels"
ACTION_VALUES = "action values"
ACTION_VALUE_ATOMS = "the atoms of action values"
ACTION_VALUE_QUANTILES = "the quantiles of action values"
ACTION_VALUE_ANY_QUANTILES = "the quantiles of action values at any levels"
DISCOVERED_PREDICTIONS = "the predictions of a discovered update rule"

# Attributes of heads whose values belong to the system: they determine what the network learns.
_HYPERPARAMETERS = ("num_atoms", "vmin", "vmax", "num_quantiles", "num_cosines", "sigma_zero")

# The parts of a network before its head, and those that recurrent networks have besides.
_OTHER_PARTS = ("input_layer", "pre_torso")
_RECURRENT_PARTS = ("rnn_layer", "post_torso")


class MisfitError(ConfigError):
    """A network that does not fit the system or the environment.

    Attributes:
        problem: what does not fit, without advice.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}: {advice}")
        self.problem = problem


class HeadRequirement(NamedTuple):
    """What a system needs of one head, and of the torso before it.

    Attributes:
        outputs: what the head computes, as heads declare it in their class variable `outputs`.
        hyperparams: attributes of the head that the system sets from its own hyperparameters.
        layer_norm: whether the torso before the head must apply layer normalisation; torsos without an attribute
            `use_layer_norm` are not checked.
        batch_norm: whether the system updates the running statistics of a torso with batch normalisation, which
            declares `batch_norm = True`; such a torso fits no other system.
        recurrent: whether the network has recurrent cells and a torso after them; such a network fits no other system.
        cells_optional: whether a network without cells fits, too, where `recurrent`.
        shares_torso_of: a network whose input layer, torso and cells the head shares, parameters included, where its
            own network has nothing else; empty where the head needs a torso of its own.
        dropout: whether the system draws masks for the dropout of the torso; otherwise nothing is dropped.
        optional: attributes of heads of the family that the system supports, with the values of the network.
        alternatives: what else the head may compute.
    """

    outputs: str
    hyperparams: tuple[str, ...] = ()
    layer_norm: bool = False
    batch_norm: bool = False
    recurrent: bool = False
    cells_optional: bool = False
    shares_torso_of: str = ""
    dropout: bool = False
    optional: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()


def shares_torso(network: Any) -> bool:
    """Return whether a network has nothing but a head, and so shares the rest of another one."""
    return all(getattr(network, part, None) is None for part in (*_OTHER_PARTS, *_RECURRENT_PARTS))


def check_networks(networks: SimpleNamespace, config: Any, system_name: str, key: str = "network") -> None:
    """Refuse networks of another family than the system's.

    A system declares what it needs in the class variable `network_heads` of its `Config`: a `HeadRequirement` by the
    path of the head, such as `actor_network.action_head`. Systems and heads that declare nothing are not checked.

    Args:
        networks: the modules, from `build_networks`.
        config: the hyperparameters of the system.
        system_name: name of the system, for messages.
        key: key of the configuration, for messages.

    Raises:
        MisfitError: names the head, and what the system needs.
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
                _refuse(f"{key}.{missing} is not set, but system={system_name} needs it for {requirement.outputs}")
        for unread in () if requirement.recurrent else _RECURRENT_PARTS:
            if getattr(group, unread, None) is not None:
                _refuse(f"{key}.{name}.{unread} is set, but system={system_name} is not recurrent")
        head, torso = needed[path], needed[f"{torso_of}.pre_torso"]
        if requirement.layer_norm and not getattr(torso, "layer_sizes", True):
            _refuse(f"{key}.{torso_of}.pre_torso has no layers, but system={system_name} needs layer normalisation")
        if requirement.layer_norm and not getattr(torso, "use_layer_norm", True):
            _refuse(
                f"{key}.{torso_of}.pre_torso.use_layer_norm=false, but system={system_name} needs layer normalisation"
            )
        batch_norm = getattr(type(torso), "batch_norm", False)
        if requirement.batch_norm != batch_norm:
            does, needs = (
                ("normalises batches", "does not") if batch_norm else ("does not normalise batches", "needs it")
            )
            _refuse(f"{key}.{torso_of}.pre_torso={type(torso).__name__} {does}, but system={system_name} {needs}")
        _check_head(head, requirement, f"{key}.{path}={type(head).__name__}", system_name)


def unused_dropout(networks: SimpleNamespace, config: Any, key: str = "network") -> list[str]:
    """Return the dropout rates, `key=value`, of torsos in which the system drops nothing.

    Args:
        networks: the modules, from `build_networks`.
        config: the hyperparameters of the system.
        key: key of the configuration.
    """
    requirements: Mapping[str, HeadRequirement] = getattr(config, "network_heads", {})
    without = [path.partition(".")[0] for path, requirement in requirements.items() if not requirement.dropout]
    torsos = {
        f"{name}.{part}": getattr(getattr(networks, name, None), part, None)
        for name in without
        for part in ("pre_torso", "post_torso")
    }
    rates = {path: getattr(torso, "dropout_rate", 0.0) for path, torso in torsos.items()}
    return [f"{key}.{path}.dropout_rate={rate}" for path, rate in rates.items() if rate]


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
