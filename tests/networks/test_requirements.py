from types import SimpleNamespace
from typing import ClassVar

import pytest

from stoix_like.errors import ConfigError
from stoix_like.networks.base import chained_torsos
from stoix_like.networks.heads import (
    CategoricalHead,
    DiscreteQNetworkHead,
    DistributionalDiscreteQNetwork,
    NoisyDistributionalDuelingQNetwork,
    ScalarCriticHead,
)
from stoix_like.networks.inputs import (
    ArrayInput,
    DictInput,
    EmbeddingActionInput,
    FeatureInput,
    FlattenInput,
    TorsoInput,
)
from stoix_like.networks.requirements import (
    ACTION_VALUE_ATOMS,
    ACTION_VALUES,
    HeadRequirement,
    MisfitError,
    check_networks,
    torsos_of,
    unused_dropout,
)
from stoix_like.networks.torso import BatchRenormMLPTorso, MLPTorso, NoisyMLPTorso

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


def networks(head, torso=MLPTorso((4,)), layer=ArrayInput(), **parts):  # noqa: B008
    group = SimpleNamespace(input_layer=layer, pre_torso=torso, action_head=head, **parts)
    return SimpleNamespace(actor_network=group)


def places(torso):
    """Return networks with a torso in each place but before the head, by its path."""
    head = DiscreteQNetworkHead(2)
    return {
        "input_layer.layers.grid": networks(head, layer=DictInput({"grid": torso})),
        "input_layer.pre_torso": networks(head, layer=TorsoInput(torso)),
        "input_layer.input_layer.pre_torso": networks(head, layer=EmbeddingActionInput(TorsoInput(torso))),
        "pre_torso.layers.1": networks(head, chained_torsos([MLPTorso((4,)), torso])),
        "post_torso": networks(head, rnn_layer=MLPTorso((4,)), post_torso=torso),
    }


PLACES = list(places(MLPTorso((4,))))


C51_HEAD = DistributionalDiscreteQNetwork(2, 0.0, 5, -1.0, 1.0)
NOISY_HEAD = NoisyDistributionalDuelingQNetwork(2, 0.0, 5, -1.0, 1.0, (4,))


class WithDropout:
    network_heads: ClassVar = {"actor_network.action_head": HeadRequirement(ACTION_VALUES, dropout=True)}


def test_dropout_is_found_where_the_system_drops_nothing():
    found = networks(DiscreteQNetworkHead(2), MLPTorso((4,), dropout_rate=0.1))
    assert unused_dropout(found, Values) == ["network.actor_network.pre_torso.dropout_rate=0.1"]
    assert unused_dropout(found, WithDropout) == unused_dropout(networks(DiscreteQNetworkHead(2)), Values) == []


def requiring(noisy_layers=False, **needs):
    """Return the class of hyperparameters of a system that needs action values, and more of the network."""
    head = HeadRequirement(ACTION_VALUES, **needs)
    variables = {"network_heads": {"actor_network.action_head": head}, "noisy_layers": noisy_layers}
    return type("Config", (), variables)


@pytest.mark.parametrize("place", PLACES)
def test_torsos_are_checked_wherever_they_are(place):
    def found(torso):
        return places(torso)[place]

    # A torso behind cells fits only recurrent systems, which draw no noise.
    recurrent = place == "post_torso"
    assert dict(torsos_of(found(NoisyMLPTorso((4,))).actor_network))[place].sigma_zero == 0.5
    key = f"network.actor_network.{place}"
    assert unused_dropout(found(MLPTorso((4,), dropout_rate=0.5)), Values) == [f"{key}.dropout_rate=0.5"]
    for torso, problem in (
        (BatchRenormMLPTorso((4,)), "=BatchRenormMLPTorso normalises batches, but system=mine does not"),
        (NoisyMLPTorso((4,)), "=NoisyMLPTorso has noisy layers, but system=mine draws no noise for them"),
    ):
        with pytest.raises(MisfitError) as caught:
            check_networks(found(torso), requiring(recurrent=recurrent), "mine")
        assert caught.value.problem == key + problem
    if not recurrent:
        check_networks(found(NoisyMLPTorso((4,))), requiring(noisy_layers=True), "mine")


def test_networks_of_latent_states_take_no_entries_of_observations():
    latent = requiring(latent=True)
    head = DiscreteQNetworkHead(2)
    # As `fit_input` sets it for images and dictionaries.
    for layer in (ArrayInput(), FlattenInput(ArrayInput(), 3)):
        check_networks(networks(head, layer=layer), latent, "mine")
    for layer in (FeatureInput("agent_view.state"), FlattenInput(FeatureInput("agent_view.state"), 3)):
        check_networks(networks(head, layer=layer), Values, "mine")
        with pytest.raises(
            ConfigError, match=r"^network\.actor_network\.input_layer=FeatureInput, which network\.observations"
        ):
            check_networks(networks(head, layer=layer), latent, "mine")


Q = DiscreteQNetworkHead(2)
WITHOUT_TORSO = SimpleNamespace(actor_network=SimpleNamespace(input_layer=ArrayInput(), action_head=Q))
NORMALISED, NOT_NORMALISED = (MLPTorso((4,), use_layer_norm=normalises) for normalises in (True, False))


@pytest.mark.parametrize(
    ("config", "found"),
    [
        *((config, networks(head)) for config, head in ((Values, Q), (Distributions, C51_HEAD))),
        # What declares nothing.
        *((config, networks(head)) for config, head in ((Values, OwnHead()), (object, CategoricalHead(2)))),
        *((NormalisedValues, networks(Q, torso)) for torso in (NORMALISED, OwnHead())),
        (NormalisedValues, networks(Q, ArrayInput(), DictInput({"observation": NORMALISED}))),
    ],
)
def test_networks_that_fit_are_accepted(config, found):
    check_networks(found, config, "mine")


@pytest.mark.parametrize(
    ("config", "found", "problem"),
    [
        (Values, networks(CategoricalHead(2)), ".action_head=CategoricalHead computes a stochastic policy, but system"),
        (Values, networks(C51_HEAD), ".action_head=DistributionalDiscreteQNetwork has num_atoms, vmin, vmax, which s"),
        (Distributions, networks(NOISY_HEAD), ".action_head=NoisyDistributionalDuelingQNetwork has sigma_zero, which"),
        (Distributions, networks(Q), ".action_head=DiscreteQNetworkHead has no num_atoms, which system=mine sets"),
        (Values, networks(None), ".action_head is not set, but system=mine needs it for action values"),
        (Values, SimpleNamespace(), " is not set"),
        (Values, WITHOUT_TORSO, ".pre_torso is not set"),
        (
            requiring(noisy_layers=True, recurrent=True),
            networks(Q, rnn_layer=MLPTorso((4,)), post_torso=NoisyMLPTorso((4,))),
            ".post_torso=NoisyMLPTorso has noisy layers",
        ),
        (NormalisedValues, networks(Q), ".pre_torso.use_layer_norm=false, but system=mine"),
        # Convolutions are there, where the last action and the last reward join their output.
        (
            NormalisedValues,
            networks(Q, ArrayInput(), DictInput({"observation": NOT_NORMALISED})),
            ".input_layer.layers.observation.use_layer_norm=false, but system=mine",
        ),
    ],
)
def test_networks_that_do_not_fit_are_refused(config, found, problem):
    with pytest.raises(MisfitError) as caught:
        check_networks(found, config, "mine")
    assert caught.value.problem.startswith(f"network.actor_network{problem}")
