import collections

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stoix_like.utils.accelerate import packing
from stoix_like.utils.accelerate.packing import Packed, pack, unpack
from support.compiled import run
from support.platforms import take_accelerator_forms

STEPS = {
    "view": np.arange(24, dtype=np.float32).reshape(3, 4, 2),
    "action": np.array([[-1, 2, 2**31 - 1, 0]] * 3, np.int32),
    "done": np.array([[True, False, False, True]] * 3),
    "pixels": np.arange(48, dtype=np.uint8).reshape(3, 4, 4),
    "nothing": np.full((3, 4), np.nan, np.float32),
}


@pytest.fixture
def accelerator(monkeypatch):
    take_accelerator_forms(monkeypatch)


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("apart", [(), (2,)])
def test_a_packed_tree_keeps_every_bit(apart):
    packed = jax.jit(lambda tree: pack(tree, 2, lambda leaf: leaf.shape[2:] != apart or not apart))(STEPS)
    # Bytes stay apart, and with them what is not chosen.
    assert packed.rows.shape == (3, 4, 3 if apart else 5)
    assert packed.rows.dtype == jnp.uint32
    assert_equal(run(unpack, packed), STEPS)


def test_floats_alone_stay_floats_and_have_gradients():
    tree = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32)}
    gradient = jax.grad(lambda packed: jnp.sum(unpack(packed)["w"] ** 2) + 3.0 * jnp.sum(unpack(packed)["b"]))
    found = jax.jit(lambda tree: unpack(gradient(pack(tree))))(tree)
    assert_equal(found, {"w": 2 * tree["w"], "b": 3 * tree["b"]})


def test_leading_axes_of_loops_come_before_those_of_leaves():
    x = np.arange(3, dtype=np.float32)
    _, metrics = run(jax.lax.scan, lambda carry, x: (carry, pack({"a": x, "b": 2.0 * x})), (), x)
    assert_equal(run(unpack, metrics), {"a": x, "b": 2 * x})


@pytest.mark.usefixtures("accelerator")
def test_adam_treats_packed_parameters_as_it_treats_a_tree():
    params = ({"w": np.arange(6).reshape(2, 3), "b": np.ones(3)}, {"w": np.ones((2, 2))})
    params, grads = jax.device_put((jax.tree.map(np.float32, params), jax.tree.map(np.cos, params)))
    optim = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(optax.linear_schedule(0.1, 0.0, 10)))

    def steps(params, state, grads):
        def step(_, carry):
            updates, state = optim.update(grads, carry[1], carry[0])
            return optax.apply_updates(carry[0], updates), state

        return packing.fori_loop(0, 3, step, (params, state))

    state = run(optim.init, params)
    expected = run(steps, params, state, grads)
    packed = run(lambda: steps(*map(packing.pack_params, (params, state, grads))))
    assert isinstance(packed[0][0], Packed)
    found = run(unpack, packed)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.usefixtures("accelerator")
def test_a_loop_carries_scalars_in_one_array_and_leaves_the_rest():
    first = {"count": np.int32(3), "on": np.bool_(True), "x": jnp.arange(2.0), "key": jax.random.key(0)}

    def body(i, carry):
        assert not isinstance(carry, Packed)
        return carry | {"count": carry["count"] + i, "on": ~carry["on"]}

    found = run(packing.fori_loop, 0, 3, body, first)
    assert (int(found["count"]), bool(found["on"])) == (6, False)
    # One entry of a tuple may differ between shards that share another one.
    assert [isinstance(entry, Packed) for entry in run(packing.pack_scalars, (first, 2.0))] == [True, True]
    assert isinstance(run(packing.pack_scalars, (first, 2.0), False), Packed)
    assert_equal(run(packing.fori_loop, 0, 3, body, first, False)["count"], found["count"])
    last, outputs = run(packing.scan, lambda carry, x: (carry + x, carry), jnp.float32(1.0), jnp.arange(3.0))
    assert float(last) == 4.0
    np.testing.assert_array_equal(outputs, [1.0, 1.0, 2.0])


@pytest.mark.usefixtures("accelerator")
def test_fields_of_named_tuples_and_of_dataclasses_are_replaced():
    @flax.struct.dataclass
    class State:
        params: dict
        statistics: dict

    named = collections.namedtuple("Named", ("params", "statistics"))
    for kind in (State, named):
        state = kind({"w": jnp.ones(3)}, {"mean": jnp.zeros(2)})
        assert packing.replace_fields(state, statistics=1) == kind(state.params, 1)
        # Statistics are read by name within the loop, and stay as they are.
        packed = packing.pack_params(state)
        assert packed.params.rows.shape == (3,)
        assert_equal(packed.statistics, state.statistics)


def test_on_a_tpu_matrices_stay_apart_and_scalars_where_they_are(monkeypatch):
    take_accelerator_forms(monkeypatch, gpu=False)
    tree = jax.device_put({"w": np.ones((2, 3)), "b": np.ones(3), "c": np.ones(2)})
    packed = run(packing.pack_params, tree)
    assert packed.rows.shape == (5,)
    assert_equal(run(unpack, packed), tree)
    assert packing.pack_scalars(tree) is tree
    assert packing.pack_outputs(tree, 0) is tree
