import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.networks.feed_forward import CompositeNetwork
from stoix_like.networks.heads import CategoricalHead, ScalarCriticHead
from stoix_like.networks.recurrent.layer import ScannedRNN
from stoix_like.networks.recurrent.networks import RecurrentActor, RecurrentCritic
from stoix_like.networks.torso import MLPTorso

KEY = jax.random.key(0)
VIEW = jax.device_put(np.random.default_rng(0).normal(size=(2, 3, 5)))
MASK = jax.device_put(np.broadcast_to([False, True, True, False], (2, 3, 4)))


@pytest.mark.parametrize(
    ("network", "head"), [(RecurrentActor, CategoricalHead(4)), (RecurrentCritic, ScalarCriticHead())]
)
def test_recurrent_networks_return_state_and_head_output(network, head):
    module = network(head, MLPTorso((4,)), 6, "gru", MLPTorso((5,)))

    @jax.jit
    def outputs(*inputs):
        start = ScannedRNN(6, "gru").initialize_carry(3)
        state, output = module.apply(module.init(KEY, start, inputs), start, inputs)
        return state, output.probs if network is RecurrentActor else output

    state, output = outputs(Observation(VIEW, MASK), np.zeros((2, 3), bool))
    assert state.shape == (3, 6)
    if network is RecurrentActor:
        np.testing.assert_array_equal(np.asarray(output)[~np.asarray(MASK)], 0.0)
    else:
        assert output.shape == (2, 3)


def test_undeclared_heads_of_recurrent_actors_refuse_action_masks():
    network = RecurrentActor(
        CompositeNetwork((MLPTorso((4,)), CategoricalHead(4))), MLPTorso((4,)), 6, "gru", MLPTorso((5,))
    )
    start, done = ScannedRNN(6, "gru").initialize_carry(3), jnp.zeros((2, 3), bool)
    jax.eval_shape(network.init, KEY, start, (Observation(VIEW), done))
    with pytest.raises(ValueError, match="^action_head=CompositeNetwork"):
        jax.eval_shape(network.init, KEY, start, (Observation(VIEW, MASK), done))


def test_states_of_recurrent_networks_may_be_named():
    start, inputs = jnp.zeros((3, 6)), (Observation(VIEW), jnp.zeros((2, 3), bool))
    parts = MLPTorso((4,)), 6, "gru", MLPTorso((5,))
    policy = RecurrentActor(CategoricalHead(4), *parts)
    jax.eval_shape(lambda: policy.init(KEY, policy_hidden_state=start, observation_done=inputs))
    critic = RecurrentCritic(ScalarCriticHead(), *parts)
    jax.eval_shape(lambda: critic.init(KEY, critic_hidden_state=start, observation_done=inputs))
