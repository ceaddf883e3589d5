"""Every part of a run, built and checked before anything compiles."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from stoix_like.arch_config import OfflineConfig, SebulbaConfig
from stoix_like.architectures.acting import start_episodes
from stoix_like.architectures.axes import BATCH_AXIS, DEVICE_AXIS, make_axes, make_mesh
from stoix_like.architectures.types import Inputs, ProgramSpec
from stoix_like.architectures.update import ShardProgram
from stoix_like.assembly import SystemParts, inputs_of, make_spec
from stoix_like.base_types import ACHIEVED, DESIRED, Axes, RolloutState, System, SystemSpec
from stoix_like.callbacks import Callback
from stoix_like.config import RunConfig, flatten
from stoix_like.data.files import KEY
from stoix_like.devices import check_host_calls
from stoix_like.envs import factory
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.spaces import describe, fits
from stoix_like.errors import ConfigError, first_line, multiples_near, raised_at, reason
from stoix_like.interpreter import exit_if_run_again
from stoix_like.loggers import Logger, check_available
from stoix_like.networks.from_config.modules import build_networks
from stoix_like.networks.requirements import MisfitError, check_networks
from stoix_like.processes import ALONE, Processes
from stoix_like.rendering.animation import check_writer
from stoix_like.run.host.devices import RunDevices, check_fused, devices_of, set_compile_cache
from stoix_like.run.host.plan import Plan, make_plan, spread_members
from stoix_like.run.population import pbt
from stoix_like.run.population.members import Population, bounded, check_ends, count_members, make_population
from stoix_like.run.set_up import influence, memory_estimate
from stoix_like.run.set_up.custom import make_callbacks, make_custom_loggers
from stoix_like.run.set_up.notes import notes_on_parts, notes_on_population
from stoix_like.run.set_up.recorded import read_recorded
from stoix_like.run.set_up.suggestions import suggest_network, suggest_systems
from stoix_like.run.set_up.teaching import KEY as TEACHER
from stoix_like.run.set_up.teaching import load_teacher
from stoix_like.run.set_up.variables import check_variables
from stoix_like.schema import replace_values
from stoix_like.storage.run_files import is_address
from stoix_like.storage.store import normalised
from stoix_like.user_code import name_of, user_errors
from stoix_like.utils.accelerate.successors import count_truncations


class RunSetup(NamedTuple):
    """The parts of a run; nothing is compiled yet."""

    config: RunConfig  # the typed configuration
    population: Population  # the members
    mesh: Mesh  # the devices
    plan: Plan  # sizes, number of updates, evaluations
    env: VectorEnvironment  # environments to train in
    eval_env: VectorEnvironment  # environments to evaluate in
    spec: SystemSpec  # what the system is built from
    lone_shards: bool
    drawn_env: VectorEnvironment | None = None  # environments to record videos of; None without `logger.video`
    actor_devices: tuple[jax.Device, ...] = ()  # with Sebulba, the device of each actor
    # When the program, or the call that starts the run, started, on the clock of `time.perf_counter`.
    started: float = 0.0
    device_memory: int = 0  # memory of each device in bytes
    processes: Processes = ALONE  # the processes that the run spans
    callbacks: Sequence[Callback] = ()  # called in this order
    loggers: Sequence[Logger] = ()  # custom loggers; they open and write nothing before `start`
    # The hashes of the recorded data and of the teacher, by the key that names them.
    contents: Mapping[str, str] = MappingProxyType({})
    shared: Any = None  # shapes of the shared state of a member
    description: Mapping[str, Any] | None = None  # what policies know of the environments; None if they need more

    @property
    def most_truncations(self) -> int | None:
        """None where all successors are needed, or where it is unknown."""
        return _most_truncations(self.config, self.env)

    @property
    def steps_on_host(self) -> bool:
        """True if training steps environments on the host."""
        return self.env.on_host and not isinstance(self.config.arch, OfflineConfig)

    @property
    def parts(self) -> SystemParts:
        """Parts of a policy of the run."""
        return SystemParts(self.config, self.eval_env, self.spec)

    def close(self) -> None:
        """Close the environments."""
        for env in (self.env, self.eval_env, self.drawn_env):
            if env is not None:
                env.close()

    def build_system(
        self, hyperparams: dict[str, Any] | None = None, greedy: bool | None = None, inputs: Inputs | None = None
    ) -> System:
        """Build the system."""
        return self.parts.build_system(hyperparams, greedy, inputs)


def set_up(config: RunConfig, started: float | None = None, device_memory: int | None = None) -> RunSetup:
    """Build every part of a run, and refuse what cannot work before anything compiles or is written.

    `device_memory`: memory of each device in bytes; by default read from the devices of this machine.
    """
    exit_if_run_again()
    started = time.perf_counter() if started is None else started
    resume_from = config.arch.resume_from
    if resume_from is not None and config.checkpoint.mirror is None and is_address(resume_from):
        config = config.with_mirror(normalised(resume_from))
    check_available(config.logger)
    devices = devices_of(config.arch)
    _check_same(_shared_by_processes(config), devices.processes)
    setup = devices.processes.together(lambda: _set_up(config, devices, started, device_memory))
    _check_same(setup.contents, devices.processes)
    return setup


def _set_up(config: RunConfig, devices: RunDevices, started: float, device_memory: int | None) -> RunSetup:
    env, eval_env = _make_environments(config)
    drawn_env, num_members = _make_drawn(config), count_members(config)
    spread, spread_notes = spread_members(num_members, len(devices.learner))
    mesh = make_mesh(devices.learner, spread)
    check_fused(config.arch, devices.learner)
    plan = make_plan(config, mesh.shape[DEVICE_AXIS], env.num_agents)
    if isinstance(config.arch, SebulbaConfig):
        _check_sebulba(config, config.arch, env, plan.num_shards, num_members)
    set_compile_cache(config.arch.compile_cache)
    memory = device_memory or memory_estimate.available_memory(mesh)
    recorded, taught = read_recorded(config, env, memory), load_teacher(config, env)
    lone_shards, left_out = num_members == 1 and plan.num_shards == mesh.size, list[str]()
    networks, sizes = _build_networks(config, env, left_out), (plan.num_updates, plan.rows_per_shard, plan.num_shards)
    spec = make_spec(config, env, networks, *sizes, make_axes(mesh, lone_shards), recorded.data, taught.teacher)
    parts = SystemParts(config, eval_env, spec)
    shapes = _shapes(parts, env)
    check_variables(shapes.agent.shared, config)
    notes = [*plan.notes, *spread_notes, *notes_on_parts(config, env, networks), *recorded.notes, *taught.notes]
    space = env.observation_space
    notes += [*left_out, *memory_estimate.check_estimate(config, plan, mesh, num_members, space, shapes, memory)]
    # Members are built once they are known to fit into memory.
    population = make_population(config)
    _check_members(config, population, plan)
    notes += _notes_on_members(config, population, parts, env)
    setup = RunSetup(
        config=config,
        population=population,
        mesh=mesh,
        plan=plan._replace(notes=tuple(notes)),
        env=env,
        eval_env=eval_env,
        spec=spec,
        lone_shards=lone_shards,
        drawn_env=drawn_env,
        actor_devices=devices.actors,
        started=started,
        device_memory=memory,
        processes=devices.processes,
        callbacks=make_callbacks(config),
        loggers=make_custom_loggers(config),
        contents={key: one.content for key, one in ((KEY, recorded), (TEACHER, taught)) if one.content},
        shared=shapes.agent.shared,
        description=factory.describe_episodes(config.env, eval_env, shapes.episode.timestep.observation),
    )
    return _check_averages(setup)


def _make_environments(config: RunConfig) -> tuple[VectorEnvironment, VectorEnvironment]:
    """Build the environments to train and to evaluate in, and refuse those that the system does not fit."""
    made_of = (config.env, config.custom_env, config.matmul_precision)
    env, eval_env = factory.make(*made_of), factory.make_eval(*made_of)
    if env.on_host:
        check_host_calls(config.environment_name)
    if not fits(config.system, env.action_space):
        raise ConfigError(
            f"system={config.system_name} does not fit the {describe(env.action_space)} of"
            f" {config.environment_name}: {suggest_systems(config.system_name, env.action_space)}"
        )
    if config.system.needs_goals and not {"observation", ACHIEVED, DESIRED} <= set(
        getattr(env.observation_space, "spaces", ())
    ):
        raise ConfigError(
            f"system={config.system_name} needs observations with the entries observation, {ACHIEVED} and {DESIRED},"
            f" which {config.environment_name} lacks: use env=goals/point_maze, or another system"
        )
    if env.num_players == 2 and not config.system.plays_both_seats:
        raise ConfigError(
            f"env.kwargs.opponent=self: system={config.system_name} learns from one seat of {config.environment_name}:"
            " use system=search/ff_az, or an opponent, env.kwargs.opponent=random"
        )
    return env, eval_env


def _notes_on_members(
    config: RunConfig, population: Population, parts: SystemParts, env: VectorEnvironment
) -> Iterator[str]:
    varied = population.hyperparams
    if varied and population.num_members > 1:
        yield from influence.notes(influence.effective(parts, env, varied), varied)
    elif config.arch.population.evolves:
        yield "arch.population.pbt copies members and explores nothing: arch.population.hyperparams is empty"
    yield from notes_on_population(config.arch.population)


def _shared_by_processes(config: RunConfig) -> dict[str, str]:
    """Return by key what all processes of a run must agree on; only the first one logs, and calls callbacks."""
    logger = config.logger
    # What the programs record, and when all processes read arrays for a video.
    recorded = {"every_updates": logger.every_updates, "diagnostics": logger.diagnostics}
    recorded |= {"video.every_evals": logger.video.every_evals}
    passed = {"callbacks from Python": [type(callback).__name__ for callback in config.custom_callbacks]}
    compared = {**config.resolved, "logger": recorded, "versions": config.versions, **passed}
    return {key: repr(value) for key, value in flatten(compared)}


def _check_same(own: Mapping[str, str], processes: Processes) -> None:
    """Refuse processes that differ in what they would run."""
    own = dict(own)
    first = processes.first(lambda: own)

    def check() -> None:
        if differing := sorted(key for key in own.keys() | first.keys() if own.get(key) != first.get(key)):
            raise ConfigError(
                f"process {processes.index} has other values of {', '.join(differing)} than process 0: start every"
                " process with the same ones"
            )

    processes.together(check)


def _make_drawn(config: RunConfig) -> VectorEnvironment | None:
    """Build the environments to record videos of, if any, and check that they can be drawn and written."""
    video = config.logger.video
    if not video.every_evals:
        return None
    setting = f"logger.video.every_evals={video.every_evals}"
    check_writer(video.format, setting)
    try:
        return factory.make_drawn(config.env, config.custom_env, config.matmul_precision)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}; or record none, logger.video.every_evals=0") from error


def _check_sebulba(
    config: RunConfig, arch: SebulbaConfig, env: VectorEnvironment, num_shards: int, num_members: int
) -> None:
    """Refuse what the actors of Sebulba cannot do."""
    unit = arch.num_actors * num_shards
    if not env.on_host:
        raise ConfigError(
            f"arch=sebulba steps environments on the host, and {config.environment_name} runs on the accelerator:"
            " use arch=anakin, or an environment of env=gymnasium or env=envpool"
        )
    if config.logger.diagnostics:
        raise ConfigError(
            "logger.diagnostics=true does not fit arch=sebulba, whose updates are one call each: use arch=anakin, or"
            " logger.diagnostics=false"
        )
    if num_members > 1:
        raise ConfigError(
            f"arch.population.size={num_members} does not fit arch=sebulba, which trains one member: use 1, or"
            " arch=anakin"
        )
    if arch.total_num_envs % unit:
        raise ConfigError(
            f"arch.total_num_envs={arch.total_num_envs} must be a multiple of {unit}, {arch.num_actors} actor(s) ×"
            f" {num_shards} shard(s) of the learner: use {multiples_near(arch.total_num_envs, unit)}"
        )


def _build_networks(config: RunConfig, env: VectorEnvironment, notes: list[str]) -> SimpleNamespace:
    """Build the modules, and suggest a network that fits where the configured one does not."""
    arch, spaces = config.arch, (config.system.policy_space(env.action_space), env.observation_space)
    try:
        networks = build_networks(
            config.network, *spaces, dtype=arch.torso_dtype, notes=notes, fused=arch.fused_networks
        )
        check_networks(networks, config.system, config.system_name)
    except MisfitError as error:
        advice = suggest_network(config, *spaces)
        raise MisfitError(error.problem, advice) from error
    return networks


def _check_members(config: RunConfig, population: Population, plan: Plan) -> None:
    """Let the system check the hyperparameters of every member, as it checks the configuration's."""
    selection = config.arch.population.pbt
    if selection.every_evals is None and selection.bounds:
        raise ConfigError(
            f"arch.population.pbt.bounds={selection.bounds} bounds what selections explore, and none are made: set"
            " arch.population.pbt.every_evals=1"
        )
    if selection.every_evals is not None:
        if population.num_members == 1:
            raise ConfigError("arch.population.pbt.every_evals needs several members: set arch.population.size=16")
        if selection.every_evals >= len(plan.evaluations):
            raise ConfigError(
                f"arch.population.pbt.every_evals={selection.every_evals} selects at none of {len(plan.evaluations)}"
                " evaluation(s), the last of which is the result: use fewer, or null"
            )
        keys = bounded(config.arch.population, selection.bounds, "arch.population.pbt.bounds")
        ranges = {name: (keys[name][0], space.low, space.high) for name, space in pbt.spaces(config).items()}
        check_ends(config, ranges, plan.check)
    for member in range(population.num_members if population.hyperparams else 0):
        try:
            plan.check(replace_values(config.system, population.of(member)))
        except ConfigError as error:
            raise ConfigError(f"arch.population.hyperparams, member {member}: {error}") from error


