"""Evaluation of trained runs: `stoix-like evaluate`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from omegaconf import OmegaConf

from stoix_like.architectures.evaluator import Episodes, make_evaluator
from stoix_like.assembly import SystemParts, set_up_inference
from stoix_like.base_types import System
from stoix_like.composition import compose_config, override_config
from stoix_like.config import RunConfig
from stoix_like.devices import check_host_calls
from stoix_like.envs import factory
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.factory import EnvConfig
from stoix_like.envs.opponents import Opponent
from stoix_like.envs.spaces import bounds, entries
from stoix_like.errors import ConfigError, DamagedError, TrainingError
from stoix_like.inference.baseline import BaselinePolicy, compared, with_policy
from stoix_like.loggers.formats import center_name, format_number
from stoix_like.policies.load import TrainedRun, load_member, load_shared, open_run
from stoix_like.policies.visits import check_seed
from stoix_like.rendering.animation import check_path, write_animation
from stoix_like.rendering.episode import Recorder
from stoix_like.run.host.devices import device_names, set_compile_cache
from stoix_like.run.population.members import Population, count_members, make_population
from stoix_like.run.records import records
from stoix_like.run.records.recording import Progress
from stoix_like.schema import from_mapping, replace_values
from stoix_like.storage import checkpoint
from stoix_like.storage.contents import reading
from stoix_like.storage.files import check_directory, write_json
from stoix_like.storage.run_files import EVALUATIONS
from stoix_like.user_code import name_of, refusing
from stoix_like.utils.jax_utils import take_member

INTERVAL = f"95 % percentile bootstrap of the mean over episodes, {records.NUM_RESAMPLES} resamples"
# Episodes per member and call, to bound memory.
_BATCH_SIZE = 1024
_MAX_PRINTED_MEMBERS = 40
# The results hold each episode, and their bootstrap draws `NUM_RESAMPLES` times as many.
MAX_EPISODES = 1_000_000
# Folded into the key of the seed: training with `arch.seed` starts from the key itself.
_EVALUATION_STREAM = 0xE7A1
_WRITE = "write the results"


class EvaluatedMembers(NamedTuple):
    """Trained members to evaluate."""

    shared: Any  # their shared state, with a leading axis `[M]` for several members
    members: tuple[int, ...]  # `[M]` indices of the members
    env_steps: tuple[int, ...]  # `[M]` environment steps that each member was trained for
    hyperparams: tuple[dict[str, float], ...]  # `[M]` hyperparameters of each member
    selected: tuple[str, ...]  # `[M]` how the parameters of each member were selected
    diverged: tuple[int, ...] = ()  # members with parameters from before they diverged


def evaluate(
    run_dir: str | Path,
    episodes: int = 100,
    *,
    which: str | int = "best",
    member: int | str | None = "best",
    seed: int = 0,
    render: str | Path | None = None,
    opponent: str | Opponent | None = None,
    randomize: bool | None = None,
    simulations: int | None = None,
    policy: str | BaselinePolicy | None = None,
    trust: bool = False,
    env: Any = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Evaluate a trained run on whole episodes, and write the results to a new JSON file in the run's directory.

    Start states depend only on `seed` and `episodes`, so that members, checkpoints and runs can be compared on the same
    ones.

    Args:
        run_dir: the directory of the run, or its address: on the Hugging Face Hub, `hf://owner/name`, or on an object
            store, `s3://bucket/run`.
        episodes: number of episodes per member, at most 1,000,000 over all members.
        which: `best`, the parameters with the highest evaluation return; `last`; or the environment steps of a kept
            checkpoint.
        member: index of a member of a population, `best`, or `all`.
        seed: seed of the start states and of sampled actions, below 2**32.
        render: path of a gif or mp4 file that shows one more episode, of the best member if `member` is `all`.
        opponent: of a run of self-play, the other player, a function or as `env.eval_opponent`; None: as in training.
        randomize: whether to draw the parameters of the physics model for each episode, of a run with
            `env.randomization`; None: as in training's evaluations.
        simulations: of systems that search, simulations per step, 0 for the policy alone; None: as in training.
        policy: compare on the same episodes with `random`, a `BaselinePolicy` or its import path.
        trust: allow the run's configuration to name code from outside this package.
        env: the environment of a run that was trained on an object passed from Python.
        overrides: another environment with equal spaces, `env=mjx/half_cheetah`, and its keys, without any from the
            run; or, without a choice, keys of the run's environment, `env.sticky_actions=0.25`.

    Returns:
        The results: `episode_return_mean`, `_std`, `_min`, `_max`, `_ci_low` and `_ci_high`, `episode_length_mean`,
        the individual `episode_returns` and `episode_lengths`, and the `path` of the file in `evaluations/`, None if
        writing failed. With `policy`, its results as `baseline`, with the mean paired `difference`. Of self-play, also
        `opponent`, `wins`, `draws` and `losses`. With `member="all"`, `members` holds such results per member; their
        interquartile mean is `episode_return_iqm`, where those that `diverged` count as the lowest, except for `best`.

    Raises:
        ConfigError: an argument is invalid, or there is no such run, checkpoint or member.
        MissingExtraError: `render` is an mp4 file and ffmpeg is not installed.
        HostEnvironmentError: an environment on the host failed.
    """
    if not 1 <= episodes <= MAX_EPISODES:
        raise ConfigError(f"episodes={episodes} must be an integer from 1 to {MAX_EPISODES:,}")
    check_seed(seed)
    run = open_run(run_dir, trust, env, steps=not overrides)
    trained_on = run.setup.config.environment_name
    run = _in_environment(run, overrides) if overrides else run
    run = run if opponent is None else _with_opponent(run, opponent)
    run = run if randomize is None else _with_env(run, randomize_evaluation=randomize)
    run = run._replace(setup=run.setup._replace(config=with_simulations(run.setup.config, simulations)))
    members = count_members(run.setup.config) if member == "all" else 1
    if episodes * members > MAX_EPISODES:
        raise ConfigError(
            f"member=all: episodes={episodes} of each of {members:,} members are too many: use at most"
            f" {MAX_EPISODES // members} episodes, or one member"
        )
    drawn = None if render is None else _make_drawn(run, Path(render))
    trained = _load(run, which, member)
    if policy is not None and len(trained.members) > 1:
        raise ConfigError(f"policy={name_of(policy)}: compare one member with it, not member=all")
    set_compile_cache(run.setup.config.arch.compile_cache)
    play_key, render_key = _keys(seed)
    population = make_population(run.setup.config)
    with contextlib.closing(run.setup.env):
        played = _play(run, trained, episodes, play_key, None)
        record = {**_record(run, population, trained, played), "which": which, "seed": seed, "episodes": episodes}
        if overrides:
            record |= {"overrides": list(overrides), "trained_on": trained_on}
        if policy is not None:
            native = _with_env(run, rescale_actions=False)
            with contextlib.closing(native.setup.env):
                other = _play(native, trained, episodes, play_key, policy)
            record["baseline"] = _baseline(name_of(policy), played, other)
        if simulations is not None:
            record["simulations"] = simulations
        searched = "" if simulations is None else f"-{simulations}simulations"
        elsewhere = f"-{run.setup.config.environment_name.replace('/', '-')}" if overrides else ""
        chosen = "-all" if len(trained.members) > 1 else f"-member{trained.members[0]}"
        suffix = chosen if population.num_members > 1 else ""
        stem = f"{which}{suffix}-seed{seed}-{episodes}episodes{searched}{elsewhere}"
        path = write_results(run.run_dir / EVALUATIONS, stem, record)
        if render is not None and drawn is not None:
            with _reported("render an episode", ConfigError, TrainingError, OSError):
                record["render"] = _render(run.setup, trained, _best(trained, played), render_key, Path(render), drawn)
        if "render" in record and path is not None:
            with _reported(_WRITE, OSError):
                write_json(path, record)
    return {**record, "path": path}


