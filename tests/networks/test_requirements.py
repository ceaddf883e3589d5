from types import SimpleNamespace
from typing import ClassVar

import pytest

from stoix_like.networks.heads import (
    CategoricalHead,
    DiscreteQNetworkHead,
    DistributionalDiscreteQNetwork,
    NoisyDistributionalDuelingQNetwork,
    ScalarCriticHead,
)
from stoix_like.networks.inputs import ArrayInput
from stoix_like.networks.requirements import (
    ACTION_VALUE_ATOMS,
    ACTION_VALUES,
    HeadRequirement,
    MisfitError,
    check_networks,
    unused_dropout,
)
from stoix_like.networks.torso import MLPTorso

ATOMS = ("num_atoms", "vmin", "vmax")


class Values:
    network_heads: ClassVar = {"actor_network.action_head": HeadRequirement(ACTION_VALUES)}


class Distributions:
    network_heads: ClassVar = {"actor_network.action_head": HeadRequirement(ACTION_VALUE_ATOMS, ATOMS)}


class NormalisedValues:
    network_heads: ClassVar = {"actor_network.action_head": HeadRequirement(ACTION_VALUES, layer_norm=True)}


class OwnHead(ScalarCriticHead):
    """A head that declares nothing."""

    outputs: ClassVar = None
    num_atoms: int = 3


def networks(head, torso=MLPTorso((4,))):  # noqa: B008
    return SimpleNamespace(actor_network=SimpleNamespace(input_layer=ArrayInput(), pre_torso=torso, action_head=head))


C51_HEAD = DistributionalDiscreteQNetwork(2, 0.0, 5, -1.0, 1.0)
NOISY_HEAD = NoisyDistributionalDuelingQNetwork(2, 0.0, 5, -1.0, 1.0, (4,))


class WithDropout:
    network_heads: ClassVar = {"actor_network.action_head": HeadRequirement(ACTION_VALUES, dropout=True)}


def test_dropout_is_found_where_the_system_drops_nothing():
    found = networks(DiscreteQNetworkHead(2), MLPTorso((4,), dropout_rate=0.1))
    assert unused_dropout(found, Values) == ["network.actor_network.pre_torso.dropout_rate=0.1"]
    assert unused_dropout(found, WithDropout) == unused_dropout(networks(DiscreteQNetworkHead(2)), Values) == []


@pytest.mark.parametrize(
    ("config", "head"),
    [(Values, DiscreteQNetworkHead(2)), (Distributions, C51_HEAD), (Values, OwnHead()), (object, CategoricalHead(2))],
)
def test_heads_that_fit_or_declare_nothing_are_accepted(config, head):
    check_networks(networks(head), config, "mine")


@pytest.mark.parametrize(
    ("config", "head", "problem"),
    [
        (
            Values,
            CategoricalHead(2),
            "=CategoricalHead computes a stochastic policy, but system=mine needs action values",
        ),
        (
            Values,
            C51_HEAD,
            "=DistributionalDiscreteQNetwork has num_atoms, vmin, vmax, which system=mine does not read",
        ),
        (
            Distributions,
            NOISY_HEAD,
            "=NoisyDistributionalDuelingQNetwork has sigma_zero, which system=mine does not read",
        ),
        (Distributions, DiscreteQNetworkHead(2), "=DiscreteQNetworkHead has no num_atoms, which system=mine sets"),
        (Values, None, " is not set, but system=mine needs it for action values"),
    ],
)
def test_heads_of_another_family_are_refused(config, head, problem):
    with pytest.raises(MisfitError) as caught:
        check_networks(networks(head), config, "mine")
    assert caught.value.problem == f"network.actor_network.action_head{problem}"


def test_a_missing_network_or_torso_is_named():
    with pytest.raises(MisfitError, match=r"^network\.actor_network is not set"):
        check_networks(SimpleNamespace(), Values, "mine")
    without = networks(DiscreteQNetworkHead(2))
    del without.actor_network.pre_torso
    with pytest.raises(MisfitError, match=r"^network\.actor_network\.pre_torso is not set"):
        check_networks(without, Values, "mine")


def test_torsos_without_layer_normalisation_are_refused_where_a_system_needs_it():
    for torso in (MLPTorso((4,), use_layer_norm=True), OwnHead()):
        check_networks(networks(DiscreteQNetworkHead(2), torso), NormalisedValues, "mine")
    with pytest.raises(MisfitError, match=r"^network\.actor_network\.pre_torso\.use_layer_norm=false, but system=mine"):
        check_networks(networks(DiscreteQNetworkHead(2)), NormalisedValues, "mine")
