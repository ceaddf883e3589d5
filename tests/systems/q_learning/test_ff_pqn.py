from types import SimpleNamespace

import jax.numpy as jnp

from stoix_like.base_types import Axes, Observation, Trajectory, Transition
from stoix_like.systems.q_learning.anakin.ff_pqn import PQN


def test_targets_bootstrap_from_the_best_action_of_the_true_successor():
    """Action values are the views. With lambda 0: 2 * 1 + 3 / 2 = 3.5, and 2 * 1 = 2 where the episode terminated."""
    network = SimpleNamespace(apply=lambda params, observation: SimpleNamespace(preferences=observation.agent_view))
    config = SimpleNamespace(reward_scale=2.0, gamma=0.5, q_lambda=0.0)
    pqn = PQN(config, Axes(), network, None, None, None)
    ones, never = jnp.ones((2, 1)), jnp.zeros((2, 1), bool)
    successor = Observation(jnp.asarray([[[1.0, 3.0]], [[5.0, 2.0]]]))
    terminated = jnp.asarray([[False], [True]])
    steps = Transition(successor, never.astype(int), ones, terminated, never, successor, never, ())
    assert pqn.evaluate(None, Trajectory(steps, ())).target.tolist() == [3.5, 2.0]
