"""Networks from their configuration."""

import re

import flax.linen as nn
import jax
import jax.nn
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from stoix_like.base_types import Observation
from stoix_like.composition import config_dir
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.errors import ConfigError
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic
from stoix_like.networks.build.modules import build_networks, choices, instantiate
from stoix_like.networks.heads import (
    BetaDistributionHead,
    CategoricalHead,
    DeterministicHead,
    NormalAffineTanhDistributionHead,
)
from stoix_like.networks.inputs import DictInput, EmbeddingActionInput, TorsoInput
from stoix_like.networks.recurrent import MinGRUCell
from stoix_like.networks.torso import MLPTorso
from stoix_like.networks.utils import parse_activation_fn, parse_initializer, parse_rnn_cell
from support.network_files import config

KEY = jax.random.key(0)


DISCRETE, MULTI = Discrete(3), MultiDiscrete((2, 3))


BOUNDED, UNBOUNDED = Box(-2.0, 2.0, (2,)), Box(-np.inf, np.inf, (2,))


HEADS = "stoix_like.networks.heads."


def with_head(target, **arguments):
    loaded = config()
    loaded.actor_network.action_head = {"_target_": target, **arguments}
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "space"),
    [*(("mlp", space) for space in (DISCRETE, MULTI, BOUNDED, UNBOUNDED)), ("cnn", DISCRETE), ("cnn", BOUNDED)],
)
def test_default_networks_support_every_action_space(name, space):
    networks = build_networks(config(name), space)
    actor_parts, critic_parts = networks.actor_network, networks.critic_network
    actor = FeedForwardActor(actor_parts.action_head, actor_parts.pre_torso, actor_parts.input_layer)
    critic = FeedForwardCritic(critic_parts.critic_head, critic_parts.pre_torso, critic_parts.input_layer)
    observation = Observation(jnp.ones((2, 3, 10, 10, 4) if name == "cnn" else (2, 3, 4)))

    @jax.jit
    def act(key):
        pi = jax.jit(actor.init_with_output)(key, observation)[0]
        value = jax.jit(critic.init_with_output)(key, observation)[0]
        sample = pi.sample(seed=key)
        return sample, pi.log_prob(sample), pi.entropy(seed=key), value

    sample, *scalars = act(KEY)
    assert sample.shape == (2, 3, *space.shape)
    assert all(scalar.shape == (2, 3) for scalar in scalars)


def test_lists_become_tuples_and_modules_are_hashable():
    networks = build_networks(config("mlp_continuous"), BOUNDED)
    assert networks.actor_network.pre_torso.layer_sizes == (64, 64)
    assert isinstance(networks.actor_network.action_head, NormalAffineTanhDistributionHead)
    assert networks.actor_network.action_head.maximum == (2.0, 2.0)
    hash(networks.actor_network.action_head)


def test_plain_dicts_are_accepted():
    plain = OmegaConf.to_container(config())
    assert isinstance(build_networks(plain, DISCRETE).actor_network.action_head, CategoricalHead)


def test_configured_arguments_override_the_action_space():
    head = build_networks(with_head(HEADS + "NormalAffineTanhDistributionHead", minimum=-0.5), BOUNDED)
    assert head.actor_network.action_head.minimum == -0.5
    assert head.actor_network.action_head.maximum == (2.0, 2.0)


def test_arguments_of_the_head_before_are_left_out_and_typos_are_refused():
    path, notes = "stoix_like.networks.heads.BetaDistributionHead", []
    head = {"_target_": path, "min_scale": 1e-3, "kernel_init": "orthogonal(0.01)"}
    built = build_networks({"actor_network": {"action_head": head}}, Box(-1.0, 1.0, (2,)), notes=notes)
    assert isinstance(built.actor_network.action_head, BetaDistributionHead)
    assert notes == ["network.actor_network.action_head: left out min_scale, which BetaDistributionHead does not take"]
    with pytest.raises(ConfigError, match="network.actor_network.action_head.min_scal is not an argument"):
        build_networks({"actor_network": {"action_head": {**head, "min_scal": 1.0}}}, Box(-1.0, 1.0, (2,)))


@pytest.mark.parametrize("kind", ["head", "torso"])
def test_choices_name_what_a_configuration_may_name(kind):
    presets = "".join(path.read_text() for path in (config_dir() / "network").rglob("*.yaml"))
    targets = set(re.findall(rf"_target_: (stoix_like\.networks\.{kind}s?\.\w*{kind})\b", presets, re.IGNORECASE))
    assert targets
    assert targets <= choices(kind).keys()


def test_bounds_are_passed_only_for_bounded_spaces():
    for space, minimum in ((BOUNDED, (-2.0, -2.0)), (UNBOUNDED, None)):
        head = build_networks(with_head(HEADS + "DeterministicHead"), space).actor_network.action_head
        assert isinstance(head, DeterministicHead)
        assert head.minimum == minimum