def render(run_dir: str | Path, path: str | Path, *, member: int) -> None:
    """Render an episode of the best policy of a trained run, and write nothing else."""
    run = open_run(run_dir)
    env = _make_drawn(run, Path(path))
    set_compile_cache(run.setup.config.arch.compile_cache)
    _render(run.setup, _load(run, "best", member), 0, _keys(0)[1], Path(path), env)


def describe(record: Mapping[str, Any]) -> str:
    """Format the results of an evaluation for the terminal."""
    acting = "greedy" if record["greedy"] else "sampled"
    against = f" against {record['opponent']}" if "opponent" in record else ""
    simulations = f", {record['simulations']} simulations" if "simulations" in record else ""
    trained = f", trained on {record['trained_on']}" if "overrides" in record else ""
    lines = [
        f"{record['system']} on {record['environment']}{trained}: {record['which']} parameters,"
        f" {record['episodes']} episodes ({acting}){against}{simulations}, seed {record['seed']}"
    ]
    members = record.get("members")
    lines += [_line(member, record["step_unit"]) for member in (members or [record])[:_MAX_PRINTED_MEMBERS]]
    if members:
        if len(members) > _MAX_PRINTED_MEMBERS:
            lines.append(f"  … {len(members) - _MAX_PRINTED_MEMBERS} more members in the file")
        iqm, low, high = (format_number(record[f"episode_return_{name}"]) for name in ("iqm", "ci_low", "ci_high"))
        lines.append(f"  {center_name(len(members))} over members {iqm}   95 % {low} to {high}")
    if baseline := record.get("baseline"):
        lines.append(compared(baseline))
    if diverged := record.get("diverged"):
        counted = ", and count as the lowest of the others" if len(diverged) < len(members or ()) else ""
        lines.append(f"  member(s) {', '.join(map(str, diverged))} diverged{counted}")
    if record["episodes_cut"]:
        lines.append(f"  {record['episodes_cut']} episode(s) did not end within arch.max_eval_steps")
    if render := record.get("render"):
        lines.append(f"  {render['frames']} frames of {render['steps']} steps in {render['path']}")
    if record["path"] is not None:
        lines.append(f"  written to {record['path']}")
    return "\n".join(lines)


