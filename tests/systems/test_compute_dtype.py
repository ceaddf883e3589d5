"""Tests of `arch.compute_dtype=bfloat16`: torsos compute in bfloat16, and everything that they exchange is float32.

With `jax_enable_x64`, the states of agents are float32, too.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.anakin import make_program
from stoix_like.architectures.types import NO_INPUTS, ProgramSpec
from stoix_like.composition import group_choices
from stoix_like.envs import Discrete
from stoix_like.errors import ConfigError
from stoix_like.networks import torso as torsos
from stoix_like.networks.base import ScannedRNN
from stoix_like.networks.from_config.modules import build_networks
from support import disco
from support.programs import equations
from support.selections import first, select
from support.set_ups import setup_of, trained
from support.systems import environment, needs_examples, schema

# One system of each family, and those with memory.
FAMILIES = {system.partition("/")[0]: system for system in group_choices("system") if "/rec_" not in system}
RECURRENT = [system for system in group_choices("system") if "/rec_" in system and not needs_examples(system)]
SYSTEMS = [*FAMILIES.values(), *RECURRENT]
KEY = jax.random.key(0)
B16, F32, C64 = (jnp.dtype(name) for name in ("bfloat16", "float32", "complex64"))
IMAGE, CNN = (2, 6, 6, 1), {"channel_sizes": (4,), "kernel_sizes": (3,), "strides": (1,), "hidden_sizes": (4,)}
TORSOS = [
    (torsos.MLPTorso((4, 4), use_layer_norm=True, dtype=B16), (2, 3)),
    (torsos.NoisyMLPTorso((4,), dtype=B16), (2, 3)),
    (torsos.BatchRenormMLPTorso((4,), dtype=B16), (2, 3)),
    (torsos.XQCTorso((4,), dtype=B16), (2, 3)),
    (torsos.ResNetTorso(4, 1, dtype=B16), (2, 3)),
    (torsos.SimBaTorso(4, 1, dtype=B16), (2, 3)),
    (torsos.SimBaV2Torso(4, 1, dtype=B16), (2, 3)),
    (torsos.BroTorso(4, 1, dtype=B16), (2, 3)),
    (torsos.DeepResNetTorso(4, 4, dtype=B16), (2, 3)),
    (torsos.CNNTorso(**CNN, use_layer_norm=True, dtype=B16), IMAGE),
    (torsos.CNNTorso(**CNN, sliced=False, dtype=B16), IMAGE),
    (torsos.VisualResNetTorso((4,), (1,), use_layer_norm=True, hidden_sizes=(4,), dtype=B16), IMAGE),
    (torsos.GridTorso(num_symbols=3, hidden_sizes=(4,), dtype=B16), IMAGE),
]


def products(jaxpr):
    """Return the dtype of the first operand of each product of matrices in a jaxpr, and in those inside it."""
    found = [eqn for eqn in equations(jaxpr) if eqn.primitive.name in ("dot_general", "conv_general_dilated")]
    return [eqn.invars[0].aval.dtype for eqn in found]


def dtypes(tree):
    return {leaf.dtype for leaf in jax.tree.leaves(tree)}


def check_module(module, *args, **kwargs):
    """Check that all products are in bfloat16, that all else is float32, and that the results are close to float32."""
    params = module.init(KEY, *args, **kwargs)
    assert dtypes(params) == {F32}

    def loss(params, module=module):
        return sum(jnp.sum(leaf.real**2) for leaf in jax.tree.leaves(module.apply(params, *args, **kwargs)))

    traced = jax.jit(jax.value_and_grad(loss)).trace(params)
    assert set(products(traced.jaxpr.jaxpr)) == {B16}
    assert dtypes(traced.out_info) == {F32}
    outputs, exact = (one.apply(params, *args, **kwargs) for one in (module, module.clone(dtype=None)))
    assert dtypes(outputs) == dtypes(exact) <= {F32, C64}
    # A bfloat16 has 8 bits: a relative error of 2**-9 in each of few roundings of values of about 1.
    for output, expected in zip(jax.tree.leaves(outputs), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(output, expected, atol=0.05, rtol=0.05)
        assert not np.array_equal(output, expected)


@pytest.mark.parametrize(("torso", "shape"), first(1, TORSOS))
def test_torsos_compute_in_bfloat16_with_float32_parameters_gradients_and_embeddings(torso, shape):
    is_grid = isinstance(torso, torsos.GridTorso)
    check_module(torso, jax.random.randint(KEY, shape, 0, 3) if is_grid else jax.random.normal(KEY, shape))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["__call__", "step"])
@pytest.mark.parametrize(
    "cell", ["lstm", "optimised_lstm", "gru", "mgu", "simple", "mingru", "lru", "s5", "mlstm", "gtrxl"]
)
def test_recurrent_cells_compute_in_bfloat16_with_float32_states(cell, method):
    rnn, time = ScannedRNN(8, cell, 2, dtype=B16), () if method == "step" else (5,)
    inputs = jax.random.normal(KEY, (*time, 2, 3)), jnp.zeros((*time, 2), bool)
    check_module(rnn, rnn.initialize_carry(2), inputs, method=method)


def trace(system, dtype):
    """Return the jaxpr and the shapes of the results of the training program, without compiling it."""
    chosen = [f"system={system}", f"arch.compute_dtype={dtype}", *disco.overrides(system)]
    try:
        setup = setup_of(*chosen, environment(system) if schema(system).needs_goals else "env=probe/action")
    except ConfigError:
        setup = setup_of(*chosen, "env=probe/continuous_policy")
    system = setup.config.system
    spec = ProgramSpec(1, setup.plan.envs_per_shard, system.rollout_length, system.warmup_steps)
    program = make_program(lambda hyperparams, inputs: setup.build_system(hyperparams), setup.env, setup.mesh, spec)
    state = jax.eval_shape(program.init, {}, KEY, jax.random.split(KEY, 1), NO_INPUTS)
    traced = program.train.trace(state, {}, np.int32(1), np.bool_(True), NO_INPUTS)
    return traced.jaxpr.jaxpr, (state, traced.out_info)


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_systems_learn_in_float32_from_torsos_in_bfloat16(system):
    jaxpr, results = trace(system, "bfloat16")
    found = products(jaxpr)
    # Products of torsos: to act, for the loss, and two for its gradients; and those of the head.
    assert found.count(B16) >= 4
    assert F32 in found
    exact, expected = trace(system, "float32")
    assert set(products(exact)) == {F32}
    assert jax.tree.map(lambda leaf: leaf.dtype, results) == jax.tree.map(lambda leaf: leaf.dtype, expected)


# With 64 bits, gradients of DreamerV3 and statistics of Disco103 would have them, too.
@pytest.mark.parametrize(
    "system", select((each for each in SYSTEMS if each[:5] not in ("dream", "disco")), [FAMILIES["ppo"]])
)
def test_agents_are_the_same_with_64_bits_enabled(system):
    """What a run wrote without `jax_enable_x64` is loaded with it, and the reverse; and training compiles."""
    _, (state, _) = trace(system, "float32")
    with jax.enable_x64(True):
        _, (wide, _) = trace(system, "float32")
    assert jax.tree.map(lambda leaf: leaf.dtype, wide.shared) == jax.tree.map(lambda leaf: leaf.dtype, state.shared)


def test_only_what_comes_before_the_head_gets_the_dtype_and_has_to_take_it():
    mlp = {"_target_": "stoix_like.networks.torso.MLPTorso", "layer_sizes": [4]}
    chain = {"_target_": "stoix_like.networks.base.chained_torsos", "torso_cfgs": [mlp, mlp]}
    head = {"_target_": "flax.linen.Dense", "features": 2}
    network = build_networks({"q": {"pre_torso": chain, "critic_head": head}}, Discrete(2), dtype="bfloat16").q
    assert [torso.dtype for torso in network.pre_torso.layers] == ["bfloat16", "bfloat16"]
    assert network.critic_head.dtype is None
    message = "network.q.pre_torso=Dropout cannot compute in bfloat16: give it an attribute `dtype"
    with pytest.raises(ConfigError, match=message):
        build_networks({"q": {"pre_torso": {"_target_": "flax.linen.Dropout", "rate": 0.1}}}, Discrete(2), dtype=B16)


@pytest.mark.learn
def test_ppo_learns_cart_pole_in_bfloat16():
    loop = trained("system=ppo/ff_ppo", "env=gymnax/cartpole", "arch.compute_dtype=bfloat16")
    assert loop.summary()["absolute/episode_return_mean"] > 450
