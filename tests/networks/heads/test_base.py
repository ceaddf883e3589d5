import inspect

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from stoix_like.networks import heads
from stoix_like.networks.heads import MultivariateNormalDiagHead, NormalAffineTanhDistributionHead
from support.compiled import run
from support.every_head import GREEDY, HEADS, KEY, parts_of
from support.selections import select

VALUES = [getattr(heads, name) for name in heads.__all__]
CLASSES = [value for value in VALUES if isinstance(value, type) and issubclass(value, nn.Module)]
MASKED = ("categorical", "discovered", "policy_value", *GREEDY)


def value_of(part):
    """Return an array for a head's output: the mode of a distribution, or the array itself."""
    return part.mode() if isinstance(part, distrax.Distribution) else part


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_heads_accept_any_number_of_leading_axes(name):
    head, events = HEADS[name]
    x = jax.random.normal(KEY, (2, 3, 6))

    @jax.jit
    def many_and_one(x):
        params = jax.jit(head.init)(KEY, x[0, 0])
        many, one = (parts_of(run(head.apply, params, y)) for y in (x, x[1, 2]))
        pis = [part for part in many if isinstance(part, distrax.Distribution)]
        scalars = [(pi.log_prob(pi.mode()), pi.entropy(seed=KEY)) for pi in pis]
        samples = [pi.sample(seed=KEY) for pi in pis]
        return [value_of(part) for part in many], [value_of(part) for part in one], samples, scalars

    many, one, samples, scalars = many_and_one(x)
    for event, full, single in zip(events, many, one, strict=True):
        assert full.shape == (2, 3, *event)
        np.testing.assert_allclose(full[1, 2], single, rtol=1e-5, atol=1e-5)
    for sample, scalar in zip(samples, scalars, strict=True):
        assert sample.shape == (2, 3, *events[0])
        # An array of values has one log-probability per value.
        assert scalar[0].shape == scalar[1].shape == ((2, 3, 2) if name == "discrete_valued" else (2, 3))


@pytest.mark.parametrize("name", HEADS)
def test_every_environment_can_have_a_key_of_its_own(name):
    """As noise that persists over steps has; shapes alone, which nothing compiles."""
    head, events = HEADS[name]

    def act(x, keys):
        parts = parts_of(head.init_with_output({"params": keys[0], "noise": keys[0]}, x)[0])
        pi = parts[0]
        if not isinstance(pi, distrax.Distribution):
            return ()
        return jax.vmap(lambda pi, key: (pi.sample(seed=key), pi.mode()))(pi, keys)

    shapes = [leaf.shape for leaf in jax.eval_shape(lambda x: act(x, jax.random.split(KEY, 5)), np.zeros((5, 6)))]
    assert shapes in ([], [(5, *events[0])] * 2)


@pytest.mark.parametrize("name", select(MASKED, quick=("categorical", "q", "rainbow", "iqn")))
def test_heads_mask_illegal_actions(name):
    head, _ = HEADS[name]
    x, mask = np.random.default_rng(0).normal(size=(4, 6)), np.asarray([[1, 0, 1]] * 3 + [[0, 0, 1]], bool)

    def policy(x, mask):
        pi = head.apply(head.init(KEY, x), x, action_mask=mask)
        pi = pi[0] if isinstance(pi, tuple) else pi
        return pi.probs, pi.mode(), pi.sample(seed=KEY, sample_shape=200)

    probs, mode, samples = jax.device_get(run(policy, *jax.device_put((x, mask))))
    np.testing.assert_array_equal(probs[~mask], 0.0)
    assert (samples != 1).all()
    assert (samples[:, 3] == 2).all()
    assert (mode != 1).all()


@pytest.mark.slow
def test_parameters_and_actions_stay_float32_where_numbers_are_float64():
    free = {
        name: (head(2, **{"state_dependent_scale": False} | bounds), [(2,)])
        for name, head, bounds in (
            ("free_normal", MultivariateNormalDiagHead, {}),
            ("free_tanh_normal", NormalAffineTanhDistributionHead, {"minimum": -1.0, "maximum": 1.0}),
        )
    }
    with jax.enable_x64(True):
        for name, (head, _) in (HEADS | free).items():

            def act(x, head=head):
                output, params = head.init_with_output({"params": jax.random.key(0), "noise": jax.random.key(0)}, x)
                pis = [part for part in parts_of(output) if isinstance(part, distrax.Distribution)]
                return params, output, [(pi.mode(), pi.sample(seed=jax.random.key(0))) for pi in pis]

            leaves = jax.tree.leaves(jax.eval_shape(act, jnp.zeros((2, 6), jnp.float32)))
            assert not [leaf for leaf in leaves if leaf.dtype == jnp.float64], name


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("categorical", {"action_mask": np.ones((4, 2), bool)}),
        ("multi_discrete", {"action_mask": np.ones((4, 4), bool)}),
        ("dueling", {"action_mask": np.ones((3, 3), bool)}),
        ("q", {"epsilon": np.full(3, 0.1, np.float32)}),
        ("iqn", {"tau": np.full((3, 7), 0.5, np.float32)}),
    ],
)
def test_wrong_shapes_are_refused(name, wrong):
    head, _ = HEADS[name]
    with pytest.raises((TypeCheckError, TypeError, ValueError)):
        jax.eval_shape(lambda x, wrong: head.init(KEY, x, **wrong), np.ones((4, 6)), wrong)


@pytest.mark.parametrize("head", CLASSES)
def test_heads_of_this_package_declare_what_they_take(head):
    takes_action_mask = "action_mask" in inspect.signature(head.__call__).parameters
    assert takes_action_mask == getattr(head, "takes_action_mask", False)
    assert issubclass(head, heads.PolicyHead) == hasattr(head, "action_spaces")
