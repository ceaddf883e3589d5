"""Whole networks."""

import functools
import inspect
import re
import subprocess
import sys
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import Discrete
from stoix_like.networks import heads
from stoix_like.networks.base import (
    CompositeNetwork,
    FeedForwardActor,
    FeedForwardActorCritic,
    FeedForwardCritic,
    MultiNetwork,
    RecurrentActor,
    RecurrentCritic,
    ScannedRNN,
    chained_torsos,
)
from stoix_like.networks.distributions import Categorical, mask_logits
from stoix_like.networks.feed_forward import alike, embed_both
from stoix_like.networks.heads import CategoricalHead, MultivariateNormalDiagHead, PolicyValueHead, ScalarCriticHead
from stoix_like.networks.inputs import (
    ArrayInput,
    EmbeddingActionInput,
    EmbeddingActionOnehotInput,
    FeatureInput,
    FlattenInput,
)
from stoix_like.networks.torso import MLPTorso
from support.compiled import run
from support.platforms import take_accelerator_forms

KEY = jax.random.key(0)


VIEW = jax.random.normal(KEY, (2, 3, 5))


MASK = jnp.zeros((2, 3, 4), bool).at[..., 1:3].set(True)


HEADS = [value for value in vars(heads).values() if isinstance(value, type) and issubclass(value, nn.Module)]


CELLS = ("lstm", "optimised_lstm", "gru", "mgu", "simple", "mingru", "lru", "s5", "mlstm", "gtrxl")


def actor(head, input_layer=None):
    return FeedForwardActor(head, MLPTorso((8,)), input_layer or ArrayInput())


class TestFeedForward:
    def test_actor_passes_action_mask_to_head(self):
        network = actor(CategoricalHead(4), FeatureInput("agent_view"))
        observation = Observation(VIEW, MASK)
        params = jax.jit(network.init)(KEY, observation)
        pi = run(network.apply, params, observation)
        np.testing.assert_array_equal(pi.probs[~MASK], 0.0)
        unmasked = run(network.apply, params, Observation(VIEW))
        assert (unmasked.probs > 0).all()
        # head_kwargs take precedence.
        other = run(network.apply, params, observation, head_kwargs={"action_mask": ~MASK})
        np.testing.assert_array_equal(other.probs[MASK], 0.0)

    def test_any_observation_may_have_an_action_mask(self):
        class Grid(NamedTuple):
            grid: jax.Array
            action_mask: jax.Array

        def masked(network, *inputs):
            pi = jax.jit(network.init_with_output)(KEY, *inputs)[0]
            np.testing.assert_array_equal(next(x for x in pi if isinstance(x, Categorical)).probs[~MASK], 0.0)

        grid, observation = FeatureInput("grid"), Grid(VIEW, MASK)
        masked(FeedForwardActorCritic(CategoricalHead(4), ScalarCriticHead(), MLPTorso((8,)), grid), observation)
        network = RecurrentActor(CategoricalHead(4), MLPTorso((8,)), 6, "gru", MLPTorso((8,)), grid)
        masked(network, network.initialize_carry(3), (observation, jnp.zeros((2, 3), bool)))

    def test_heads_for_box_spaces_ignore_action_masks(self):
        observation = Observation(VIEW, MASK)
        for head in (MultivariateNormalDiagHead(2), PolicyValueHead(MultivariateNormalDiagHead(2), ScalarCriticHead())):
            network = FeedForwardActor(head, MLPTorso((8,)))
            jax.jit(network.init_with_output)(KEY, observation)[0]

    def test_policy_value_head_passes_action_mask_on(self):
        observation = Observation(VIEW, MASK)
        network = FeedForwardActor(PolicyValueHead(CategoricalHead(4), ScalarCriticHead()), MLPTorso((8,)))
        pi, _ = jax.jit(network.init_with_output)(KEY, observation)[0]
        np.testing.assert_array_equal(pi.probs[~MASK], 0.0)

    def test_flatten_input_returns_vectors_of_floats(self):
        flatten = FlattenInput(ArrayInput(), 3)
        image = jnp.full((2, 2, 2, 1), 255, jnp.uint8).at[0].set(0)
        np.testing.assert_array_equal(run(flatten.apply, {}, image), [[0.0] * 4, [1.0] * 4])
        assert run(flatten.apply, {}, image).dtype == run(flatten.apply, {}, image.astype(bool)).dtype == jnp.float32
        assert run(flatten.apply, {}, image.astype(jnp.bfloat16)).dtype == jnp.bfloat16

    def test_array_input_accepts_arrays_and_observations(self):
        network = actor(CategoricalHead(4), ArrayInput())
        params = jax.jit(network.init)(KEY, VIEW)
        np.testing.assert_allclose(
            run(network.apply, params, VIEW).logits, run(network.apply, params, Observation(VIEW)).logits, rtol=1e-6
        )

    def test_action_inputs_concatenate_observation_and_action(self):
        continuous = FeedForwardCritic(ScalarCriticHead(), MLPTorso((8,)), EmbeddingActionInput())
        action = {"action": jnp.ones((2, 3, 2))}
        params = jax.jit(continuous.init)(KEY, Observation(VIEW), input_kwargs=action)
        assert run(continuous.apply, params, Observation(VIEW), input_kwargs=action).shape == (2, 3)
        discrete = run(EmbeddingActionOnehotInput(3).apply, {}, jnp.zeros((2, 1)), jnp.asarray([0, 2]))
        np.testing.assert_array_equal(discrete, [[0, 1, 0, 0], [0, 0, 0, 1]])

    def test_actor_critic_returns_masked_policy_and_value(self):
        network = FeedForwardActorCritic(CategoricalHead(4), ScalarCriticHead(), MLPTorso((8,)))
        pi, value = jax.jit(network.init_with_output)(KEY, Observation(VIEW, MASK))[0]
        np.testing.assert_array_equal(pi.probs[~MASK], 0.0)
        assert value.shape == (2, 3)