def _line(record: Mapping[str, Any], unit: str) -> str:
    values = {name: format_number(value) for name, value in record.items() if name.startswith("episode_")}
    varied = "".join(f" {name}={value:.3g}" for name, value in record["hyperparams"].items())
    member = f"member {record['member']}{varied}   " if "member" in record else ""
    interval = "95 % of the mean {episode_return_ci_low} to {episode_return_ci_high}   ".format_map(values)
    interval = interval if record["episode_return_ci_low"] is not None else ""
    measures = "".join(f"\n    {name} {format_number(record[name])}" for name in record.get("measures", ()))
    games = f"\n    {record['wins']} won, {record['draws']} drawn, {record['losses']} lost" if "wins" in record else ""
    return (
        (
            "  {}return {episode_return_mean}   std {episode_return_std}   {}min {episode_return_min}"
            "   max {episode_return_max}   length {episode_length_mean}\n    {} {:,} ({})"
        ).format(member, interval, unit, record["env_steps"], record["selected"], **values)
        + measures
        + games
    )


def _in_environment(run: TrainedRun, overrides: Sequence[str]) -> TrainedRun:
    """Play in another environment that has the spaces of the run's, or change keys of that."""
    if others := [word for word in overrides if not word.lstrip("+").startswith(("env=", "env."))]:
        raise ConfigError(f"{others[0]}: only the environment can differ from training: use env=NAME or env.KEY=VALUE")
    config, run_env = run.setup.config, run.setup.env
    words = [word.removeprefix("+") if word.startswith("+env=") else word for word in overrides]
    is_another = not {word.partition("=")[0] for word in words}.isdisjoint(("env", "env._target_"))
    composed = compose_config(words) if is_another else override_config(OmegaConf.create(config.resolved), overrides)
    values = cast(dict[str, Any], OmegaConf.to_container(composed.env, resolve=True))
    env_config = from_mapping(EnvConfig, values, "env")
    config = config._replace(env=env_config, custom_env=None if is_another else config.custom_env)
    env = factory.make_eval(config.env, config.custom_env, config.matmul_precision)
    run_env.close()
    if _interface(env) != _interface(run_env):
        env.close()
        raise ConfigError(
            f"{' '.join(overrides)}: the policy observes {run_env.observation_space} and acts in"
            f" {run_env.action_space} for {run_env.num_agents} agent(s), but {config.environment_name} has"
            f" {env.observation_space}, {env.action_space} and {env.num_agents}: use one with equal shapes, dtypes and"
            " actions"
        )
    if env.on_host:
        check_host_calls(config.environment_name)
    return run._replace(setup=set_up_inference(config, env))


def _interface(env: VectorEnvironment) -> Any:
    """Return the shapes, dtypes and actions that a policy depends on."""
    views = {name: (tuple(part.shape), jnp.dtype(part.dtype)) for name, part in entries(env.observation_space).items()}
    space: Any = env.action_space
    limits = [np.broadcast_to(bound, space.shape).tolist() for bound in bounds(space)]
    return views, repr(space), limits, env.num_agents, env.num_players


def _with_opponent(run: TrainedRun, opponent: str | Opponent) -> TrainedRun:
    """Replace the opponent of a run of self-play."""
    if run.setup.spec.num_players == 1:
        raise ConfigError(
            f"opponent={name_of(opponent)} has no effect on {run.setup.config.environment_name}: it is for games in"
            " which the system plays both seats, env.kwargs.opponent=self"
        )
    return _with_env(run, eval_opponent=opponent)


