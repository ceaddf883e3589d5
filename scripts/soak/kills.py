"""Kill runs at random moments, resume them to their end, and compare with an uninterrupted run, byte by byte."""

from __future__ import annotations

import functools
import os
import random
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tiny_runs import (
    Bench,
    Done,
    Outcome,
    Reference,
    complaints,
    differences,
    overrides,
    random_data,
    systems,
    train_command,
)

MAX_KILLS = 3
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
CARTPOLE = ("env=gymnax/cartpole", "env.time_limit=15")
PENDULUM = (
    "env=brax/inverted_pendulum",
    "env.time_limit=15",
    "env.auto_reset=fresh",
    "env.randomization=kills.draw_gravity",
)
VARIED = (
    "arch.population.size=4",
    "arch.population.hyperparams={actor_lr: {log_uniform: [0.001, 0.1]}}",
)
RIDDLE = ("env=jaxmarl/switch_riddle",)
# Stands for the file of random steps of the run's environment, and for the directory of a trained run.
DATA, TEACHER = "system.data=RANDOM", "system.teacher=TRAINED"
CELLS = ("optimised_lstm", "mingru", "lru", "s5", "mlstm", "gtrxl")
# Runs of options that have state of their own: a system, and what is added to its tiny run.
OPTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ppo/ff_ppo", ("system.intrinsic=rnd",)),
    ("ppo/ff_ppo", ("system.intrinsic=gail", DATA)),
    ("ppo/ff_ppo", (TEACHER, "system.final_teacher_coef=0.5")),
    ("ppo/ff_ppo", (*RIDDLE, "network.share=false")),
    ("q_learning/rec_pqn_vdn", (*RIDDLE, "system.mixer=qmix")),
    ("q_learning/ff_dqn", ("env=jumanji/game_2048",)),
    ("sac/ff_sac", (DATA, "system.final_data_fraction=0.25")),
    ("ppo/ff_ppo", (*CARTPOLE, "env.staggered_starts=true", "env.random_start_steps=3")),
    (
        "ppo/ff_ppo",
        (
            "system.normalize_observations=true",
            "system.normalize_rewards=true",
            "system.desired_kl=0.01",
            "system.epochs=2",
            "system.decay_learning_rates=false",
        ),
    ),
    *(("q_learning/ff_dqn", ("system.reset_every=5", f"system.reset={kind}")) for kind in ("full", "last_layers")),
    ("sac/ff_sac", ("system.reset_every=5", "system.normalize_observations=true")),
    *(
        ("ppo/rec_ppo", tuple(f"network.{part}_network.rnn_layer.cell_type={cell}" for part in ("actor", "critic")))
        for cell in CELLS
    ),
    ("ppo/ff_ppo", (*CARTPOLE, "env.observation_noise=0.1", "env.observation_delay=2", "env.observation_flicker=0.2")),
    ("ppo/ff_ppo", (*CARTPOLE, "env.observe_last_action=true", "env.observe_last_reward=true", "env.frame_stack=2")),
    ("ppo/ff_ppo", (*CARTPOLE, "env.sticky_actions=0.3", "env.action_repeat=2", "env.time_in_observation=true")),
    *(("ppo/ff_ppo", (*CARTPOLE, f"env.auto_reset={mode}")) for mode in ("pool", "optimistic", "cached")),
    ("sac/ff_sac", ("env=goals/point_maze", "system.relabel=future")),
    ("sac/ff_sac", ("system.chunk=2", "system.n_step=1")),
    *(("sac/ff_sac", (*PENDULUM, f"env.randomize_every={period}")) for period in ("reset", "rollout", "run")),
    ("ppo/ff_ppo", (*VARIED, "arch.population.pbt.every_evals=2")),
)
# A process that still runs for this part of a whole run after a signal has ignored it.
IGNORED = 0.5


def attempt(bench: Bench, rng: random.Random, index: int) -> Outcome:
    """Kill one run a few times: that of a system or of an option."""
    system, options = bench.in_turn([*((system, ()) for system in systems()), *OPTIONS], index)
    words = overrides(system)
    found = {DATA: lambda: random_data(words[:2]), TEACHER: lambda: bench.reference(system).run_dir}
    given = [f"{word.split('=')[0]}={found[word]()}" if word in found else word for word in options]
    command = functools.partial(next_command, (*words, *given))
    # The name is part of a path.
    return survive(bench, rng, "-".join([system, *re.findall(r"[\w.]+", " ".join(options))]), command, bench.digest)


def draw_gravity(model: Any, keys: Any) -> tuple[Any, Any]:
    """Draw the gravity of physics models; see `env.randomization`."""
    import jax

    strength = jax.vmap(lambda key: jax.random.uniform(key, minval=0.8, maxval=1.2))(keys)
    axes = jax.tree.map(lambda _: None, model)
    return model.replace(gravity=strength[:, None] * model.gravity), axes.replace(gravity=0)


def survive(
    bench: Bench,
    rng: random.Random,
    name: str,
    command: Callable[[Path], list[str]],
    digest: Callable[[Path], dict[str, Any]],
) -> Outcome:
    """Kill a command a few times, at fractions of the duration of an uninterrupted one, and let it end.

    Args:
        bench: see `Bench`.
        rng: draws signals and moments.
        name: of the command.
        command: returns the arguments that start or continue it in a directory.
        digest: returns what must not differ from the uninterrupted one.
    """
    reference = bench.measured(name, command, digest)
    run_dir, problems, what = bench.scratch / "run", [], []
    for _ in range(rng.randint(1, MAX_KILLS)):
        number, fraction = rng.choice(SIGNALS), rng.uniform(0.02, 1.0)
        moment = fraction * reference.seconds
        event = (moment, number.name, functools.partial(_send, number))
        done = bench.cli(*command(run_dir), events=[event])
        what.append(f"{number.name} at {fraction:.2f}")
        problems += [f"{what[-1]}: {problem}" for problem in killed_badly(done, number, moment, reference)]
    done = bench.cli(*command(run_dir))
    problems += complaints(done, allowed=(0,)) or differences(digest(run_dir), reference)
    return Outcome(f"{name}, {', '.join(what)}", problems, bench.commands)


def killed_badly(done: Done, number: int, moment: float, reference: Reference) -> list[str]:
    """Return what is wrong with the end of a process that was sent a signal."""
    allowed = (0, -number, 128 + number)  # it may have ended before, and has no handlers yet at its start
    if problems := complaints(done, allowed):
        return problems
    if number != signal.SIGKILL and done.code == 0 and done.seconds - moment > max(3.0, IGNORED * reference.seconds):
        return [f"IGNORED: ran on for {done.seconds - moment:.1f} s"]
    return []


def next_command(words: Sequence[str], run_dir: Path) -> list[str]:
    """Return the arguments that start a run, or resume it."""
    return ["resume", str(run_dir)] if (run_dir / "config.yaml").exists() else train_command(run_dir, words)


def _send(number: int, pid: int) -> None:
    os.kill(pid, number)
