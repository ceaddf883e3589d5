"""The teacher of a run: the best policy of another one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.arch_config import OfflineConfig
from stoix_like.config import RunConfig
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.spaces import Box, Mixed, describe, entries
from stoix_like.errors import ConfigError, naming
from stoix_like.policies.load import load_member, open_run
from stoix_like.policies.make import is_recurrent
from stoix_like.run.set_up.recorded import notes_on_arguments
from stoix_like.systems.parts.teacher import Teacher, TeacherConfig

KEY = "system.teacher"


class Taught(NamedTuple):
    """The teacher of a run."""

    teacher: Teacher | None = None  # the teacher; None without one
    content: str = ""  # the hash of what it acts with
    notes: tuple[str, ...] = ()  # where its environment is not the run's, for the user


def load_teacher(config: RunConfig, env: VectorEnvironment) -> Taught:
    """Load the policy that teaches a run. Returns the teacher, None without `system.teacher`."""
    part = config.system.find_part(TeacherConfig)
    if part is None or part.teacher is None:
        return Taught()
    if isinstance(config.arch, OfflineConfig):
        raise ConfigError(f"{KEY}={part.teacher} has no effect with arch=offline, which never acts: use arch=anakin")
    with naming(KEY):
        run = open_run(part.teacher, steps=False)
        chosen = load_member(run, "best", None)
    spec, prefix = run.setup.spec, f"{KEY}={part.teacher}"
    if _spaces(spec) != _spaces(env):
        raise ConfigError(
            f"{prefix} acts on {_spaces(spec)}, and this run on {_spaces(env)}: use a run in the same environment,"
            " whose networks may read other entries of a dictionary"
        )
    if not spec.share_networks and spec.num_agents != env.num_agents:
        # The place of a row tells which network acts.
        raise ConfigError(
            f"{prefix} has networks of its own for each of {spec.num_agents} agents (network.share=false), and this run"
            f" has num_agents={env.num_agents}: use a teacher with {env.num_agents}, or one with network.share=true"
        )
    system = run.setup.build_system({**chosen.hyperparams, **run.setup.config.system.policy_hyperparams})
    if is_recurrent(system) or system.inspect is None:
        raise ConfigError(f"{prefix} is {run.setup.name}, whose policy needs a memory: use a feed-forward teacher")
    inspect = system.inspect
    teacher = Teacher(lambda params, observation: inspect(params, observation).policy, chosen.shared, env.action_space)
    notes = tuple(_notes(run.setup.config, config, prefix))
    return Taught(teacher, content_of(run.setup.config, chosen.hyperparams, chosen.shared), notes)


def _notes(there: RunConfig, here: RunConfig, prefix: str) -> Iterator[str]:
    """Yield where the teacher was trained in another environment, with spaces of the same shapes."""
    if there.environment_name != here.environment_name:
        yield f"{prefix} was trained on {there.environment_name}, and this run trains on {here.environment_name}"
    else:
        yield from notes_on_arguments(f"{prefix} was trained", there.env_arguments, here)


def content_of(config: RunConfig, hyperparams: Mapping[str, float], params: Any) -> str:
    """Return the hash of what a teacher acts with: its configuration, such as activations, and its arrays."""
    groups = [config.resolved[name] for name in ("network", "system", "env")]
    found = hashlib.sha256(json.dumps([*groups, hyperparams], sort_keys=True, default=str).encode())
    for leaf in jax.tree.leaves(params):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        found.update(np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes())
    return found.hexdigest()


def _spaces(holder: Any) -> str:
    views = (f"{name} {space.shape}" for name, space in entries(holder.observation_space, "observation").items())
    space = holder.action_space
    limits = "" if not isinstance(space, Box | Mixed) else f" from {np.min(space.low):g} to {np.max(space.high):g}"
    return f"{', '.join(views)} and {describe(space)}{limits}"