def _check_averages(setup: RunSetup) -> RunSetup:
    """Refuse a custom system that forgets to average over devices: each would train its own agent.

    Where devices have several shards, their vmapped axis shows it when the programs are traced.
    """
    num_devices, spec = setup.mesh.shape[DEVICE_AXIS], setup.spec
    several_each = setup.plan.num_shards > num_devices
    custom = not name_of(setup.config.build).startswith("stoix_like.")
    # The trace takes about a second; tests know that the systems of this package average.
    if num_devices == 1 or several_each or not custom:
        return setup
    axes, offline = Axes((BATCH_AXIS,)), isinstance(setup.config.arch, OfflineConfig)
    system = setup.parts._replace(spec=spec._replace(axes=axes)).build_system()
    sizes = ProgramSpec(1, spec.num_envs, spec.rollout_length, most_truncations=setup.most_truncations, offline=offline)
    program = ShardProgram(system, setup.env, axes, sizes, inputs_of(spec))

    def trace(key: jax.Array) -> None:
        state = start_episodes(setup.env, system, jax.random.split(key, spec.num_envs))
        program.check_averages(spec.num_shards, system.init(key, state.timestep), state, key)

    try:
        jax.eval_shape(trace, jax.eval_shape(jax.random.key, 0))
    except ConfigError:
        raise
    except Exception as error:  # Calls of the host may have no form for several shards, one per device.
        note = f"whether the update averages over devices, by spec.axes.mean, could not be checked: {first_line(error)}"
        return setup._replace(plan=setup.plan._replace(notes=(*setup.plan.notes, note)))
    return setup