class PlainHead(nn.Module):
    """A head that declares nothing and takes no mask."""

    @nn.compact
    def __call__(self, embedding):
        return Categorical(logits=nn.Dense(4)(embedding))


class UndeclaredHead(nn.Module):
    """A head that takes a mask without declaring it."""

    action_spaces = (Discrete,)

    @nn.compact
    def __call__(self, embedding, action_mask=None):
        return Categorical(logits=mask_logits(nn.Dense(4)(embedding), action_mask))


class DeclaredHead(UndeclaredHead):
    """A head that declares that it takes a mask, without inheriting from `PolicyHead`."""

    takes_action_mask = True


class TestDeclaredMasks:
    OBSERVATION = Observation(VIEW, MASK)

    @pytest.mark.parametrize(
        ("make_network", "head"),
        [
            (actor, PlainHead()),
            (actor, UndeclaredHead()),
            (actor, PolicyValueHead(PlainHead(), ScalarCriticHead())),
            (actor, CompositeNetwork((MLPTorso((4,)), CategoricalHead(4)))),
            (lambda head: FeedForwardActorCritic(head, ScalarCriticHead(), MLPTorso((8,))), PlainHead()),
        ],
    )
    def test_undeclared_heads_refuse_action_masks(self, make_network, head):
        network = make_network(head)
        jax.jit(network.init)(KEY, Observation(VIEW))
        name = "CompositeNetwork" if isinstance(head, CompositeNetwork) else "PlainHead|UndeclaredHead"
        with pytest.raises(ValueError, match=rf"^action_head=({name}) .* `takes_action_mask = True`"):
            jax.jit(network.init)(KEY, self.OBSERVATION)

    def test_undeclared_heads_of_recurrent_actors_refuse_action_masks(self):
        network = RecurrentActor(PlainHead(), MLPTorso((4,)), 6, "gru", MLPTorso((5,)))
        start, done = ScannedRNN(6, "gru").initialize_carry(3), jnp.zeros((2, 3), bool)
        jax.jit(network.init)(KEY, start, (Observation(VIEW), done))
        with pytest.raises(ValueError, match="^action_head=PlainHead"):
            jax.jit(network.init)(KEY, start, (self.OBSERVATION, done))

    def test_states_of_recurrent_networks_may_be_named(self):
        start, inputs = jnp.zeros((3, 6)), (Observation(VIEW), jnp.zeros((2, 3), bool))
        parts = MLPTorso((4,)), 6, "gru", MLPTorso((5,))
        policy = RecurrentActor(CategoricalHead(4), *parts)
        jax.eval_shape(lambda: policy.init(KEY, policy_hidden_state=start, observation_done=inputs))
        critic = RecurrentCritic(ScalarCriticHead(), *parts)
        jax.eval_shape(lambda: critic.init(KEY, critic_hidden_state=start, observation_done=inputs))

    def test_declared_heads_receive_action_masks(self):
        network = actor(DeclaredHead())
        pi = jax.jit(network.init_with_output)(KEY, self.OBSERVATION)[0]
        np.testing.assert_array_equal(pi.probs[~MASK], 0.0)

    def test_head_kwargs_may_pass_the_mask_to_undeclared_heads(self):
        network = actor(UndeclaredHead())
        params = jax.jit(network.init)(KEY, Observation(VIEW))
        pi = run(network.apply, params, self.OBSERVATION, head_kwargs={"action_mask": ~MASK})
        np.testing.assert_array_equal(pi.probs[MASK], 0.0)

    @pytest.mark.parametrize("head", HEADS)
    def test_heads_of_this_package_declare_what_they_take(self, head):
        takes_action_mask = "action_mask" in inspect.signature(head.__call__).parameters
        assert takes_action_mask == getattr(head, "takes_action_mask", False)
        assert issubclass(head, heads.PolicyHead) == hasattr(head, "action_spaces")


