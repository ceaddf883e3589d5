"""Assembly of systems, for training and for acting with trained parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax

from stoix_like.architectures.types import Inputs
from stoix_like.base_types import Axes, Model, System, SystemSpec
from stoix_like.config import RunConfig
from stoix_like.envs import factory
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError
from stoix_like.networks.from_config.modules import build_networks
from stoix_like.systems.parts.resets import with_resets


class SystemParts(NamedTuple):
    """Parts of a policy apart from its parameters: the configuration, the spaces and the networks of a run."""

    config: RunConfig  # the typed configuration
    env: VectorEnvironment  # environments to evaluate in
    spec: SystemSpec  # spaces, networks and sizes that the system is built from

    @property
    def name(self) -> str:
        """The system and the environment: `ppo/ff_ppo on gymnax/CartPole-v1`."""
        return f"{self.config.system_name} on {self.config.environment_name}"

    def build_system(
        self, hyperparams: dict[str, Any] | None = None, greedy: bool | None = None, inputs: Inputs | None = None
    ) -> System:
        """Build the system."""
        spec = self.spec if greedy is None else self.spec._replace(evaluation_greedy=greedy)
        spec = spec if inputs is None else _with_inputs(spec, inputs)
        system = with_resets(self.config.build, self.config.system, hyperparams or {}, spec)
        precision = self.config.arch.matmul_precision
        if precision is None:
            return system
        functions = {name: function for name, function in system._asdict().items() if function is not None}
        return system._replace(**{name: _in_precision(function, precision) for name, function in functions.items()})


def set_up_inference(config: RunConfig, env: VectorEnvironment | None = None) -> SystemParts:
    """Build the environments and the networks of a run that was trained, for one device.

    `env`: environments as the run describes them, for a system that does not plan with them; None builds them.
    """
    made_of = (config.env, config.custom_env, config.matmul_precision)
    env = factory.make_eval(*made_of) if env is None else env
    plans = config.system.needs_model or config.system.plays_both_seats
    trained_in = factory.make(*made_of) if plans and not env.on_host else env
    space = config.system.policy_space(env.action_space)
    networks = build_networks(config.network, space, env.observation_space, dtype=config.arch.torso_dtype)
    num_rows = config.arch.total_num_envs * env.num_agents
    return SystemParts(config, env, make_spec(config, trained_in, networks, config.num_updates, num_rows))


def make_spec(
    config: RunConfig,
    env: VectorEnvironment,
    networks: SimpleNamespace,
    num_updates: int,
    num_envs: int,
    num_shards: int = 1,
    axes: Axes = Axes(),  # noqa: B008 (immutable)
    data: Any = None,
    teacher: Any = None,
) -> SystemSpec:
    """Return what a system is built from."""
    return SystemSpec(
        observation_space=env.observation_space,
        action_space=config.system.policy_space(env.action_space),
        networks=networks,
        axes=axes,
        num_updates=num_updates,
        num_envs=num_envs,
        num_shards=num_shards,
        evaluation_greedy=config.arch.evaluation_greedy,
        num_players=env.num_players,
        num_agents=env.num_agents,
        team_reward=env.team_reward,
        goal_reward=env.goal_reward,
        share_networks=_check_sharing(config, env),
        model=_find_model(config, env),
        rollout_length=config.system.rollout_length,
        warmup_rollouts=config.system.warmup_steps // config.system.rollout_length,
        data=data,
        teacher=teacher,
    )


def inputs_of(spec: SystemSpec) -> Inputs:
    """Return the arrays of the data and the teacher of a system."""
    return Inputs(spec.data, None if spec.teacher is None else spec.teacher.params)


def _with_inputs(spec: SystemSpec, inputs: Inputs) -> SystemSpec:
    """Return the same with other arrays."""
    teacher = None if spec.teacher is None else spec.teacher._replace(params=inputs.teacher)
    return spec._replace(data=inputs.data, teacher=teacher)


def _check_sharing(config: RunConfig, env: VectorEnvironment) -> bool:
    """Return whether all agents have the same networks."""
    if not config.share_networks and env.num_agents == 1:
        raise ConfigError(f"network.share=false has no effect: {config.environment_name} has one agent: use true")
    if not config.share_networks and not config.system.networks_per_agent:
        raise ConfigError(
            f"network.share=false: system={config.system_name} has the same networks for all agents: use true, or"
            " system=ppo/ff_ppo"
        )
    return config.share_networks


def _find_model(config: RunConfig, env: VectorEnvironment) -> Model | None:
    """Return the environments as the model that a system plans with; None for systems without one."""
    if not config.system.needs_model:
        return None
    model = factory.make_model(env)
    if model is None:
        raise ConfigError(
            f"system={config.system_name} steps the environment inside its search, and {config.environment_name} runs"
            " on the host: use an environment written in JAX, or a system that learns its model, system=search/ff_mz"
        )
    return model


def _in_precision(function: Callable[..., Any], precision: str) -> Callable[..., Any]:
    """Let a function compute products of matrices in a precision of their own."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision(precision):
            return function(*args, **kwargs)

    return call
