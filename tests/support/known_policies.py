"""A policy and a critic of Pendulum that are known, and an untrained policy of CartPole."""

import jax.numpy as jnp

from stoix_like.base_types import NetworkOutputs
from stoix_like.networks.distributions import MultivariateNormalDiag
from stoix_like.policies.make import make_policy
from support.trained_runs import SMALL
from support.untrained import untrained


def known_pendulum():
    """A policy whose torque is 2 clip(0.1 velocity, -1, 1) with deviation 0.2, and a critic cos(angle)."""
    setup, shared = untrained(*SMALL, "env=gymnax/pendulum", "env.time_limit=20")

    def inspect(shared, observation):
        view = observation.agent_view
        return NetworkOutputs(MultivariateNormalDiag(0.1 * view[:, 2:], jnp.full(1, 0.1)), view[:, 0])

    class Known(type(setup)):
        def build_system(self, *args, **kwargs):
            return super().build_system(*args, **kwargs)._replace(inspect=inspect)

    return make_policy(Known(*setup), shared, {})


def untrained_cartpole():
    small = "network.actor_network.pre_torso.layer_sizes=[8]"
    return make_policy(*untrained("system=q_learning/ff_dqn", "env=gymnax/cartpole", small), {})
