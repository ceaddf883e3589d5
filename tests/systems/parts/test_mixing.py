import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.mixers import MonotonicMixer
from stoix_like.systems.parts.mixing import QMIX, Mixing, make_mixer
from support.compiled import run

# Two games of two agents, with three features each.
VIEW = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)
VALUES = jnp.asarray([1.0, 2.0, 3.0, 4.0])


def make_qmix(view=VIEW):
    mixer = make_mixer(Mixing(QMIX, 8), 2)
    params = run(mixer.init, {"params": {"head": {}}}, jax.random.key(1), view)
    return mixer, params, jax.jit(mixer.mix, static_argnums=3)


def test_sums_are_over_the_agents_of_a_game():
    mixer = make_mixer(Mixing(), 2)
    assert mixer.init("own", None, VIEW) == "own"
    assert mixer.mix(None, VALUES, VIEW, 0).tolist() == [3.0, 7.0]
    by_time = jnp.stack([VALUES, 2 * VALUES])
    assert mixer.mix(None, by_time, None, 1).tolist() == [[3.0, 7.0], [6.0, 14.0]]
    assert mixer.mix(None, by_time.T, None, 0).tolist() == [[3.0, 6.0], [7.0, 14.0]]


@pytest.mark.slow
def test_the_value_of_a_team_grows_with_that_of_each_agent():
    """Rashid et al. 2018, equation 5: the derivative by the value of any agent is at least 0."""
    _, params, mix = make_qmix()
    slopes = jax.jacobian(lambda values: mix(params, values, VIEW, 0))(VALUES)
    assert (slopes >= 0).all()
    # A game has no part in the value of another.
    assert (slopes[0, :2] > 0).all()
    np.testing.assert_array_equal(slopes[0, 2:], 0.0)


def test_agents_learn_where_the_state_is_zero():
    view = jnp.asarray(np.zeros((4, 3)))
    mixer, params, _ = make_qmix(view)
    slopes = run(jax.grad(lambda values: mixer.mix(params, values, view, 0).sum()), VALUES)
    assert (slopes > 0).all()


def test_weights_do_not_grow_with_the_state():
    _, params, mix = make_qmix()
    far, farther = (mix(params, VALUES, scale * np.asarray(VIEW), 0) for scale in (1e3, 1e6))
    np.testing.assert_allclose(far, farther, rtol=1e-3)


def test_states_are_the_views_of_all_agents_or_the_world():
    worlds = np.asarray(VIEW)[::2]
    both = {"own": VIEW, "world": jnp.asarray(np.repeat(worlds, 2, axis=0))}
    for view, states in ((VIEW, VIEW.reshape(2, 6)), (both, jnp.asarray(worlds))):
        _, params, mix = make_qmix(view)
        own = {"params": params["params"]["mixer"]}
        expected = run(MonotonicMixer(8).apply, own, VALUES.reshape(2, 2), states)
        np.testing.assert_allclose(mix(params, VALUES, view, 0), expected, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_time_stands_before_or_after_the_rows(axis):
    _, params, mix = make_qmix()
    values, view = np.asarray(VALUES), np.asarray(VIEW)
    mixed = mix(params, *(np.stack([x, 2 * x], axis=1 - axis) for x in (values, view)), axis)
    each = [mix(params, scale * values, scale * view, 0) for scale in (1, 2)]
    np.testing.assert_allclose(mixed, np.stack(each, axis=1 - axis), rtol=1e-6)
