import math
import re
from pathlib import Path

import jax
import jax.nn
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete
from stoix_like.errors import ConfigError
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic
from stoix_like.networks.heads import CategoricalHead, DeterministicHead, NormalAffineTanhDistributionHead
from stoix_like.networks.inputs import FeatureInput
from stoix_like.networks.recurrent import MinGRUCell
from stoix_like.networks.utils import build_networks, parse_activation_fn, parse_initializer, parse_rnn_cell

KEY = jax.random.key(0)
CONFIGS = Path(__file__).parents[2] / "configs" / "network"
DISCRETE, MULTI = Discrete(3), MultiDiscrete((2, 3))
BOUNDED, UNBOUNDED = Box(-2.0, 2.0, (2,)), Box(-np.inf, np.inf, (2,))
HEADS = "stoix_like.networks.heads."
FEATURE = "stoix_like.networks.inputs.FeatureInput"


def config(name="mlp", **changes):
    loaded = OmegaConf.load(CONFIGS / f"{name}.yaml")
    for key, value in changes.items():
        OmegaConf.update(loaded, key.replace("__", "."), value)
    return loaded


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


@pytest.mark.parametrize("shape", [(4,), (10, 5), (10, 10, 4)])
def test_images_are_flattened_for_vector_torsos(shape):
    small = config("mlp", actor_network__pre_torso__layer_sizes=[8])
    networks = build_networks(small, DISCRETE, Box(0.0, 1.0, shape)).actor_network
    actor = FeedForwardActor(networks.action_head, networks.pre_torso, networks.input_layer)
    policy, params = jax.jit(actor.init_with_output)(jax.random.key(0), Observation(jnp.ones((3, 2, *shape))))
    assert params["params"]["torso"]["Dense_0"]["kernel"].shape[0] == math.prod(shape)
    assert policy.sample(seed=jax.random.key(1)).shape == (3, 2)


@pytest.mark.parametrize("shape", [(10, 5), (10, 10, 4)])
def test_convolutions_accept_images_with_and_without_channels(shape):
    small = config("cnn", actor_network__pre_torso__hidden_sizes=[8])
    networks = build_networks(small, DISCRETE, Box(0.0, 1.0, shape)).actor_network
    actor = FeedForwardActor(networks.action_head, networks.pre_torso, networks.input_layer)
    policy, _ = jax.jit(actor.init_with_output)(jax.random.key(0), Observation(jnp.ones((3, *shape))))
    assert policy.sample(seed=jax.random.key(1)).shape == (3,)


def test_convolutions_refuse_vectors():
    with pytest.raises(ConfigError, match=r"network.actor_network.pre_torso does not fit .*\(4,\): choose network=mlp"):
        build_networks(config("cnn"), DISCRETE, Box(0.0, 1.0, (4,)))


@pytest.mark.parametrize(
    ("space", "num_symbols", "has_channels"),
    [(Box(0, 10, (5, 5, 3), jnp.uint8), 11, True), (Box(-1, 12, (5, 5), jnp.int32), 13, False)],
)
def test_grids_have_as_many_symbols_as_the_observation_space(space, num_symbols, has_channels):
    torso = build_networks(config("grid"), DISCRETE, space).actor_network.pre_torso
    assert (torso.num_symbols, torso.has_channels) == (num_symbols, has_channels)
    configured = config("grid", actor_network__pre_torso__num_symbols=7)
    assert build_networks(configured, DISCRETE, space).actor_network.pre_torso.num_symbols == 7


@pytest.mark.parametrize("feature", ["agent_view.grid", "agent_view"])
def test_grids_within_dictionaries_have_as_many_symbols_as_their_entry(feature):
    space = Dict({"grid": Box(0, 40, (5, 5), jnp.int32), "position": Box(0.0, 1.0, (2,))})
    block = OmegaConf.to_container(config("grid").actor_network)
    vector = {"_target_": "stoix_like.networks.torso.MLPTorso", "layer_sizes": [4]}
    if feature == "agent_view":
        layers = {"grid": block["pre_torso"], "position": vector}
        block["input_layer"] = {"_target_": "stoix_like.networks.inputs.DictInput", "layers": layers}
        block["pre_torso"] = vector
    else:
        block["input_layer"] = {"_target_": FEATURE, "feature_name": feature}
    actor = build_networks({"actor_network": block}, DISCRETE, space).actor_network
    torso = actor.input_layer.layers["grid"] if feature == "agent_view" else actor.pre_torso
    assert (torso.num_symbols, torso.has_channels) == (41, False)