def test_nested_targets_values_and_partials_are_built():
    nested = {
        "action_head": {
            "_target_": HEADS + "PolicyValueHead",
            "action_head": {"_target_": HEADS + "CategoricalHead"},
            "critic_head": {"_target_": HEADS + "ScalarCriticHead"},
        },
        "torsos": [{"_target_": "stoix_like.networks.torso.MLPTorso", "layer_sizes": [4]}],
        "later": {"_target_": HEADS + "LinearHead", "_partial_": True, "kernel_init": "orthogonal(1.0)"},
        "width": 3,
    }
    networks = build_networks(nested, DISCRETE)
    assert networks.action_head.action_head.action_dim == 3
    assert networks.torsos[0].layer_sizes == (4,)
    assert networks.later(output_dim=2).output_dim == 2
    assert networks.width == 3


@pytest.mark.parametrize(
    ("head", "space", "advice"),
    [
        ("CategoricalHead", BOUNDED, "bounded continuous actions.*network=mlp_continuous"),
        ("CategoricalHead", UNBOUNDED, "unbounded continuous actions.*network=mlp"),
        ("CategoricalHead", MULTI, r"sizes \(2, 3\).*network=mlp"),
        ("NormalAffineTanhDistributionHead", DISCRETE, "3 discrete actions.*network=mlp"),
        ("NormalAffineTanhDistributionHead", UNBOUNDED, "unbounded continuous actions.*network=mlp"),
        ("MultivariateNormalDiagHead", DISCRETE, "3 discrete actions.*network=mlp"),
        ("DiscreteQNetworkHead", BOUNDED, "bounded continuous"),
        ("MultiDiscreteHead", DISCRETE, "3 discrete actions"),
    ],
)
def test_heads_refuse_unsupported_action_spaces(head, space, advice):
    with pytest.raises(ConfigError, match=rf"^network\.actor_network\.action_head=.*{head} does not fit .*{advice}"):
        build_networks(with_head(HEADS + head), space)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor_network__pre_torso__activation": "rleu"}, r"pre_torso\.activation='rleu' is not .*'relu'"),
        ({"actor_network__pre_torso__layersizes": [3]}, r"pre_torso\.layersizes is not an argument.*'layer_sizes'"),
        ({"actor_network__pre_torso__kernel_init": "ortho"}, r"kernel_init='ortho' is not .*initialiser.*'orthogonal'"),
        ({"actor_network__pre_torso___target_": "stoix_like.networks.torso.MLPTors"}, r"_target_=.*'MLPTorso'"),
        ({"actor_network__pre_torso___target_": "stoix_like.networks.torsos.MLPTorso"}, r"cannot be imported"),
        ({"actor_network__pre_torso___target_": "MLPTorso"}, r"pre_torso\._target_=MLPTorso cannot be imported"),
        ({"critic_network__critic_head___target_": HEADS + "LinearHead"}, r"critic_head=.*cannot be built.*output_dim"),
    ],
)
def test_errors_name_the_key(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build_networks(config(**changes), DISCRETE)
    assert str(caught.value).startswith("network.")
    assert "\n" not in str(caught.value)


class TestNames:
    def test_activations_of_jax_are_known(self):
        not_activations = {"dot_product_attention", "get_scaled_dot_general_config", "initializers", "log1mexp"}
        not_activations |= {"logmeanexp", "logsumexp", "one_hot", "scaled_dot_general", "scaled_matmul"}
        public = {name for name in dir(jax.nn) if not name.startswith("_")} - not_activations
        for name in public:
            assert callable(parse_activation_fn(name)), name
        assert parse_activation_fn("relu") is jax.nn.relu
        assert parse_activation_fn("none")(1.5) == 1.5

    def test_initialisers_are_found_by_name(self):
        for name in ("orthogonal", "orthogonal(1.41)", "lecun_normal", "zeros", "ones", "truncated_normal(0.1)"):
            assert parse_initializer(name)(KEY, (3, 4), jnp.float32).shape == (3, 4)
        np.testing.assert_allclose(parse_initializer("constant(2)")(KEY, (2,), jnp.float32), 2.0)
        assert parse_initializer(jax.nn.initializers.zeros) is jax.nn.initializers.zeros

    @pytest.mark.parametrize("name", ["orthogonl", "orthogonal(x)", "normal(1, 2, 3, 4, 5)", "", "orthogonal(1"])
    def test_invalid_initialisers_are_refused(self, name):
        with pytest.raises(ConfigError, match="initialiser"):
            parse_initializer(name)

    def test_recurrent_cells_are_found_by_name(self):
        assert parse_rnn_cell("mingru") is MinGRUCell
        with pytest.raises(ConfigError, match="'gru'"):
            parse_rnn_cell("grru")


TORSO, CRITIC = "actor_network__pre_torso__", "critic_network__critic_head__"


def test_lists_of_convolutions_must_have_the_same_length():
    with pytest.raises(ConfigError, match=r"network\.actor_network\.pre_torso=.*strides=\[1\]: use lists of the same"):
        build_networks(config("cnn", **{f"{TORSO}strides": [1]}), DISCRETE)


@pytest.mark.parametrize(
    ("cell", "width", "message"),
    [
        ("s5", 10**9, "cell_kwargs.states=null is half of hidden_state_dim=1000000000: set network.cell_kwargs.states"),
        ("s5", 10**4, "cell_kwargs.states=null is half of hidden_state_dim=10000: set network.cell_kwargs.states to"),
        (
            "gtrxl",
            10**9,
            "cell_kwargs.window=32 times hidden_state_dim=1000000000 numbers are the state of a cell: use",
        ),
    ],
)
def test_widths_at_which_the_host_computes_for_minutes_are_refused(cell, width, message):
    node = {"_target_": "stoix_like.networks.base.ScannedRNN", "cell_type": cell, "hidden_state_dim": width}
    with pytest.raises(ConfigError, match=re.escape(message)):
        instantiate(node)


def test_shapes_of_a_wide_cell_take_no_time():
    """The check of the memory, which follows, refuses what does not fit."""
    kwargs = {"states": 8}
    node = {"_target_": "stoix_like.networks.base.ScannedRNN", "cell_type": "s5", "hidden_state_dim": 10**9}
    rnn = instantiate({**node, "cell_kwargs": kwargs})
    inputs = jnp.zeros((1, 1, 4)), jnp.zeros((1, 1), bool)
    shapes = jax.eval_shape(rnn.init, jax.random.key(0), rnn.initialize_carry(1), inputs)
    assert max(leaf.size for leaf in jax.tree.leaves(shapes)) == 10**18


@pytest.mark.parametrize(
    ("cell", "kwargs", "message"),
    [
        ("gtrxl", {"windw": 4}, "cell_kwargs.windw is not an option of cell_type=gtrxl: did you mean 'window'"),
        ("gtrxl", {"window": 0}, "cell_kwargs.window=0 is out of range"),
        ("mlstm", {"num_heads": 3}, "cell_kwargs.num_heads=3 must divide hidden_state_dim=8: use a divisor"),
        ("mlstm", {"forget_gate": "tanh"}, "cell_kwargs.forget_gate=tanh is not known"),
        ("gru", {"window": 4}, "cell_kwargs.window is not an option of cell_type=gru: it has none"),
        ("gru", 3, "cell_kwargs=3 must be options by name: use network.cell_kwargs={name: value}, or null"),
        ("s5", "states", "cell_kwargs=states must be options by name"),
        ("s5", {"features": 4}, "cell_kwargs.features is not an option of cell_type=s5"),
        ("s5", {"dt_min": 1.0}, r"cell_kwargs.dt_min=1.0 must not exceed dt_max=0.1: use a smaller dt_min"),
    ],
)
def test_options_that_cells_do_not_have_are_refused(cell, kwargs, message):
    node = {"_target_": "stoix_like.networks.base.ScannedRNN", "cell_type": cell, "hidden_state_dim": 8}
    with pytest.raises(ConfigError, match=re.escape(message)):
        instantiate({**node, "cell_kwargs": kwargs})
    assert instantiate({**node, "cell_kwargs": {}}).initialize_carry(2) is not None


class Custom(nn.Module):
    """A torso that computes in float32 alone."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"pre_torso": Custom()}, "pre_torso"),
        ({"post_torso": Custom()}, "post_torso"),
        ({"rnn_layer": Custom()}, "rnn_layer"),
        ({"input_layer": DictInput({"grid": Custom()})}, "input_layer.layers.grid"),
        ({"input_layer": EmbeddingActionInput(TorsoInput(Custom()))}, "input_layer.input_layer.pre_torso"),
    ],
)
def test_torsos_without_a_dtype_are_refused_wherever_they_are(part, place):
    network = {"q_network": {"pre_torso": MLPTorso((4,)), **part}}
    build_networks(network, DISCRETE)
    with pytest.raises(ConfigError, match=rf"^network\.q_network\.{place}=Custom cannot compute in bfloat16: give it"):
        build_networks(network, DISCRETE, dtype="bfloat16")


def test_a_network_that_is_missing_is_answered_with_those_that_are_there():
    networks = build_networks({"actor_network": {}, "critic_network": {}}, Discrete(2), None)
    with pytest.raises(AttributeError, match="no q_network in network, only actor_network, critic_network: choose"):
        _ = networks.q_network
    assert not hasattr(networks, "q_network")
