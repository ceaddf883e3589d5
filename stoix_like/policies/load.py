"""Trained policies and parameters, loaded from a run directory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from stoix_like.architectures.axes import make_mesh
from stoix_like.assembly import SystemParts, set_up_inference
from stoix_like.config import RunConfig, flatten, parse_config, with_env
from stoix_like.devices import check_host_calls, find_devices
from stoix_like.envs import factory
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError, DamagedError
from stoix_like.loggers.formats import format_number
from stoix_like.policies.hub import local_run
from stoix_like.policies.make import make_policy
from stoix_like.policies.policy import Policy
from stoix_like.storage import checkpoint
from stoix_like.storage.config_file import plain_config, read_config
from stoix_like.storage.contents import reading
from stoix_like.storage.recorded_runs import varied_hyperparams
from stoix_like.storage.returns import best_member, lacks_best, last_evaluation, named_best, returns_of
from stoix_like.storage.run_files import ENVIRONMENT, read_environment
from stoix_like.storage.trust import record_trusted
from stoix_like.user_code import refusing
from stoix_like.utils.accelerate.packing import replace_fields
from stoix_like.utils.jax_utils import select_members, shapes_on, take_member

_NONE_SELECTED = "last, as none was evaluated after an update"
# Inference logs nothing, and copies nothing.
_INFERENCE = ("logger=silent", "+checkpoint.mirror=null")


class TrainedRun(NamedTuple):
    """A trained run."""

    run_dir: Path  # its directory
    setup: SystemParts  # its configuration, environments and networks
    mesh: Mesh  # one device


class TrainedState(NamedTuple):
    """Trained state; of a population, with a leading axis `[P]`."""

    shared: Any  # the agent's shared state: parameters, statistics and counters
    env_steps: np.ndarray  # environment steps that each member was trained for, `[]` or `[P]`
    # Mean evaluation return of these parameters, `[]` or `[P]`; NaN if they were not evaluated.
    episode_return: np.ndarray
    hyperparams: Mapping[str, Sequence[float]] = {}  # by name, the hyperparameters of each member at that time
    selected: Sequence[str] = ()  # what these parameters are, for each member
    ranks: np.ndarray | None = None  # by which the best member is chosen, `[]` or `[P]`; None: by return

    def hyperparams_of(self, member: int) -> dict[str, float]:
        """Return the hyperparameters of one member."""
        return {name: float(values[member]) for name, values in self.hyperparams.items()}


class TrainedMember(NamedTuple):
    """Trained state of one member."""

    shared: Any  # the agent's shared state, without a population axis
    member: int  # index of the member, 0 without a population
    env_steps: int  # environment steps that the member was trained for
    hyperparams: dict[str, float]  # the hyperparameters of the member at that time
    selected: str  # what these parameters are: `best of 10 evaluations, return 195.30`


def load_policy(
    run_dir: str | Path,
    which: str | int = "best",
    member: int | Literal["best"] | None = None,
    greedy: bool | None = None,
    trust: bool = False,
    env: Any = None,
    agent: int | None = None,
) -> Policy:
    """Load a trained policy: `policy(observation)` returns an action in the units of the environment.

    The policy of a recurrent run keeps no state: `action, state = policy(observation, state, is_first)`, starting from
    `state = policy.initial_state(batch)`; see `RecurrentPolicy`.

    Args:
        run_dir: the directory of the run, or its address: on the Hugging Face Hub, `hf://owner/name`, or on an object
            store, `s3://bucket/run`.
        which: `best`, the parameters with the highest evaluation return, those before the first update excepted;
            `last`; or the environment steps of a kept checkpoint.
        member: member of a population; by default the best one.
        greedy: act by the mode of the policy; by default as `arch.evaluation_greedy` of the run.
        trust: allow the run's configuration to name code from outside this package.
        env: the environment of a run that was trained on an object passed from Python.
        agent: of a run with `network.share=false`, the agent that acts; None: all agents, each on
            its own row of observations `[..., A, *shape]`.

    Returns:
        The policy, which can also be exported.

    Raises:
        ConfigError: there is no such run, checkpoint, member or agent, or it does not hold a policy.
    """
    run = open_run(run_dir, trust, env, steps=False)
    chosen = load_member(run, which, member)
    setup, shared = run.setup, chosen.shared
    if agent is not None:
        setup, shared = _of_agent(setup, shared, agent)
    policy = make_policy(setup, shared, chosen.hyperparams, greedy=greedy, env_steps=chosen.env_steps)
    policy.selected, policy.member, policy.agent = chosen.selected, chosen.member, agent
    return policy


def _of_agent(setup: SystemParts, shared: Any, agent: int) -> tuple[SystemParts, Any]:
    """Return what builds the policy of one agent with networks of its own."""
    spec = setup.spec
    if spec.share_networks:
        raise ConfigError(f"agent={agent} has no effect: {setup.name} has one policy: leave it out")
    if isinstance(agent, bool | float) or agent not in range(spec.num_agents):
        raise ConfigError(f"agent={agent!r} does not exist: use 0 to {spec.num_agents - 1}")
    own = setup._replace(spec=spec._replace(share_networks=True))
    return own, replace_fields(shared, params=take_member(shared.params, agent))


def open_run(run_dir: str | Path, trust: bool = False, env: Any = None, steps: bool = True) -> TrainedRun:
    """Read a run's configuration, and build what its policies need, on one device."""
    directory = local_run(run_dir)
    run = with_env(parse_config(read_config(directory, _INFERENCE, trust, learns=False)), env)
    described = None if steps else _described(directory, run)
    mesh, setup = make_mesh(find_devices(1)), set_up_inference(run, described)
    if steps and setup.env.on_host:
        check_host_calls(run.environment_name)
    if trust:
        record_trusted(flatten(plain_config(directory)), sends=False)
    return TrainedRun(directory, setup, mesh)