def _keys(seed: int) -> jax.Array:
    """Return the key of the episodes and the key of the rendered one."""
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), _EVALUATION_STREAM))


def _with_env(run: TrainedRun, **changes: Any) -> TrainedRun:
    setup = run.setup
    config = setup.config._replace(env=dataclasses.replace(setup.config.env, **changes))
    env = factory.make_eval(config.env, config.custom_env, config.matmul_precision)
    return run._replace(setup=setup._replace(config=config, env=env))


def _make_drawn(run: TrainedRun, path: Path) -> VectorEnvironment:
    """Check the path, and build the environment to draw."""
    check_path(path)
    config = run.setup.config
    return factory.make_drawn(config.env, config.custom_env, config.matmul_precision)


def _load(run: TrainedRun, which: str | int, member: int | str | None) -> EvaluatedMembers:
    if member == "all":
        loaded = load_shared(run, which)
        members, env_steps = tuple(range(loaded.env_steps.size)), tuple(loaded.env_steps.flatten().tolist())
        hyperparams = tuple(map(loaded.hyperparams_of, members))
        # The best parameters of a member are from before it diverged.
        try:
            diverged = () if which == "best" else _diverged(run.run_dir, env_steps[0])
        except DamagedError:
            return _load(run, which, member)  # A run that trains has replaced the checkpoint meanwhile.
        return EvaluatedMembers(loaded.shared, members, env_steps, hyperparams, tuple(loaded.selected), diverged)
    chosen = load_member(run, which, member)
    return EvaluatedMembers(
        chosen.shared, (chosen.member,), (chosen.env_steps,), (chosen.hyperparams,), (chosen.selected,)
    )


def _diverged(run_dir: Path, step: int) -> tuple[int, ...]:
    """Return which members had diverged at a checkpoint."""
    with reading(run_dir):
        return tuple(sorted(Progress.from_json(checkpoint.read_host_state(run_dir, step)["progress"]).failures))