class TestComposition:
    def test_composite_network_applies_layers_in_order(self):
        network = CompositeNetwork((EmbeddingActionInput(), MLPTorso((4,)), ScalarCriticHead()))
        action = jnp.ones((2, 3, 2))
        params = jax.jit(network.init)(KEY, VIEW, action)
        assert run(network.apply, params, VIEW, action).shape == (2, 3)

    def test_multi_network_stacks_outputs(self):
        network = MultiNetwork([FeedForwardCritic(ScalarCriticHead(), MLPTorso((4,))) for _ in range(2)])
        values = jax.jit(network.init_with_output)(KEY, VIEW)[0]
        assert values.shape == (2, 3, 2)
        assert (values[..., 0] != values[..., 1]).all()

    def test_networks_that_share_modules_are_applied_one_by_one_on_gpus(self, monkeypatch):
        torso = MLPTorso((4,))
        network = MultiNetwork([FeedForwardCritic(ScalarCriticHead(), torso) for _ in range(2)])
        params = jax.jit(network.init)(KEY, VIEW)
        expected = jax.jit(network.apply)(params, VIEW)
        take_accelerator_forms(monkeypatch)
        found = jax.jit(network.apply)(params, VIEW)
        np.testing.assert_allclose(found, expected, rtol=1e-6)

    def test_chained_torsos_accept_modules_and_configs(self):
        config = {"_target_": "stoix_like.networks.torso.MLPTorso", "layer_sizes": [7]}
        network = chained_torsos([config, MLPTorso((3,))], activation="tanh")
        assert network.layers[0].activation == "tanh"
        assert jax.jit(network.init_with_output)(KEY, VIEW)[0].shape == (2, 3, 3)
        for configs in (OmegaConf.create([config, {**config, "layer_sizes": [3]}]), [OmegaConf.create(config)]):
            network = chained_torsos(configs, activation="tanh")
            assert network.layers[0].layer_sizes == (7,)
            hash(network)
            assert jax.jit(network.init_with_output)(KEY, VIEW)[0].shape == (2, 3, 3 if len(configs) == 2 else 7)


