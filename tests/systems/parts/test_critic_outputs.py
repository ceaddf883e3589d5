import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stoix_like.networks import heads
from stoix_like.systems.parts.critic_outputs import SCALAR, critic_output
from support.compiled import run
from support.selections import first

ATOMS = heads.DistributionalContinuousQNetwork(num_atoms=21, vmin=-2.0, vmax=2.0)


@pytest.mark.parametrize(
    ("head", "scale"),
    first(
        1,
        [
            (ATOMS, 1.0),
            (heads.QuantileCriticHead(num_quantiles=8), 1.0),
            (heads.SymexpCriticHead(), 1.0),
            (heads.SymexpCriticHead(), 1e3),
        ],
    ),
    ids=["atoms", "quantiles", "two_hot", "two_hot_of_large_returns"],
)
def test_the_mean_of_a_distribution_converges_to_its_targets(head, scale):
    """Two states with the targets 0.7 and -1.2, of which the second is seen as a sequence, `[L, S]`."""
    output, embedding = critic_output(head), jnp.eye(2)[:, None]
    target = scale * jnp.asarray([[0.7], [-1.2]])
    params, optim = run(head.init, jax.random.key(0), embedding), optax.adam(0.1)

    def loss(params):
        losses = output.loss(head.apply(params, embedding), target)
        assert losses.shape == target.shape
        return losses.mean()

    def step(carry, _):
        params, state = carry
        updates, state = optim.update(jax.grad(loss)(params), state)
        return (optax.apply_updates(params, updates), state), ()

    (params, _), _ = jax.lax.scan(step, (params, optim.init(params)), length=300)
    np.testing.assert_allclose(output.value(head.apply(params, embedding)), target, atol=0.05 * scale)


def test_a_value_is_learned_as_it_is():
    assert critic_output(heads.ScalarCriticHead()) is SCALAR
    value = jnp.asarray([1.0, 2.0])
    assert SCALAR.value(value) is value
    # Half the squared errors.
    np.testing.assert_allclose(SCALAR.loss(value, jnp.asarray([0.0, 4.0])), [0.5, 2.0])