def _play(
    run: TrainedRun, trained: EvaluatedMembers, episodes: int, key: jax.Array, policy: str | BaselinePolicy | None
) -> Episodes:
    """Play E episodes of each member, or of another policy, and return them as host arrays `[M, E]`."""
    setup, members = run.setup, len(trained.members)
    several, lone = members > 1, trained.hyperparams[0]
    hyperparams = (
        {name: np.asarray([one[name] for one in trained.hyperparams], np.float32) for name in lone} if several else {}
    )

    def build(traced: Any) -> System:
        system = setup.build_system(traced if several else lone)
        return system if policy is None else with_policy(system, policy, setup.env)

    batch_size, max_steps = min(episodes, _BATCH_SIZE), setup.config.arch.max_eval_steps
    play = make_evaluator(build, setup.env, run.mesh, batch_size, max_steps, members)
    batches = []
    for batch in range(-(-episodes // _BATCH_SIZE)):
        batch_key = jax.random.fold_in(key, batch)
        # All members share the same start states.
        keys = jnp.broadcast_to(batch_key, (members,)) if several else batch_key
        batches.append(jax.device_get(play(trained.shared, hyperparams, keys)))
        setup.env.check()
    joined = jax.tree.map(lambda *leaves: np.atleast_2d(np.concatenate(leaves, axis=-1))[:, :episodes], *batches)
    return joined._replace(returns=np.float64(joined.returns))


def _baseline(policy: str, played: Episodes, other: Episodes) -> dict[str, Any]:
    """Return the results of another policy, and the mean difference of the run to it, paired by episodes."""
    paired = np.asarray(played.returns[0] - other.returns[0])
    low, high = records.mean_interval(paired)
    difference = {"difference": float(paired.mean()), "difference_ci_low": low, "difference_ci_high": high}
    return {"policy": policy, **_statistics(other.returns[0], other.lengths[0]), **difference}


def _record(run: TrainedRun, population: Population, trained: EvaluatedMembers, played: Episodes) -> dict[str, Any]:
    config, of_games = run.setup.config, run.setup.spec.num_players == 2
    several = population.num_members > 1
    per_member = [
        {
            **({"member": member, "trained_with_seed": population.seeds[member]} if several else {}),
            "hyperparams": trained.hyperparams[index],
            "env_steps": trained.env_steps[index],
            "selected": trained.selected[index],
            **_statistics(played.returns[index], played.lengths[index]),
            **{name: float(values[index].mean()) for name, values in played.measures.items()},
            **({"measures": list(played.measures)} if played.measures else {}),
            **(count_results(played.returns[index]) if of_games else {}),
        }
        for index, member in enumerate(trained.members)
    ]
    common = {
        "system": config.system_name,
        "environment": config.environment_name,
        "step_unit": config.arch.step_unit,
        "greedy": config.arch.evaluation_greedy and config.system.has_mode,
        **({"opponent": name_of(config.env.eval_opponent)} if of_games else {}),
        **({"randomized": config.env.randomize_evaluation} if config.env.randomization is not None else {}),
        "interval": INTERVAL,
        "episodes_cut": int((~played.finished).sum()),
        "versions": config.versions,
        "devices": device_names(run.mesh),
    }
    if len(per_member) == 1:
        return {**common, **per_member[0]}
    scores = records.aggregate(_scores(trained, played).tolist(), population.strata)
    return {
        **common,
        **{f"episode_return_{name}": value for name, value in scores.items()},
        **({"diverged": list(trained.diverged)} if trained.diverged else {}),
        "members": per_member,
    }


def count_results(returns: Any) -> dict[str, int]:
    """Count the results of games."""
    counts = (returns > 0).sum(), (returns == 0).sum(), (returns < 0).sum()
    return {name: int(count) for name, count in zip(("wins", "draws", "losses"), counts, strict=True)}


def _statistics(returns: Any, lengths: Any) -> dict[str, Any]:
    low, high = records.mean_interval(returns)
    return {
        **records.episode_statistics(returns, lengths),
        "episode_return_ci_low": low,
        "episode_return_ci_high": high,
        "episode_returns": returns.tolist(),
        "episode_lengths": lengths.tolist(),
    }


def _render(
    setup: SystemParts, trained: EvaluatedMembers, index: int, key: jax.Array, path: Path, env: VectorEnvironment
) -> dict[str, Any]:
    """Render an episode of one of the members."""
    scene = env.scene()
    assert scene is not None
    recorder = Recorder(setup.build_system, env, setup.config.arch.max_eval_steps)
    try:
        shared = take_member(trained.shared, index) if len(trained.members) > 1 else trained.shared
        recording = recorder.record(shared, trained.hyperparams[index], key)
        env.check()
        with refusing(f"render={path} cannot be written", "correct scene() of the environment, or use another path"):
            frames = write_animation(path, scene, recording)
    finally:
        env.close()
    return {
        "path": str(path),
        "member": trained.members[index],
        "steps": int(recording.steps[-1]),
        "frames": frames,
        "episode_return": float(recording.returns[-1]),
    }


def _scores(trained: EvaluatedMembers, played: Episodes) -> np.ndarray:
    """Return the mean return of each member."""
    return records.without_frozen(np.asarray(played.returns).mean(-1), trained.diverged)


def _best(trained: EvaluatedMembers, played: Episodes) -> int:
    """Return the index of the member with the highest mean return."""
    scores = _scores(trained, played)
    return int(np.where(np.isnan(scores), -np.inf, scores).argmax())


@contextlib.contextmanager
def _reported(task: str, *kinds: type[Exception]) -> Iterator[None]:
    # The results are printed in any case.
    try:
        yield
    except kinds as error:
        print(f"failed to {task}: {error}", file=sys.stderr)


def write_results(directory: Path, stem: str, record: dict[str, Any]) -> Path | None:
    """Write results to a new file. Returns the path of the file; None if writing failed, which is reported."""
    with _reported(_WRITE, OSError):
        check_directory(directory)
        directory.mkdir(exist_ok=True)
        path = _new_file(directory, stem)
        try:
            write_json(path, record)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path
    return None


def _new_file(directory: Path, stem: str) -> Path:
    """Create an empty file with a name that no other evaluation uses."""
    number, path = 1, directory / f"{stem}.json"
    while True:
        with contextlib.suppress(FileExistsError):
            path.open("xb").close()
            return path
        number += 1
        path = directory / f"{stem}-{number}.json"


def with_simulations(config: RunConfig, simulations: int | None) -> RunConfig:
    """Set how long evaluations of a run search in each step."""
    if simulations is None:
        return config
    keys = config.system.policy_hyperparams
    if not keys:
        raise ConfigError(f"simulations={simulations} has no effect: system={config.system_name} does not search")
    if simulations < 0:
        raise ConfigError(f"simulations={simulations} is negative: use at least 0, for only the policy")
    return config._replace(system=replace_values(config.system, dict.fromkeys(keys, simulations)))