@pytest.mark.parametrize("cell_type", ["mlstm", "gtrxl"])
def test_heads_divide_the_width_of_a_cell(cell_type):
    with pytest.raises(ValueError, match="num_heads=4 must divide features=30: use a divisor of it"):
        ScannedRNN(30, cell_type).initialize_carry(2)


@pytest.mark.parametrize(
    "cell_type", [name if name in ("gru", "lru") else pytest.param(name, marks=pytest.mark.slow) for name in CELLS]
)
class TestScannedRNN:
    def test_sequence_equals_single_steps_and_restarts_at_resets(self, cell_type):
        rnn = ScannedRNN(8, cell_type)
        x = jax.random.normal(KEY, (6, 2, 3))
        resets = jnp.zeros((6, 2), bool).at[3, 1].set(True)
        start = rnn.initialize_carry(2)
        params = jax.jit(rnn.init)(KEY, start, (x, resets))
        apply = jax.jit(rnn.apply)
        last, outputs = apply(params, start, (x, resets))
        assert outputs.shape == (6, 2, 8)

        state = start
        for t in range(6):
            state, output = apply(params, state, (x[t : t + 1], resets[t : t + 1]))
            np.testing.assert_allclose(output[0], outputs[t], rtol=1e-4, atol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), state, last)

        _, restarted = apply(params, start, (x[3:], jnp.zeros((3, 2), bool)))
        np.testing.assert_allclose(outputs[3:, 1], restarted[:, 1], rtol=1e-4, atol=1e-5)
        assert not np.allclose(outputs[3:, 0], restarted[:, 0], atol=1e-4)

    def test_gradients_stop_at_resets(self, cell_type):
        rnn = ScannedRNN(8, cell_type)
        x = jax.random.normal(KEY, (4, 1, 3))
        start = rnn.initialize_carry((1,))
        resets = jnp.zeros((4, 1), bool).at[2].set(True)
        params = jax.jit(rnn.init)(KEY, start, (x, resets))
        gradient = jax.jit(jax.grad(lambda x: rnn.apply(params, start, (x, resets))[1][2:].sum()))(x)
        np.testing.assert_array_equal(gradient[:2], 0.0)
        assert (gradient[2:] != 0).any()


@pytest.mark.parametrize("cell_type", CELLS)
@pytest.mark.usefixtures("without_type_checks")
def test_flags_that_would_broadcast_are_refused(cell_type):
    """Inputs [6, 2, 3] with flags [6, 2, 1], [6] or [6, 1] in place of [6, 2]; and one step of them."""
    rnn, x = ScannedRNN(8, cell_type), jnp.zeros((6, 2, 3))
    start = rnn.initialize_carry(2)
    for shape in ((6, 2, 1), (6,), (6, 1)):
        with pytest.raises(
            ValueError, match=rf"^resets\.shape={re.escape(str(shape))} must be \[\*B\], where .*\(6, 2\)"
        ):
            jax.eval_shape(rnn.init, KEY, start, (x, jnp.zeros(shape, bool)))
    with pytest.raises(ValueError, match=r"^resets\.shape=\(2, 1\)"):
        jax.eval_shape(functools.partial(rnn.init, method="step"), KEY, start, (x[0], jnp.zeros((2, 1), bool)))


