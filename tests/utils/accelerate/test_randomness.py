import jax
import numpy as np
import pytest

from stoix_like.utils.accelerate.randomness import hoist


def noisy_step(state, keys):
    """Draw noise independent of the state, noise that depends on the state, and random bits."""
    key_free, key_bound = keys
    free = jax.random.normal(key_free, (3,))
    bound = jax.random.normal(jax.random.fold_in(key_bound, state["count"]), (3,))
    state = {"count": state["count"] + 1, "x": 0.5 * state["x"] + free + bound}
    return state, {"x": state["x"], "bits": jax.random.bits(key_bound)}


STATE = jax.device_put({"count": np.int32(0), "x": np.zeros(3)})


def keys(length=7):
    return tuple(jax.random.split(key, length) for key in jax.random.split(jax.random.key(0)))


def run(step, keys, max_bytes=None):
    if max_bytes is None:
        return jax.lax.scan(step, STATE, keys)
    draw, rest = hoist(step, STATE, jax.tree.map(lambda leaf: leaf[0], keys), max_bytes)
    return jax.lax.scan(rest, STATE, jax.vmap(draw)(keys), 7)


@pytest.mark.parametrize("max_bytes", [0, 8, 1000])
def test_hoisted_step_returns_the_same_numbers(max_bytes):
    plain = jax.jit(run, static_argnums=0)(noisy_step, keys())
    hoisted = jax.jit(run, static_argnums=(0, 2))(noisy_step, keys(), max_bytes)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), plain, hoisted)


def drawn_in_loop(max_bytes):
    """Count the draws of normal noise and the derivations of keys inside the scan."""
    jaxpr = jax.make_jaxpr(lambda keys: run(noisy_step, keys, max_bytes))(keys())
    (scan,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    eqns = scan.params["jaxpr"].eqns
    normals = sum(eqn.params.get("name") == "_normal" for eqn in eqns)
    return normals, sum(eqn.primitive.name == "random_fold_in" for eqn in eqns)


def test_only_draws_that_depend_on_the_state_stay_in_the_loop():
    # One fold_in and its noise depend on the counter; the other noise does not.
    assert drawn_in_loop(1000) == (1, 1)
    assert drawn_in_loop(0) == (2, 1)
    # The noise takes 12 bytes per step, a key 8.
    assert drawn_in_loop(11) == (2, 1)


def test_hoist_under_vmap_and_without_randomness():
    def many(seeds):
        split = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), 7))(seeds)
        return jax.vmap(lambda keys: run(noisy_step, (keys, keys), 1000))(split)

    state, _ = jax.jit(many)(np.arange(4))
    assert len(np.unique(np.asarray(state["x"])[:, 0])) == 4

    draw, rest = hoist(lambda state, _: (state, state["count"]), STATE, (), 1000)
    assert draw(()) == []
    assert rest(STATE, []) == (STATE, STATE["count"])
