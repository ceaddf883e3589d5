"""Periodic resets of networks that learn from replay; the replay buffer stays.

Sources: Nikishin et al. 2022, The Primacy Bias in Deep Reinforcement Learning, arXiv:2205.07802 (`full` and
`last_layers`); Sokar et al. 2023, The Dormant Neuron Phenomenon in Deep Reinforcement Learning, arXiv:2302.12902,
algorithm 1 (`redo`).
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import (
    Agent,
    Axes,
    EpisodeMetrics,
    Metrics,
    System,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.errors import ConfigError
from stoix_like.networks import units
from stoix_like.networks.hyperspherical import UNIT_KERNEL
from stoix_like.utils.jax_utils import any_of_batch
from stoix_like.utils.training import is_schedule

Path = tuple[Any, ...]
Fresh = Callable[[Mapping[str, Any], jax.Array, TimeStep], Any]
"""`(hyperparams, key, timestep) -> shared`, a new agent's shared state."""

_LEARNED = ("params", "opt_states", "opt_state")
_KERNELS = ("kernel", UNIT_KERNEL)


class Resets(NamedTuple):
    """Gradient steps since the last reset, and the key of the next one."""

    steps: jax.Array
    key: jax.Array


def with_resets(
    build: Callable[[Any, SystemSpec], System],
    config: SystemConfig,
    hyperparams: Mapping[str, Any],
    spec: SystemSpec,
) -> System:
    """Build a system, with periodic resets of its networks where `config.reset_every` sets them.

    A reset follows the first update after which `reset_every` gradient steps are complete:

    - `full`: new parameters and optimisers, of the temperature, too, and targets that are copies;
    - `last_layers`: those of the heads alone, whose moments start at zero;
    - `redo`: new weights to dormant units, and zeros from them; their moments start at zero. A unit is dormant if its
      mean magnitude on a batch is at most `dormant_threshold` times that of its layer.

    Counters, schedules of learning rates, statistics and the replay buffer stay.

    Args:
        build: `(config, spec) -> System`.
        config: hyperparameters of the run.
        hyperparams: those in which a member differs from them; they may be traced.
        spec: what the system is built from.

    Returns:
        The system; its shared state has a field `resets` if the networks are reset.
    """
    member = dataclasses.replace(config, **hyperparams)
    system = build(member, spec)
    every = getattr(config, "reset_every", None)
    if every is None:
        return system

    # One member after the other: batches of QR decompositions deadlock on several devices of one CPU (jax 0.10).
    @jax.custom_batching.sequential_vmap  # type: ignore[untyped-decorator]
    def fresh(hyperparams: Mapping[str, Any], key: jax.Array, timestep: TimeStep) -> Any:
        return build(dataclasses.replace(config, **hyperparams), spec).init(key, timestep).shared

    redo = partial(_redo, system, member, spec.axes)
    kinds: dict[str, Callable[..., Any]] = {"full": _reset_all, "last_layers": _reset_heads, "redo": redo}
    reset = kinds[config.reset]  # type: ignore[attr-defined]

    def init(key: jax.Array, timestep: TimeStep) -> Agent:
        key, reset_key = jax.random.split(key)
        agent = system.init(key, timestep)
        return agent._replace(shared=_extend(agent.shared, Resets(jnp.zeros((), jnp.int32), reset_key)))

    def observe(agent: Agent, trajectory: Trajectory) -> Agent:
        shared, resets = _parts(agent.shared)
        agent = system.observe(agent._replace(shared=shared), trajectory)
        return agent._replace(shared=_extend(agent.shared, resets))

    def update(agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        shared, resets = _parts(agent.shared)
        agent, metrics = system.update(agent._replace(shared=shared), trajectory, key)
        # Outside of the condition, which might copy the replay buffer.
        observation = batch_of(system, agent, trajectory, key) if config.reset == "redo" else ()  # type: ignore[attr-defined]
        steps = resets.steps + member.gradient_steps  # type: ignore[attr-defined]

        def renew(shared: Any, reset_key: jax.Array) -> tuple[Any, jax.Array]:
            reset_key, fresh_key = jax.random.split(reset_key)
            new = fresh(dict(hyperparams), fresh_key, _example(trajectory))
            return reset(shared, new, observation), reset_key

        due = any_of_batch(steps >= every)
        shared, reset_key = jax.lax.cond(due, renew, lambda *same: same, agent.shared, resets.key)
        resets = Resets(jnp.where(due, steps % every, steps), reset_key)
        return agent._replace(shared=_extend(shared, resets)), metrics

    def observations(agent: Agent, *args: Any) -> Any:
        assert system.observations is not None
        return system.observations(agent._replace(shared=_parts(agent.shared)[0]), *args)

    def on_shared(function: Callable[..., Any] | None) -> Any:
        return None if function is None else lambda shared, *args: function(_parts(shared)[0], *args)

    return system._replace(
        init=init,
        observe=observe,
        update=update,
        act=on_shared(system.act),
        eval_act=on_shared(system.eval_act),
        inspect=on_shared(system.inspect),
        search=on_shared(system.search),
        dream=on_shared(system.dream),
        observations=observations,
    )


@cache
def _extended(kind: Any) -> Any:
    """Return the named tuple of a shared state with a further field."""
    extended = namedtuple(kind.__name__, (*kind._fields, "resets"))  # type: ignore[misc]
    extended.plain = kind  # type: ignore[attr-defined]
    return extended


def _extend(shared: Any, resets: Resets) -> Any:
    kind: Any = type(shared)
    return _extended(kind)(*shared, resets)


def _parts(shared: Any) -> tuple[Any, Resets]:
    *fields, resets = shared
    return type(shared).plain(*fields), resets


def _example(trajectory: Trajectory) -> TimeStep:
    """Return an empty time step `[N, ...]` of the environments of a rollout."""
    steps = trajectory.transitions
    first = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), steps._replace(extras=()))
    episode = EpisodeMetrics(first.reward, jnp.zeros(first.reward.shape, jnp.int32), first.terminated)
    return TimeStep(first.observation, first.reward, first.terminated, first.truncated, first.observation, episode)