def _described(run_dir: Path, run: RunConfig) -> VectorEnvironment | None:
    """Return the environments of a run as it describes them; None if it does not, or plans with them."""
    description = read_environment(run_dir)
    if description is None or run.system.needs_model or run.system.plays_both_seats:
        return None
    with reading(run_dir / ENVIRONMENT, "delete it, and the environment is built"):
        return factory.make_described(run.env, description)


def load_shared(run: TrainedRun, which: str | int = "best") -> TrainedState:
    """Load the trained state of every member."""
    run_dir, steps = run.run_dir, checkpoint.steps(run.run_dir)
    if not steps:
        raise ConfigError(f"run_dir={run_dir} holds no checkpoint: evaluate a run that saved one, or resume it first")
    which = str(which)  # environment steps may be a number
    if which not in ("best", "last") and which not in map(str, steps):
        raise ConfigError(f"which={which} is unknown: use best, last, or one of {', '.join(map(str, steps))}")
    for step in reversed(steps) if which in ("best", "last") else [int(which)]:
        try:
            with reading(run_dir):
                return _read(run, step, which)
        except DamagedError as error:
            if which not in ("best", "last"):
                what = f"the checkpoint after {step:,} steps is damaged or of another version"
                raise ConfigError(f"{what}: {error}; use another one, or move it away") from error
            print(f"skipping the damaged checkpoint at {step:,} steps: {error}", file=sys.stderr)
    # A run that trains replaces its checkpoints meanwhile.
    if checkpoint.steps(run_dir)[-1:] > steps[-1:]:
        return load_shared(run, which)
    raise ConfigError(f"all checkpoints of {run_dir} are damaged: use another run")


def load_member(run: TrainedRun, which: str | int, member: int | str | None) -> TrainedMember:
    """Load the trained state of one member."""
    state = load_shared(run, which)
    index = choose_member(state, member)
    shared = take_member(state.shared, index) if state.env_steps.ndim else state.shared
    env_steps = int(np.atleast_1d(state.env_steps)[index])
    return TrainedMember(shared, index, env_steps, state.hyperparams_of(index), state.selected[index])


