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


def test_recurrent_networks_have_no_noise():
    recurrent = networks(DiscreteQNetworkHead(2), rnn_layer=MLPTorso((4,)), post_torso=NoisyMLPTorso((4,)))
    with pytest.raises(MisfitError, match=r"^network\.actor_network\.post_torso=NoisyMLPTorso has noisy layers"):
        check_networks(recurrent, requiring(noisy_layers=True, recurrent=True), "mine")


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


@pytest.mark.parametrize(
    ("config", "head"),
    [(Values, DiscreteQNetworkHead(2)), (Distributions, C51_HEAD), (Values, OwnHead()), (object, CategoricalHead(2))],
)
def test_heads_that_fit_or_declare_nothing_are_accepted(config, head):
    check_networks(networks(head), config, "mine")


@pytest.mark.parametrize(
    ("config", "head", "problem"),
    [
        (Values, CategoricalHead(2), "=CategoricalHead computes a stochastic policy, but system=mine needs action v"),
        (Values, C51_HEAD, "=DistributionalDiscreteQNetwork has num_atoms, vmin, vmax, which system=mine does not r"),
        (Distributions, NOISY_HEAD, "=NoisyDistributionalDuelingQNetwork has sigma_zero, which system=mine does not"),
        (Distributions, DiscreteQNetworkHead(2), "=DiscreteQNetworkHead has no num_atoms, which system=mine sets"),
        (Values, None, " is not set, but system=mine needs it for action values"),
    ],
)
def test_heads_of_another_family_are_refused(config, head, problem):
    with pytest.raises(MisfitError) as caught:
        check_networks(networks(head), config, "mine")
    assert caught.value.problem.startswith(f"network.actor_network.action_head{problem}")


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


def test_layer_normalisation_is_needed_in_the_torsos_of_an_input_layer_too():
    """Convolutions are there, where the last action and the last reward join their output."""
    layers = [DictInput({"observation": MLPTorso((4,), use_layer_norm=normalises)}) for normalises in (True, False)]
    first, second = (networks(DiscreteQNetworkHead(2), ArrayInput(), layer) for layer in layers)
    check_networks(first, NormalisedValues, "mine")
    with pytest.raises(MisfitError, match=r"input_layer\.layers\.observation\.use_layer_norm=false, but system=mine"):
        check_networks(second, NormalisedValues, "mine")