def _learned(shared: Any) -> dict[str, Any]:
    return {name: getattr(shared, name) for name in shared._fields if name in _LEARNED}


def _reset_all(shared: Any, fresh: Any, observation: Any) -> Any:
    """Take everything that is learned from a new agent, but for the counts of schedules."""
    del observation

    def keep_schedules(old: Any, new: Any) -> Any:
        return old if is_schedule(old) else new

    return shared._replace(
        **{
            name: jax.tree.map(keep_schedules, old, getattr(fresh, name), is_leaf=is_schedule)
            for name, old in _learned(shared).items()
        }
    )


def _reset_heads(shared: Any, fresh: Any, observation: Any) -> Any:
    """Take the heads of all networks, and their moments, from a new agent."""
    del observation
    heads = [path for path, _ in jax.tree.leaves_with_path(shared.params) if _in_head(path)]
    if not heads:
        raise ConfigError(
            "system.reset=last_layers: the networks of this system have no heads of their own: use system.reset=full"
        )

    def pick(path: Path, old: Any, new: Any) -> Any:
        return new if _in_head(path) else old

    return shared._replace(
        **{name: jax.tree.map_with_path(pick, old, getattr(fresh, name)) for name, old in _learned(shared).items()}
    )


def _in_head(path: Path) -> bool:
    return any(str(getattr(entry, "key", "")).endswith("_head") for entry in path)


def _redo(system: System, config: Any, axes: Axes, shared: Any, fresh: Any, observation: Any) -> Any:
    """Reset the weights to dormant units, and cut those from them."""
    masks = find_dormant(system, config.dormant_threshold, axes, shared, observation)
    if not masks:
        raise ConfigError(
            "system.reset=redo: the torsos of this system declare no units: use system.reset=full, or"
            " network.actor_network.pre_torso._target_=stoix_like.networks.torso.MLPTorso"
        )

    def change(path: Path, old: Any, new: Any) -> Any:
        # Targets follow by themselves; moments have the path of their parameters below that of the optimiser.
        mask = None if is_target(path) else masks.get((network_of(path), dict_path(path)))
        if mask is None:
            return old
        is_moment = any(getattr(entry, "name", "") in ("mu", "nu") for entry in path)
        old = jnp.where(mask.incoming, jnp.zeros_like(new) if is_moment else new, old)
        return jnp.where(mask.outgoing, 0.0, old)

    return shared._replace(
        **{name: jax.tree.map_with_path(change, old, getattr(fresh, name)) for name, old in _learned(shared).items()}
    )


class Dormant(NamedTuple):
    """Entries of a weight, of its shape or broadcast to it, that lead to dormant units, and that come from them."""

    incoming: Any = False
    outgoing: Any = False


