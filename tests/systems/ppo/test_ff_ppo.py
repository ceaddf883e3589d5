import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.config import compose_config, typed
from stoix_like.envs.probes import PROBES
from stoix_like.loggers import MultiLogger
from stoix_like.networks.base import FeedForwardCritic
from stoix_like.runner.experiment import Session, prepare

GAMMA = 0.8
SMALL = [
    "network.actor_network.pre_torso.layer_sizes=[16]",
    "network.critic_network.pre_torso.layer_sizes=[16]",
    "arch.compile_cache=false",
    "arch.absolute_metric=false",
]
LAYOUTS = {"one": [], "devices": ["arch.num_devices=2"], "batches": ["arch.num_devices=1", "arch.update_batch_size=2"]}
PROBE = [
    *SMALL,
    "arch.total_num_envs=16",
    "arch.total_timesteps=40960",
    "arch.num_evaluation=1",
    "system.rollout_length=16",
    "system.num_minibatches=2",
    "system.clip_value=false",
    "system.max_grad_norm=10",
    "system.actor_lr=1e-2",
    "system.critic_lr=1e-2",
    f"system.gamma={GAMMA}",
]


def trained(overrides):
    session = Session(prepare(typed(compose_config(overrides))), MultiLogger([]))
    session.train()
    return session


def values(session, views):
    nets = session.prepared.networks.critic_network
    critic = FeedForwardCritic(nets.critic_head, nets.pre_torso, nets.input_layer)
    return critic.apply(session.state.shared.params.critic_params, factory_observation(views))


def factory_observation(views):
    from stoix_like.base_types import Observation

    return Observation(jnp.asarray(views))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROBES)
def test_probe(name, layout):
    """The policy does what is best, and the critic knows what it is worth."""
    probe = PROBES[name]()
    session = trained([f"env=probe/{name}", *PROBE, *LAYOUTS[layout]])
    keys = jax.random.split(jax.random.key(1), 16)
    first_views = jax.vmap(lambda key: probe.reset(key)[1].observation.agent_view)(keys)
    assert session.history[-1]["eval/episode_return_mean"] == pytest.approx(probe.optimal_return, abs=0.05)
    # Continuous probes are acted in with exploration, which costs the variance of the policy.
    tolerance = 0.25 if name.startswith("continuous") else 0.1
    expected = probe.optimal_value(first_views, GAMMA)
    np.testing.assert_allclose(values(session, first_views), expected, atol=tolerance)
