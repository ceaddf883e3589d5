"""An episode of a trained run, and what its world model predicts of it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import jax

from stoix_like.envs.factory import with_learned_rewards
from stoix_like.errors import ConfigError
from stoix_like.inference.load import load_member, open_run
from stoix_like.policies.visits import check_seed
from stoix_like.rendering.dreams import CONTEXT, LENGTH, DreamedEpisode, Dreamer


def dream_episode(
    run_dir: str | Path,
    which: str = "best",
    member: int | Any = "best",
    *,
    context: int = CONTEXT,
    length: int = LENGTH,
    seed: int = 0,
    trust: bool = False,
) -> DreamedEpisode:
    """Play an episode of evaluation, and let the world model of the run dream it.

    The model sees the first observations, and predicts the others from the actions alone.

    Args:
        run_dir: see `load_policy`.
        which: see `load_policy`.
        member: see `load_policy`.
        context: number of observations that the model sees, at least 1 and below `length`.
        length: largest number of observations.
        seed: seed of the start state, below 2**32.
        trust: see `load_policy`.

    Returns:
        The episode up to its end, or its first `length` observations.

    Raises:
        ConfigError: the run has no world model, the episode ends within the context, an argument is out of range, or
            see `load_policy`.
        HostEnvironmentError: an environment on the host failed.
    """
    check_seed(seed)
    if not 1 <= context < length:
        raise ConfigError(f"context={context} is out of range: it must be at least 1 and below length={length}")
    setup = (run := open_run(run_dir, trust)).setup
    if setup.build_system().dream is None:
        raise ConfigError(f"{setup.name}: the system has no world model: use a run of system=dreamer/dreamer_v3")
    chosen, config = load_member(run, which, member), setup.config
    with contextlib.closing(with_learned_rewards(setup.env, config.env)) as env:
        dreamer = Dreamer(setup.name, setup.build_system, env, config.arch.max_eval_steps, context, length)
        episode = dreamer.dream(jax.device_put(chosen.shared), chosen.hyperparams, jax.random.key(seed))
    if len(episode.reward) <= context:
        raise ConfigError(
            f"context={context} leaves nothing to predict of an episode with {len(episode.reward)} observations: use a"
            " smaller one, or another seed"
        )
    return episode


def has_world_model(run_dir: str | Path, trust: bool = False) -> bool:
    """Return whether the system of a run can dream; see `load_policy` for the arguments and errors."""
    return open_run(run_dir, trust).setup.build_system().dream is not None
