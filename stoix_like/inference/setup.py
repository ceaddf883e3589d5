"""The parts of a run that its policy needs."""

from __future__ import annotations

from stoix_like.assembly import SystemParts, make_spec
from stoix_like.config import RunConfig
from stoix_like.envs import factory
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.networks.from_config.modules import build_networks
from stoix_like.run.host.plan import count_updates


def set_up_inference(config: RunConfig, env: VectorEnvironment | None = None) -> SystemParts:
    """Build the environments and the networks of a run that was trained, for one device.

    `env`: environments as the run describes them, for a system that does not plan with them; None builds them.
    """
    made_of = (config.env, config.custom_env, config.matmul_precision)
    env = factory.make_eval(*made_of) if env is None else env
    plans = config.system.needs_model or config.system.plays_both_seats
    trained_in = factory.make(*made_of) if plans and not env.on_host else env
    dtype = config.arch.torso_dtype
    networks = build_networks(config.network, env.action_space, env.observation_space, dtype=dtype)
    num_rows = config.arch.total_num_envs * env.num_agents
    spec = make_spec(config, trained_in, networks, count_updates(config), num_rows)
    return SystemParts(config, env, spec)