def test_integers_without_a_largest_value():
    """Other networks do not need one."""
    space = Box(0, np.inf, (5, 5), jnp.int32)
    build_networks(config("mlp"), DISCRETE, space)
    torso = build_networks(config("grid"), DISCRETE, space).actor_network.pre_torso
    with pytest.raises(ValueError, match=r"num_symbols=None, .*: set num_symbols"):
        jax.jit(torso.init)(jax.random.key(0), jnp.zeros((5, 5), jnp.int32))


@pytest.mark.parametrize(
    ("target", "name", "size"),
    [
        ("torso.ResNetTorso", "hidden_size", 0),
        ("torso.ResNetTorso", "num_blocks", -1),
        ("torso.ResNetTorso", "num_blocks", 1001),
        ("layers.StackedRNN", "num_layers", 1e9),
        ("torso.VisualResNetTorso", "blocks_per_group", [2, 1001]),
        ("torso.VisualResNetTorso", "channels_per_group", [16, 0]),
        ("torso.VisualResNetTorso", "blocks_per_group", [1.5]),
        ("heads.ImplicitQuantileCriticHead", "num_cosines", 0),
        ("heads.ImplicitQuantileCriticHead", "num_values", 0),
        ("heads.LinearHead", "output_dim", 0),
        ("layers.NoisyLinear", "features", None),
    ],
)
def test_sizes_out_of_range_are_refused(target, name, size):
    plain = {"part": {"_target_": f"stoix_like.networks.{target}", name: size}}
    with pytest.raises(ConfigError, match=rf"network\.part\.{name}=.* is out of range"):
        build_networks(plain, DISCRETE)


def test_optional_sizes_may_be_none():
    plain = {"head": {"_target_": HEADS + "ImplicitQuantileCriticHead", "num_values": None}}
    assert build_networks(plain, DISCRETE).head.num_values is None


def test_initialisers_of_noisy_layers_are_checked():
    plain = {"layer": {"_target_": "stoix_like.networks.layers.NoisyLinear", "features": 3, "bias_init": "zeroes"}}
    with pytest.raises(ConfigError, match=r"network\.layer\.bias_init='zeroes' is not a known initialiser"):
        build_networks(plain, DISCRETE)


@pytest.mark.parametrize("sizes", [[0], [64, -1], [1.5]])
def test_layer_sizes_must_be_positive(sizes):
    plain = {"actor_network": {"pre_torso": {"_target_": "stoix_like.networks.torso.MLPTorso", "layer_sizes": sizes}}}
    with pytest.raises(ConfigError, match="network.actor_network.pre_torso.layer_sizes"):
        build_networks(plain, DISCRETE)


