"""Construction of environments from a configuration, and the order of their wrappers.

Wrappers apply in one order, and those that are off are left out:

    suite → actions joined and counted from 0 → domain randomisation → rows of agents → custom wrappers
          → dtypes as declared → random starts (training) → sticky actions
          → action repeat → time limit → rescaled actions → clipped actions
          → flattened observations → masked entries → noise → delay → flicker
          → clipped observations → frame stack → remaining time → last action and reward → step count
          → episode metrics (of the suite's own rewards)                                  evaluation stops here
          → scaled rewards → clipped rewards → staggered starts → automatic reset         training
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from stoix_like.base_types import Model, Observation
from stoix_like.envs import auto_reset, opponents, randomization, wrappers
from stoix_like.envs.described import DescribedEnvironment, conversions, describe
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.host_batches import HostOptions
from stoix_like.envs.spaces import Box, Dict, Mixed
from stoix_like.envs.stagger import make_stagger
from stoix_like.envs.suites import OWN, find_suite, load_suite
from stoix_like.envs.wrappers.agents import AGENT_IDS, find_rows
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, MAX_SECONDS, Range, above, at_least, between, one_of
from stoix_like.user_code import name_of, refusing

# mujoco-mjx logs the device whenever it puts a model or data on it, which would bury the progress of a run.
logging.getLogger().addFilter(lambda record: not str(record.msg).startswith("Using JAX default device"))

# Keys of wrappers that would mix the two players of a game.
_FOR_ONE_PLAYER = (
    *("sticky_actions", "action_repeat", "frame_stack", "step_count", "time_in_observation", "time_limit"),
    *("observation_delay", "observe_last_action", "observe_last_reward"),
)

# The same as `env.wrappers` may list them.
_MIXING = (
    *(wrappers.StickyActions, wrappers.RepeatActions, wrappers.StackFrames, wrappers.CountingWrapper),
    *(wrappers.DelayObservation, wrappers.ObserveLastStep),
)

# Wrappers that start or end episodes where the wrapped environments do not.
_OF_EPISODES = (wrappers.RandomStarts, wrappers.ReachEntries, wrappers.RepeatActions, wrappers.TimeLimit)

Factor = Annotated[float, at_least(0.0)]

# Modes of automatic reset.
AUTO_RESETS: dict[str, Callable[[VectorEnvironment, EnvConfig], auto_reset.AutoReset]] = {
    "fresh": lambda env, config: auto_reset.FreshReset(env),
    "pool": lambda env, config: auto_reset.PoolReset(env, config.pool_size),
    "optimistic": lambda env, config: auto_reset.OptimisticReset(env, config.reset_ratio),
    "cached": lambda env, config: auto_reset.CachedReset(env),
}


@dataclass
class ScenarioConfig:
    """A scenario, one environment of a suite."""

    name: str = ""  # name of the scenario in its suite
    task_name: str = ""  # name in run directories; by default the name of the scenario

    def __post_init__(self) -> None:
        self.task_name = self.task_name or self.name


@dataclass
class EnvConfig:
    """Configuration of an environment and its wrappers; `configs/env/_base.yaml` describes the keys."""

    env_name: str = "gymnax"
    scenario: ScenarioConfig = field(default_factory=ScenarioConfig)
    kwargs: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    assets: str | None = None
    vectorization: Annotated[str, one_of("sync", "async", "envpool")] = "sync"
    timeout: Annotated[float, Range(0.0, MAX_SECONDS, without_low=True)] = 300.0
    auto_reset: Annotated[str, one_of(*AUTO_RESETS)] = "fresh"
    pool_size: Annotated[int, between(1, 2**24)] = 128
    reset_ratio: Annotated[int, between(1, INT32_MAX)] = 4
    time_limit: Annotated[int | None, between(1, INT32_MAX)] = None
    rescale_actions: bool = True
    clip_actions: bool = True
    flatten_observation: bool = False
    observation_mask: tuple[str, ...] | None = None
    observation_noise: Annotated[float, at_least(0.0)] | tuple[Annotated[float, at_least(0.0)], ...] = 0.0
    observation_delay: Annotated[int, between(0, 1024)] = 0
    observation_flicker: Annotated[float, between(0.0, 1.0)] = 0.0
    observe_last_action: bool = False
    observe_last_reward: bool = False
    frame_stack: Annotated[int, between(1, 1024)] = 1
    step_count: bool = False
    reward_scale: Annotated[float, above(0.0)] = 1.0
    reward_clip: Annotated[float | None, above(0.0)] = None
    sticky_actions: Annotated[float, between(0.0, 1.0)] = 0.0
    action_repeat: Annotated[int, between(1, 1024)] = 1
    random_start_steps: Annotated[int, between(0, 100_000)] = 0
    staggered_starts: bool = False
    eval_opponent: str = "random"
    team_reward: bool = False
    agent_ids: Annotated[str, one_of(*AGENT_IDS)] = "none"
    observation_clip: Annotated[float | None, above(0.0)] = None
    time_in_observation: bool = False
    randomization: str | dict[str, tuple[Factor, Factor]] | None = None
    randomize_every: Annotated[str, one_of(*randomization.AUTO_RESETS)] = "reset"
    randomize_evaluation: bool = False
    wrappers: tuple[dict[str, Any], ...] = ()
    _target_: str = ""


def make(config: EnvConfig, custom_env: Any = None, precision: str | None = None) -> VectorEnvironment:
    """Build training environments, with automatic reset.

    `custom_env`: a custom environment, or its class; None to build it from `config`.
    `precision`: of products of matrices, as for `jax.default_matmul_precision`; None: jax's default.
    """
    episodes = _make_episodes(config, custom_env, config.random_start_steps, precision=precision)
    env = with_learned_rewards(episodes, config)
    stagger = make_stagger(config.staggered_starts, env, config.time_limit)
    if not env.on_host:
        resetting = AUTO_RESETS[config.auto_reset](env, config)
        resetting.stagger = stagger
        return resetting
    if config.auto_reset != "fresh":
        raise ConfigError(f"env.auto_reset={config.auto_reset!r}: {config.env_name} resets itself, use fresh")
    check_host_wrappers(env, config)
    randomization.check_wrappers(env, f"{config.env_name} starts its next episodes itself", "an environment in JAX")
    return auto_reset.HostReset(env)


def with_learned_rewards(env: VectorEnvironment, config: EnvConfig) -> VectorEnvironment:
    """Scale and clip the rewards of environments as in training."""
    if config.reward_scale != 1.0:
        env = wrappers.ScaleReward(env, config.reward_scale)
    return env if config.reward_clip is None else wrappers.ClipReward(env, config.reward_clip)


def make_model(env: VectorEnvironment) -> Model | None:
    """Return training environments as a model to plan with.

    Returns the model; None for environments on the host: their state cannot be stepped twice.
    """
    if not isinstance(env, auto_reset.AutoReset):
        return None
    # A search has no use for returns and lengths of episodes, which every node of its tree would store.
    return Model(state_of=lambda state: auto_reset.without_store(state).env_state, step=_unrecorded(env.env).step)


def _unrecorded(env: VectorEnvironment) -> VectorEnvironment:
    """Return environments without `RecordEpisode`, above which wrappers change nothing but rewards."""
    if isinstance(env, wrappers.RecordEpisode):
        return env.env
    assert isinstance(env, wrappers.ScaleReward | wrappers.ClipReward)
    wrapper = copy.copy(env)
    wrapper.env = _unrecorded(env.env)
    return wrapper


def make_eval(config: EnvConfig, custom_env: Any = None, precision: str | None = None) -> VectorEnvironment:
    """Build evaluation environments, without automatic reset and with the original rewards.

    Where training environments have two players, the agent plays one of them, against `env.eval_opponent`.
    """
    return _make_episodes(config, custom_env, evaluation=True, precision=precision)


def make_described(config: EnvConfig, description: dict[str, Any]) -> VectorEnvironment:
    """Return the environments of evaluation as a run describes them, with the actions of policies."""
    return _wrap_actions(wrappers.join_actions(DescribedEnvironment(description)), config)


def describe_episodes(config: EnvConfig, env: VectorEnvironment, observation: Observation) -> dict[str, Any] | None:
    """Describe environments for `make_described`.

    `observation`: the shapes of their observations, `[N, ...]`.
    Returns the description; None where custom code may convert actions.
    """
    description = None if config.wrappers else describe(env, observation)
    if description is None or conversions(env) != conversions(make_described(config, description)):
        return None
    return description


def make_games(config: EnvConfig, custom_env: Any = None, precision: str | None = None) -> VectorEnvironment:
    """Build environments for matches: as for evaluation, but actions are moves of both players."""
    env = _make_episodes(config, custom_env, precision=precision)
    if env.num_players != 2:
        raise ConfigError(
            f"env={config.env_name}/{config.scenario.task_name} has one player, and matches are for games in which a"
            " system plays both seats: train one of pgx, or your own, with +env.kwargs.opponent=self"
        )
    return env


def make_drawn(config: EnvConfig, custom_env: Any = None, precision: str | None = None) -> VectorEnvironment:
    """Build evaluation environments that can be drawn."""
    env = _make_episodes(config, custom_env, evaluation=True, drawn=True, precision=precision)
    name = f"env.scenario.name={config.scenario.name}"
    advice = (
        "use one that its suite draws, such as CartPole-v1, or that observes images, or grids of ten layers at most"
    )
    if config.env_name == OWN:
        name = config.scenario.task_name
        advice = "define its method scene(), or observe images, see the guide Bring your own environment"
    with refusing(f"{name} cannot be drawn", "scene() must return a Scene, or None"):
        if env.scene() is None:
            raise ConfigError(f"{name} has no drawing: {advice}")
    return env


def check_host_wrappers(env: VectorEnvironment, config: EnvConfig) -> None:
    """Refuse wrappers that start or end episodes of environments on the host, which do so themselves."""
    for layer in wrappers.layers(env) if env.on_host else ():
        if isinstance(layer, _OF_EPISODES):
            instead = "use env.time_limit" if isinstance(layer, wrappers.TimeLimit) else "leave it out"
            raise ConfigError(
                f"env.wrappers: {type(layer).__name__} does not fit {config.env_name}, which resets itself: {instead}"
            )


def _make_episodes(
    config: EnvConfig,
    custom_env: Any,
    random_start_steps: int = 0,
    evaluation: bool = False,
    drawn: bool = False,
    precision: str | None = None,
) -> VectorEnvironment:
    """Apply the wrappers that training and evaluation share, and random starts, which nothing above counts."""
    env = make_scenario(config, custom_env, evaluation, drawn)
    if config.wrappers or config.env_name == OWN:
        env = load_suite(OWN).declare(env, config.env_name == OWN, bool(config.wrappers), evaluation)
    else:
        env = wrappers.as_declared(env, traced=False)
    if env.on_host and (random_start_steps or config.action_repeat > 1):
        key = "env.random_start_steps" if random_start_steps else "env.action_repeat"
        raise ConfigError(f"{key} does not fit {config.env_name}, which resets itself: leave it out")
    if env.num_players == 2:
        _check_two_players(env, config)
        if evaluation:
            problem = f"{opponents.KEY}={name_of(config.eval_opponent)} failed"
            with refusing(problem, "against must return the game with it"):
                env = env.against(config.eval_opponent)
    elif changed := _changed(config, "eval_opponent"):
        games = "games in which a system plays both seats, env.kwargs.opponent=self"
        raise ConfigError(f"{changed[0]} has no effect: it is for {games}")
    env = _randomize(env, config, evaluation)
    if precision is not None and not env.on_host:
        env = wrappers.MatmulPrecision(env, precision)
    if random_start_steps:
        env = wrappers.RandomStarts(env, random_start_steps)
    return wrappers.RecordEpisode(_wrap_observations(_wrap_steps(env, config), config))


def _randomize(env: VectorEnvironment, config: EnvConfig, evaluation: bool) -> VectorEnvironment:
    if config.randomization is None:
        if changed := _changed(config, "randomize_every", "randomize_evaluation"):
            raise ConfigError(f"{changed[0]} has no effect without a randomisation: set env.randomization")
        return env
    if evaluation and not config.randomize_evaluation:
        return env
    environment, mode = f"{config.env_name}/{config.scenario.name}", None if evaluation else config.auto_reset
    return randomization.randomize(env, config.randomization, config.randomize_every, environment, mode)


def _check_two_players(env: VectorEnvironment, config: EnvConfig) -> None:
    layers = [layer for layer in wrappers.layers(env) if isinstance(layer, _MIXING)]
    if mixing := _changed(config, *_FOR_ONE_PLAYER) + [f"env.wrappers: {type(layer).__name__}" for layer in layers]:
        raise ConfigError(f"{mixing[0]} mixes the two players of {config.scenario.name}: leave it out")


def _changed(config: EnvConfig, *keys: str) -> list[str]:
    """Return which keys are not at their defaults, with their values."""
    default, values = EnvConfig(), {key: getattr(config, key) for key in keys}
    return [f"env.{key}={name_of(value)}" for key, value in values.items() if value != getattr(default, key)]


def _wrap_steps(env: VectorEnvironment, config: EnvConfig) -> VectorEnvironment:
    if config.sticky_actions:
        env = wrappers.StickyActions(env, config.sticky_actions)
    if config.action_repeat > 1:
        env = wrappers.RepeatActions(env, config.action_repeat)
    # Environments on the host end their episodes themselves.
    if config.time_limit is not None and not env.on_host:
        env = wrappers.TimeLimit(env, config.time_limit)
    return _wrap_actions(env, config)


def _wrap_actions(env: VectorEnvironment, config: EnvConfig) -> VectorEnvironment:
    if isinstance(env.action_space, Box | Mixed):
        if config.rescale_actions and getattr(env.action_space, "bounded", True):
            env = wrappers.RescaleActions(env)
        if config.clip_actions:
            env = wrappers.ClipActions(env)
    return env


def _wrap_observations(env: VectorEnvironment, config: EnvConfig) -> VectorEnvironment:
    space = env.observation_space
    if config.flatten_observation and (isinstance(space, Dict) or len(space.shape) != 1):
        env = wrappers.FlattenObservation(env)
    env = _hide(env, config)
    if config.observation_clip is not None:
        env = wrappers.ClipObservation(env, config.observation_clip)
    if config.frame_stack > 1:
        env = wrappers.StackFrames(env, config.frame_stack)
    if config.time_in_observation:
        if config.time_limit is None:
            raise ConfigError("env.time_in_observation=True needs a time limit: set env.time_limit")
        env = wrappers.AddTime(env, config.time_limit)
    if config.observe_last_action or config.observe_last_reward:
        env = wrappers.ObserveLastStep(env, config.observe_last_action, config.observe_last_reward)
    return wrappers.CountSteps(env) if config.step_count else env


def _hide(env: VectorEnvironment, config: EnvConfig) -> VectorEnvironment:
    """Apply the wrappers of partial observability."""
    if config.observation_mask is not None:
        env = wrappers.mask_entries(env, config.observation_mask)
    if config.observation_noise:
        env = wrappers.NoisyObservation(env, config.observation_noise)
    if config.observation_delay:
        env = wrappers.DelayObservation(env, config.observation_delay)
    if config.observation_flicker:
        env = wrappers.FlickerObservation(env, config.observation_flicker)
    return env


def make_scenario(
    config: EnvConfig, custom_env: Any = None, evaluation: bool = False, drawn: bool = False
) -> VectorEnvironment:
    """Build environments with only the custom wrappers."""
    scenario: Any = config.scenario.name
    if config.env_name == OWN:
        scenario = config._target_ if custom_env is None else custom_env
    elif config._target_:
        raise ConfigError(f"env._target_={config._target_} does not fit env.env_name={config.env_name}: use env={OWN}")
    suite, module = find_suite(config.env_name), load_suite(config.env_name)
    arguments: tuple[Any, ...] = (scenario, config.kwargs, config.params)
    if config.assets is not None and not suite.has_assets:
        raise ConfigError(f"env.assets={config.assets} has no effect: {config.env_name} has its own models")
    if suite.on_host:
        options = HostOptions(config.vectorization, config.time_limit, evaluation, config.timeout, drawn)
        arguments = (*arguments, options)
    if suite.has_assets:
        arguments = (*arguments, config.assets)
    env = _rows_of_agents(wrappers.join_actions(module.make(*arguments)), config)
    return wrappers.join_actions(load_suite(OWN).wrap(env, config.wrappers)) if config.wrappers else env


def _rows_of_agents(env: VectorEnvironment, config: EnvConfig) -> VectorEnvironment:
    """Give each of several agents a row."""
    if find_rows(env) is not None:
        return env
    if env.num_agents > 1:
        return wrappers.AgentRows(env, config.team_reward, config.agent_ids)
    if changed := _changed(config, "team_reward", "agent_ids"):
        name = f"{config.env_name}/{config.scenario.task_name}"
        raise ConfigError(f"{changed[0].lower()} has no effect: {name} has one agent: leave it out")
    return env