def dormant_scores(outputs: jax.Array, axes: Axes) -> jax.Array:
    """Compute the score of each unit of a layer.

        s_j = E|h_j| / mean_k E|h_k|

    Source: Sokar et al. 2023, definition 3.1.

    Args:
        outputs: `[..., F]`, the outputs h of the units for a batch.
        axes: the axes that the batch is spread over.

    Returns:
        `[F]`; zero for all units of a layer that is silent.
    """
    magnitude = axes.mean(jnp.mean(jnp.abs(outputs), axis=tuple(range(outputs.ndim - 1))))
    return magnitude / jnp.maximum(jnp.mean(magnitude), 1e-9)


def find_dormant(
    system: System, threshold: Any, axes: Axes, shared: Any, observation: Any
) -> dict[tuple[str, Path], Dormant]:
    """Find the weights to and from dormant units, by the network and the path of their variable.

    Only units between two dense layers, or between one and a head of one layer, have such weights.
    """
    places = {id(leaf): path for path, leaf in jax.tree.leaves_with_path(shared.params)}
    masks: dict[tuple[str, Path], Dormant] = {}
    for network in record_units(system, shared, observation):
        leaves = {dict_path(path): leaf for path, leaf in jax.tree.leaves_with_path(network.variables)}
        for place, outputs in network.units.items():
            *module, names = place
            if names == units.FEATURES:
                continue
            source, target = names.split(":")
            prefix = ("params", *module)
            targets = _targets(leaves, prefix, target, outputs.shape[-1])
            incoming = [(*prefix, source, name) for name in (*_KERNELS, "bias") if (*prefix, source, name) in leaves]
            if not targets or not incoming:
                continue
            dormant = dormant_scores(outputs, axes) <= threshold
            for path, mask in [(path, Dormant(incoming=dormant)) for path in incoming] + [
                (path, Dormant(outgoing=dormant[:, None])) for path in targets
            ]:
                key = (network_of(places[id(leaves[path])]), path)
                old = masks.get(key, Dormant())
                masks[key] = Dormant(
                    _either(old.incoming, _wide(mask.incoming, leaves[path])),
                    _either(old.outgoing, _wide(mask.outgoing, leaves[path])),
                )
    return masks


def record_units(system: System, shared: Any, observation: Any) -> list[units.Recorded]:
    """Apply the networks of a system to observations that it learns from, and return what their units compute."""
    if system.inspect is None or observation is None:
        return []
    with units.recording() as records:
        system.inspect(shared, observation)
    return records


def batch_of(system: System, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Any:
    """Return observations `[B, ...]` that a system learns from in an update; None where it does not tell."""
    if system.observations is None:
        return None
    return system.observations(agent, trajectory, jax.random.fold_in(key, 1))


def _either(a: Any, b: Any) -> Any:
    return b if a is False else a if b is False else a | b


def _wide(mask: Any, leaf: jax.Array) -> Any:
    return mask if mask is False else jnp.broadcast_to(mask if mask.ndim == leaf.ndim else mask[None, :], leaf.shape)


def _targets(leaves: Mapping[Path, Any], prefix: Path, target: str, width: int) -> list[Path]:
    """Return the paths of the kernels that take the outputs of units; none where they are not all known."""
    if target != units.HEAD:
        return [(*prefix, target, name) for name in _KERNELS if (*prefix, target, name) in leaves]
    if "torso" not in prefix:
        return []
    network = prefix[: prefix.index("torso")]
    inside = [path for path in leaves if path[: len(network)] == network and path[0] == "params"]
    others = [path for path in inside if path[len(network)] != "torso"]
    kernels = [path for path in others if leaves[path].ndim == 2]
    only_heads = all(str(path[len(network)]).endswith("_head") for path in others)
    return kernels if only_heads and all(leaves[path].shape[0] == width for path in kernels) else []


def is_target(path: Path) -> bool:
    """Return whether a leaf belongs to target parameters."""
    return any(getattr(entry, "name", "") == "target" for entry in path)


def dict_path(path: Path) -> Path:
    """Return the path of a variable, or of its moments, inside of its network; empty for other leaves."""
    keys = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
    return tuple(keys[keys.index("params") :]) if "params" in keys else ()


def network_of(path: Path) -> str:
    """Return the network that a leaf of the parameters or of the states of optimisers belongs to."""
    names = [getattr(entry, "name", "") for entry in path]
    stems = [name.removesuffix("_params").removesuffix("_opt_state") for name in names]
    return next((stem for name, stem in zip(names, stems, strict=True) if stem != name), "")
