"""The parts of a run that its policy needs."""

from __future__ import annotations

from stoix_like.base_types import Axes, SystemSpec
from stoix_like.config import RunConfig
from stoix_like.envs import factory
from stoix_like.networks.build.modules import build_networks
from stoix_like.policies.setup import InferenceSetup
from stoix_like.run.host.plan import count_updates
from stoix_like.run.set_up.model import find_model


def set_up_inference(config: RunConfig) -> InferenceSetup:
    """Build the environments and the networks of a run that was trained, for one device.

    Args:
        config: the typed configuration.

    Returns:
        The parts.

    Raises:
        ConfigError: the environment cannot be built, or the networks do not fit it.
    """
    made_of = (config.env, config.custom_env, config.matmul_precision)
    env = factory.make_eval(*made_of)
    plans = config.system.needs_model or config.system.plays_both_seats
    trained_in = factory.make(*made_of) if plans and not env.on_host else env
    spec = SystemSpec(
        observation_space=env.observation_space,
        action_space=env.action_space,
        networks=build_networks(config.network, env.action_space, env.observation_space, dtype=config.arch.torso_dtype),
        axes=Axes(),
        num_updates=count_updates(config),
        num_envs=config.arch.total_num_envs,
        num_shards=1,
        evaluation_greedy=config.arch.evaluation_greedy,
        num_players=trained_in.num_players,
        model=find_model(config, trained_in),
    )
    return InferenceSetup(config, env, spec)