@pytest.mark.slow
@pytest.mark.parametrize("cell_type", ["mlstm", "gtrxl"])
def test_large_states_are_those_of_single_steps_and_lead_to_successors(cell_type):
    rnn = ScannedRNN(8, cell_type, num_layers=2, cell_kwargs={"window": 3} if cell_type == "gtrxl" else None)
    x, following = jax.random.normal(KEY, (2, 6, 2, 3))
    resets = jnp.zeros((6, 2), bool).at[0, 0].set(True).at[3, 1].set(True)
    params = jax.jit(rnn.init)(KEY, rnn.initialize_carry(2), (x, resets))
    start = jax.jit(rnn.apply)(params, rnn.initialize_carry(2), (following, resets))[0]
    assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)

    step = jax.jit(functools.partial(rnn.apply, method="step"))
    state, expected, outputs, successors = start, [], [], []
    for t in range(6):
        state, output = step(params, state, (x[t], resets[t]))
        expected.append(state)
        outputs.append(output)
        successors.append(step(params, state, (following[t], jnp.zeros(2, bool)))[1])
    for every in (1, 2, 4, 6):
        found = run(rnn.apply, params, start, (x, resets), following, every, method="unroll_with_successors")
        states, *_ = run(rnn.apply, params, start, (x, resets), every, method="unroll")
        for some in (states, found[0]):
            jax.tree.map(
                lambda *leaves: assert_close(leaves[0], jnp.stack(leaves[1:])), some, *expected[every - 1 :: every]
            )
        assert_close(found[1], jnp.stack(outputs))
        assert_close(found[2], jnp.stack(successors))


@pytest.mark.slow
@pytest.mark.parametrize("cell_type", ["mlstm", "gtrxl", "s5"])
def test_gradients_of_sequences_are_those_of_single_steps(cell_type):
    rnn = ScannedRNN(8, cell_type, cell_kwargs={"gtrxl": {"window": 3}, "mlstm": {"chunk_size": 4}}.get(cell_type))
    x, resets = jax.random.normal(KEY, (7, 2, 3)), jnp.zeros((7, 2), bool).at[3, 1].set(True)
    start, weights = rnn.initialize_carry(2), jax.random.normal(KEY, (7, 2, 8))
    params = jax.jit(rnn.init)(KEY, start, (x, resets))

    def in_steps(params, x):
        step = functools.partial(rnn.apply, params, method="step")
        return jax.lax.scan(lambda state, inputs: step(state, inputs), start, (x, resets))[1]

    def loss(outputs):
        return jax.jit(jax.grad(lambda *args: jnp.sum(weights * outputs(*args)), (0, 1)))(params, x)

    expected, found = loss(in_steps), loss(lambda params, x: rnn.apply(params, start, (x, resets))[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), expected, found)