TORSO, CRITIC = "actor_network__pre_torso__", "critic_network__critic_head__"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {f"{TORSO}use_layer_norm": "no"},
            r"pre_torso\.use_layer_norm=no has the wrong type: it must be true or false",
        ),
        ({f"{TORSO}use_layer_norm": 0}, r"pre_torso\.use_layer_norm=0 .*true or false"),
        ({f"{TORSO}layer_sizes": 128}, r"pre_torso\.layer_sizes=128 .*a list of integers: write \[128\]"),
        ({f"{TORSO}layer_sizes": None}, r"pre_torso\.layer_sizes=null .*integers"),
        ({f"{TORSO}layer_sizes": "[64]"}, r"pre_torso\.layer_sizes=\[64\] "),
        ({f"{TORSO}activation": None}, r"pre_torso\.activation=null .*it must be a string, such as relu"),
        ({f"{TORSO}activation": 0.5}, r"pre_torso\.activation='0.5' is not a known activation: choose from celu"),
        ({f"{TORSO}activation": ["relu"]}, r"pre_torso\.activation=\[relu\] .*it must be a string, such as relu"),
        ({f"{TORSO}kernel_init": 0.5}, r"pre_torso\.kernel_init='0.5' is not a known initialiser: choose from"),
        ({f"{TORSO}kernel_init": None}, r"pre_torso\.kernel_init=null .*it must be a string"),
        ({f"{TORSO}_partial_": "no"}, r"pre_torso\._partial_=no .*true or false"),
        (
            {"actor_network__input_layer": {"_target_": FEATURE, "feature_name": None}},
            r"input_layer\.feature_name=null .*a string",
        ),
        ({"actor_network__pre_torso": None}, r"pre_torso=null is not a module: use .*torso\.MLPTorso"),
        ({"actor_network__action_head": 3}, r"action_head=3 is not a module: use .*heads\.policy_head"),
        (
            {"critic_network__critic_head": {"kernel_init": "zeros"}},
            r"critic_head={kernel_init: zeros} is not a module",
        ),
    ],
)
def test_values_of_the_wrong_type_are_refused_by_key(changes, message):
    base = OmegaConf.to_container(config())
    for key, value in changes.items():
        *parents, last = (
            key.split("__") if not key.endswith("_partial_") else ["actor_network", "pre_torso", "_partial_"]
        )
        node = base
        for parent in parents:
            node = node[parent]
        node[last] = value
    with pytest.raises(ConfigError, match=rf"^network\.\w+\.{message}") as caught:
        build_networks(base, DISCRETE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("heads.MultivariateNormalDiagHead", r"min_scale=small .*it must be a number$"),
        ("heads.LinearHead", r"pre_shape=3 .*it must be a list of integers or null$"),
    ],
)
def test_fields_of_heads_are_checked_by_their_annotations(block, message):
    name, value = re.match(r"(\w+)=(\w+)", message).groups()
    plain = {"head": {"_target_": f"stoix_like.networks.{block}", name: int(value) if value.isdigit() else value}}
    if "Linear" in block:
        plain["head"]["output_dim"] = 2
    with pytest.raises(ConfigError, match=rf"^network\.head\.{message}"):
        build_networks(plain, UNBOUNDED)


def test_values_are_converted_to_the_annotations():
    torso = build_networks(config(**{f"{TORSO}layer_sizes": [1e2, 64.0]}), DISCRETE).actor_network.pre_torso
    assert [type(size) for size in torso.layer_sizes] == [int, int]
    plain = {
        "torso": {
            "_target_": "stoix_like.networks.torso.CNNTorso",
            "channel_sizes": [2, 2],
            "kernel_sizes": [[3, 2.0], 3],
            "strides": [1, 1],
            "kernel_init": "lecun_normal",
        },
        "layer": {"_target_": "stoix_like.networks.layers.NoisyLinear", "features": 2, "sigma_zero": "5e-1"},
        "dense": {"_target_": "flax.linen.Dense", "features": 2.0, "use_bias": False, "dtype": "bfloat16"},
    }
    networks = build_networks(plain, DISCRETE)
    assert networks.torso.kernel_sizes == ((3, 2), 3)
    assert networks.layer.sigma_zero == 0.5
    assert (networks.dense.features, networks.dense.use_bias, networks.dense.dtype) == (2, False, "bfloat16")


def test_lists_of_convolutions_must_have_the_same_length():
    with pytest.raises(ConfigError, match=r"network\.actor_network\.pre_torso=.*strides=\[1\]: use lists of the same"):
        build_networks(config("cnn", **{f"{TORSO}strides": [1]}), DISCRETE)


def test_a_feature_that_the_observation_lacks_is_refused_with_those_that_it_has():
    for name in ("obs", "step_count"):
        with pytest.raises(
            AttributeError, match=rf"feature_name={name} is not part of the observation: use agent_view\b"
        ):
            FeatureInput(name).apply({}, Observation(jnp.ones(3)))
