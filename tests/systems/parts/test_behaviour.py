import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Axes, Observation
from stoix_like.systems.parts.behaviour import BehaviourDistance, make_behaviour
from stoix_like.utils.replay import Batch
from support.compiled import run

UNIT = jnp.asarray([2.0, 1.0])
NOTHING = Observation(jnp.zeros((2, 1)))


def batch(weight=(1.0, 1.0)):
    """Return two steps; only the first has an action after it."""
    after = jnp.asarray([[2.0, 0.0], [9.0, 9.0]]), jnp.asarray([True, False])
    action = jnp.asarray([[0.0, 1.0], [2.0, -1.0]])
    return Batch(NOTHING, action, jnp.zeros(2), jnp.zeros(2), NOTHING, jnp.asarray(weight), None, after)


def test_the_policy_is_drawn_to_the_actions_of_the_data():
    """Distances in half ranges: (2/2)^2 + 1^2 = 2 and (2/2)^2 + 2^2 = 5; values are divided by mean |q| = 2."""
    behaviour = make_behaviour(BehaviourDistance(bc_coef=0.4), UNIT, Axes())
    action, q = jnp.asarray([[2.0, 0.0], [0.0, 1.0]]), jnp.asarray([1.0, -3.0])
    np.testing.assert_allclose(run(behaviour.actor_loss, q, action, batch()), -(1 - 3) / 2 / 2 + 0.4 * 3.5)
    np.testing.assert_allclose(behaviour.actor_loss(q, action, batch((1.0, 0.0))), -1 / 2 / 2 + 0.4 * 1.0)


def test_values_that_are_all_zero_have_no_scale():
    behaviour = make_behaviour(BehaviourDistance(bc_coef=0.4), UNIT, Axes())

    def loss(q):
        return behaviour.actor_loss(q, jnp.zeros((2, 2)), batch())

    # Distances (0, 1)^2 = 1 and (2/2, 1)^2 = 2; the gradient is -1 / 2 for each of two values.
    value, gradient = jax.value_and_grad(loss)(jnp.zeros(2))
    np.testing.assert_allclose(value, 0.4 * 1.5)
    np.testing.assert_allclose(gradient, [-0.5, -0.5])


def test_values_are_divided_by_the_mean_over_all_shards():
    """Two shards with the values (1, 1) and (-3, -3), whose mean |q| is 2; their losses are -1/2 and 3/2."""
    behaviour = make_behaviour(BehaviourDistance(bc_coef=0.4), UNIT, Axes(("shards",)))
    q = jnp.asarray([[1.0, 1.0], [-3.0, -3.0]])
    losses = run(jax.vmap(lambda q: behaviour.actor_loss(q, batch().action, batch()), axis_name="shards"), q)
    np.testing.assert_allclose(losses, [-0.5, 1.5])


def test_targets_fall_with_the_distance_at_the_successor():
    """The target policy's action (0, 0) is one half range from (2, 0); after the second step there is no action."""
    behaviour = make_behaviour(BehaviourDistance(critic_bc_coef=0.5), UNIT, Axes())
    q_t = jnp.asarray([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_allclose(behaviour.target(q_t, jnp.zeros((2, 2)), batch()), [[0.5, 1.5], [3.0, 4.0]])