def _most_truncations(config: RunConfig, env: VectorEnvironment) -> int | None:
    if config.system.reads_successors or env.on_host:
        return None
    return count_truncations(config.system.rollout_length, env.truncates_after)


def _shapes(setup: SystemParts, train_env: VectorEnvironment) -> memory_estimate.Shapes:
    """Trace the initialisation of the agent and its first actions, so that unsuitable networks fail here."""

    def trace(key: jax.Array) -> memory_estimate.Shapes:
        system = setup.build_system()

        def start(env: VectorEnvironment, num_envs: int) -> RolloutState:
            return start_episodes(env, system, jax.random.split(key, num_envs * env.num_agents))

        num_envs = setup.spec.num_envs // train_env.num_agents
        state = start(train_env, num_envs)
        agent = system.init(key, state.timestep)
        system.eval_act(agent.shared, state, key)
        one = start(train_env, 1)
        _, action, extras = system.act(agent.shared, one, key)
        whole = _most_truncations(setup.config, train_env) is None
        step = (one.timestep.observation, one.timestep.next_observation if whole else (), action, extras)
        several = state if num_envs > 1 else start(train_env, 2)
        return memory_estimate.Shapes(agent, one, several, start(setup.env, 1), step)

    try:
        return jax.eval_shape(trace, jax.eval_shape(jax.random.key, 0))
    except user_errors() as error:
        if isinstance(error, ConfigError) or os.environ.get("HYDRA_FULL_ERROR"):
            raise
        raise ConfigError(
            f"system={setup.config.system_name} cannot be built with this network: {reason(error)}{raised_at(error)}"
            " (HYDRA_FULL_ERROR=1 shows where)"
        ) from error