@pytest.mark.slow
@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize("cell_type", ["gru", "optimised_lstm", "lru", "s5", "mlstm", "gtrxl"])
def test_a_loop_over_cells_computes_what_one_after_the_other_does(cell_type, width):
    x, resets = jax.random.normal(KEY, (5, 2, width)), jnp.zeros((5, 2), bool).at[2, 1].set(True)
    rnn, lone = ScannedRNN(8, cell_type, num_layers=4), ScannedRNN(8, cell_type)
    start = rnn.initialize_carry(2)
    params = jax.jit(rnn.init)(KEY, start, (x, resets))

    def looped(params, x, resets, method):
        states, outputs = run(rnn.apply, params, start, (x, resets), method=method)
        return list(states), outputs

    def one_by_one(params, x, resets, method):
        states = []
        for i, state in enumerate(start):
            own = {"params": {"cells_0": params["params"][f"cells_{i}"]}}
            state, x = run(lone.apply, own, state, (x, resets), method=method)
            states.append(state)
        return states, x

    for inputs in ((x, resets, "unroll"), (x[0], resets[0], "step")):
        found, expected = looped(params, *inputs), one_by_one(params, *inputs)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)
    first, *others = (jax.tree.leaves(params["params"][f"cells_{i}"]) for i in range(1, 4))
    assert all(any((a != b).any() for a, b in zip(first, other, strict=True)) for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("cell_type", CELLS)
def test_programs_do_not_grow_with_the_number_of_cells(cell_type):
    def sizes(num_layers):
        rnn = ScannedRNN(8, cell_type, num_layers)
        start, inputs = rnn.initialize_carry(2), (jnp.ones((5, 2, 8)), jnp.zeros((5, 2), bool))
        params = jax.eval_shape(rnn.init, KEY, start, inputs)
        update = jax.make_jaxpr(jax.grad(lambda params: rnn.apply(params, start, inputs)[1].sum()))(params)
        init = jax.make_jaxpr(rnn.init)(KEY, start, inputs)
        return [len(str(program).splitlines()) for program in (update, init)]

    # Each further cell has its parameters and its state to be stacked, and their gradients to be unstacked.
    for few, more, one in zip(sizes(4), sizes(8), sizes(1), strict=True):
        assert (more - few) / 4 < one / 2


@pytest.mark.parametrize("cell_type", CELLS)
def test_parameters_and_states_of_cells_stay_float32_where_numbers_are_float64(cell_type):
    rnn = ScannedRNN(4, cell_type)
    with jax.enable_x64(True):

        def process(x, resets):
            return rnn.init_with_output(jax.random.key(0), rnn.initialize_carry(2), (x, resets))

        leaves = jax.tree.leaves(jax.eval_shape(process, jnp.zeros((3, 2, 5), jnp.float32), jnp.zeros((3, 2), bool)))
    assert {leaf.dtype for leaf in leaves} <= {jnp.dtype(jnp.float32), jnp.dtype(jnp.complex64)}


# The states of the others are complex, or are computed in float32 alone.
@pytest.mark.parametrize("cell_type", [cell for cell in CELLS if cell not in ("lru", "s5", "mlstm")])
@pytest.mark.parametrize("narrow", ["state", "params"])
def test_states_keep_their_dtype(cell_type, narrow):
    """As the carry of a loop must, where parameters and inputs are of another one."""
    rnn = ScannedRNN(4, cell_type)

    def process(x, resets):
        state = rnn.initialize_carry(2)
        trees = {"state": state, "params": rnn.init(KEY, state, (x, resets))}
        trees[narrow] = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), trees[narrow])
        x = x.astype(jnp.bfloat16 if narrow == "params" else jnp.float32)
        return jax.lax.scan(lambda state, _: rnn.apply(trees["params"], state, (x, resets)), trees["state"], length=2)

    jax.eval_shape(process, jnp.ones((3, 2, 5)), jnp.zeros((3, 2), bool))


@pytest.mark.parametrize(
    ("network", "head"), [(RecurrentActor, CategoricalHead(4)), (RecurrentCritic, ScalarCriticHead())]
)
def test_recurrent_networks_return_state_and_head_output(network, head):
    module = network(head, MLPTorso((4,)), 6, "gru", MLPTorso((5,)))
    start = ScannedRNN(6, "gru").initialize_carry(3)
    inputs = Observation(VIEW, MASK), jnp.zeros((2, 3), bool)
    params = jax.jit(module.init)(KEY, start, inputs)
    state, output = run(module.apply, params, start, inputs)
    assert state.shape == (3, 6)
    if network is RecurrentActor:
        np.testing.assert_array_equal(output.probs[~MASK], 0.0)
    else:
        assert output.shape == (2, 3)


@pytest.mark.slow
def test_networks_import_neither_hydra_nor_orbax_nor_omegaconf():
    modules = "import sys, stoix_like.networks.heads, stoix_like.networks.base; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", modules], capture_output=True, text=True, check=True).stdout
    assert not {"hydra", "orbax", "omegaconf"} & set(imported.split())


@pytest.mark.parametrize(("sizes", "other", "expected"), [((8,), (8,), True), ((8,), (4,), False), ((), (), False)])
def test_torsos_of_the_same_layers_are_evaluated_together(sizes, other, expected):
    actor = FeedForwardActor(CategoricalHead(2), MLPTorso(sizes))
    critic = FeedForwardCritic(ScalarCriticHead(), MLPTorso(other))
    assert alike(actor, critic) == expected
    if expected:
        x = jnp.ones((3, 5))
        params = [network.init(KEY, x) for network in (actor, critic)]
        each = [run(network.apply, p, x, method="embed") for network, p in zip((actor, critic), params, strict=True)]
        np.testing.assert_allclose(embed_both(actor, *params, x), jnp.stack(each), rtol=1e-6)