def choose_member(state: TrainedState, member: int | str | None) -> int:
    """Return the index of a member of a population."""
    returns = np.atleast_1d(state.episode_return)
    if isinstance(member, str) and member.isdigit():
        member = int(member)
    if member in (None, "best"):
        return best_member(returns if state.ranks is None else state.ranks)
    if isinstance(member, bool) or not isinstance(member, int | np.integer) or not 0 <= member < returns.size:
        raise ConfigError(f"member={member} does not exist: use best, or 0 to {returns.size - 1}")
    return int(member)


def _read(run: TrainedRun, step: int, which: str) -> TrainedState:
    """Read one checkpoint; its records say how many members it has, and what their hyperparameters were."""
    item = "best" if which == "best" else "shared"
    found = checkpoint.read(run.run_dir, step, lambda host_state: _targets(run, host_state, item))
    if item not in found.items:
        raise ConfigError(
            f"which=best: {run.run_dir} holds no best parameters (checkpoint.keep_best=false,"
            " arch.absolute_metric=false): use last"
        )
    history, hyperparams = found.host_state["progress"]["history"], _hyperparams(found.host_state)
    population = run.setup.config.arch.population
    returns, lacking, ranks = returns_of(found.host_state, step, item == "best")
    if which in ("best", "last") and (named := named_best(run.run_dir, step)) is not None:
        ranks = np.equal(np.arange(returns.size), named).astype(float)
    env_steps, shared = np.full(returns.shape, step), found.items[item]
    what = np.full(returns.shape, {"best": _NONE_SELECTED, "last": "last"}.get(which, "checkpoint"), object)
    if item == "best":
        best = found.host_state["best"]
        if lacking.any():
            shared = select_members(found.items["shared"], shared, jnp.asarray(lacking))
        env_steps = np.where(lacking, env_steps, best["env_steps"])
        number = len(history) - 1
        kept = "last" if run.setup.config.arch.keeps_last else "best"
        what = np.where(lacking, what, f"{kept} of {number} evaluation{'s' * (number != 1)}")
        if population.evolves:
            hyperparams = best.get("hyperparams") or hyperparams
    pairs = zip(what.flat, returns.flat, strict=True)
    selected = [f"{name}, return {format_number(value)}" if np.isfinite(value) else name for name, value in pairs]
    return TrainedState(shared, env_steps, returns, hyperparams, selected, ranks)


def _targets(run: TrainedRun, host_state: Mapping[str, Any], item: str) -> dict[str, Any]:
    """Return the items to read, with the last parameters where there may be no best ones."""
    shapes = _shapes(run, host_state)
    needs_last = item == "best" and "best" in host_state and lacks_best(host_state).any()
    return {item: shapes, **({"shared": shapes} if needs_last else {})}


def _hyperparams(host_state: Mapping[str, Any]) -> Mapping[str, Sequence[float]]:
    """Return the last hyperparameters of the members, by name."""
    progress, best = host_state["progress"], host_state.get("best", {})
    return progress.get("hyperparams") or varied_hyperparams(last_evaluation(host_state)) or best.get("hyperparams", {})


def _shapes(run: TrainedRun, host_state: Mapping[str, Any]) -> Any:
    """Return the shapes of the shared state of a run, or of all its members, placed on one device."""
    setup, sharding = run.setup, jax.sharding.SingleDeviceSharding(run.mesh.devices.flat[0])
    shape = np.shape(last_evaluation(host_state)["eval/episode_return_mean"])

    def init(hyperparams: dict[str, Any], key: jax.Array) -> Any:
        _, timestep = setup.env.reset(jax.random.split(key, setup.spec.num_envs))
        return setup.build_system(hyperparams).init(key, timestep).shared

    varied = {name: np.asarray(values, np.float32) for name, values in _hyperparams(host_state).items()}
    keys = jax.eval_shape(lambda: jnp.broadcast_to(jax.random.key(0), shape))
    with refusing(f"run_dir={run.run_dir}: its agent cannot be built", "use the code that it was trained with"):
        shapes = jax.eval_shape(jax.vmap(init) if shape else init, varied if shape else {}, keys)
    return shapes_on(sharding, shapes)
