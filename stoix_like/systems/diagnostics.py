"""Diagnostics of plasticity: dormant units, ranks, norms, and the relative size of updates.

Sources: Sokar et al. 2023, arXiv:2302.12902 (dormant units); Kumar et al. 2021, arXiv:2010.14498 (`srank`); Roy
and Vetterli 2007, The Effective Rank; Lyle et al. 2024, arXiv:2407.01800 (effective learning rates).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stoix_like.base_types import Agent, Axes, Metrics, Observation, PyTree, System, Trajectory
from stoix_like.networks import units

Path = tuple[Any, ...]

DORMANT_THRESHOLD = 0.025
"""Score up to which a unit counts as dormant."""
_MAX_ROWS = 256
_RANK_FRACTION = 0.99
_ADAM_B2 = 0.999


def diagnose(system: System, axes: Axes, before: PyTree, after: PyTree, observation: Observation | None) -> Metrics:
    """Compute diagnostics of the networks of a system after an update.

    `observation`: observations `[B, ...]` that the system learns from.
    """
    found: dict[str, list[jax.Array]] = defaultdict(list)
    old, new = _weights(before.params), _weights(after.params)
    for network, leaves in new.items():
        norm, change = optax.tree.norm(leaves), optax.tree.norm(jax.tree.map(jnp.subtract, leaves, old[network]))
        found[f"{network}/weight_norm"].append(norm)
        found[f"{network}/update_ratio"].append(change / jnp.maximum(norm, 1e-12))
    for network, value in gradient_norms(after).items():
        if network in new:  # Multipliers and intrinsic rewards have optimisers of their own.
            found[f"{network}/gradient_norm"].append(value)
    places = {id(leaf): path for path, leaf in jax.tree.leaves_with_path(after.params)}
    for record in _record_units(system, after, observation):
        path = places.get(id(jax.tree.leaves(record.variables)[0]), ())
        if path and not _is_target(path):
            for name, values in _of_units(record.units, axes).items():
                found[f"{_network_of(path) or 'network'}/{name}"] += values
    return {name: jnp.mean(jnp.stack(values)) for name, values in found.items()}


def batch_of(system: System, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation | None:
    """Return observations `[B, ...]` that a system learns from in an update; None where it does not tell."""
    if system.observations is None:
        return None
    return system.observations(agent, trajectory, jax.random.fold_in(key, 1))


def _record_units(system: System, shared: PyTree, observation: Observation | None) -> list[units.Recorded]:
    """Apply the networks of a system to observations that it learns from, and return what their units compute."""
    if system.inspect is None or observation is None:
        return []
    with units.recording() as records:
        system.inspect(shared, observation)
    return records


def _weights(params: PyTree) -> dict[str, list[jax.Array]]:
    """Return the parameters of each network, without targets."""
    found: dict[str, list[jax.Array]] = defaultdict(list)
    for path, leaf in jax.tree.leaves_with_path(params):
        if _is_variable(path) and not _is_target(path):
            found[_network_of(path) or "network"].append(leaf)
    return dict(found)


def gradient_norms(shared: PyTree) -> dict[str, jax.Array]:
    """Compute the root mean squares of the norms of gradients after clipping, from the second moments of each Adam."""
    adam, squares = optax.ScaleByAdamState, defaultdict[str, jax.Array](lambda: jnp.zeros(()))
    for path, state in jax.tree.leaves_with_path(shared, is_leaf=lambda state: isinstance(state, adam)):
        if isinstance(state, adam):
            square = optax.tree.sum(state.nu) / jnp.maximum(1.0 - _ADAM_B2**state.count, 1e-12)
            squares[_network_of(path) or "network"] += square
    return {name: jnp.sqrt(square) for name, square in squares.items()}


def _of_units(recorded: dict[tuple[str, ...], jax.Array], axes: Axes) -> dict[str, list[jax.Array]]:
    """Return the diagnostics of the units of a network, one for each of its parts."""
    found: dict[str, list[jax.Array]] = defaultdict(list)
    dormant = [
        dormant_scores(outputs, axes) <= DORMANT_THRESHOLD
        for (*_, name), outputs in recorded.items()
        if name != units.FEATURES
    ]
    if dormant:
        found["dormant_units"].append(jnp.mean(jnp.concatenate(dormant)))
    for (*_, name), outputs in recorded.items():
        if name == units.FEATURES:
            rows = outputs.reshape(-1, outputs.shape[-1])
            # At random: the first rows of a rollout are its first steps, and every n-th one may be of one environment.
            number = min(len(rows), _MAX_ROWS)
            features = rows[np.random.default_rng(0).choice(len(rows), number, replace=False)]
            values = singular_values(features)
            found["feature_norm"].append(jnp.mean(jnp.linalg.norm(features, axis=-1)))
            found["effective_rank"].append(effective_rank(values))
            found["srank"].append(srank(values))
    return {name: [axes.mean(value) for value in values] for name, values in found.items()}


def dormant_scores(outputs: jax.Array, axes: Axes) -> jax.Array:
    """Compute the score of each unit of a layer.

        s_j = E|h_j| / mean_k E|h_k|

    Source: Sokar et al. 2023, definition 3.1.

    `outputs`: `[..., F]`, the outputs h of the units for a batch.
    Returns `[F]`; zero for all units of a layer that is silent.
    """
    magnitude = axes.mean(jnp.mean(jnp.abs(outputs), axis=tuple(range(outputs.ndim - 1))))
    return magnitude / jnp.maximum(jnp.mean(magnitude), 1e-9)


# One member after the other: batches of decompositions deadlock on several devices of one CPU (jax 0.10).
@jax.custom_batching.sequential_vmap  # type: ignore[untyped-decorator]
def singular_values(features: jax.Array) -> jax.Array:
    """Compute the singular values of features `[B, F]`, in descending order.

    Roots of eigenvalues of a Gram matrix would not do: rounding gives each zero the root of the machine precision.
    """
    return jnp.linalg.svd(features, compute_uv=False)


def effective_rank(values: jax.Array) -> jax.Array:
    """Compute the effective rank, the exponential of an entropy.

        exp(-sum_i p_i log p_i),   p_i = sigma_i / sum_j sigma_j

    Source: Roy and Vetterli 2007, definition 1.
    """
    p = values / jnp.maximum(jnp.sum(values), 1e-12)
    return jnp.exp(-jnp.sum(jax.scipy.special.xlogy(p, p)))


def srank(values: jax.Array) -> jax.Array:
    """Compute how many of the largest singular values make up 99 % of their sum.

    Source: Kumar et al. 2021, section 3, srank with delta = 0.01.
    """
    share = jnp.cumsum(values) / jnp.maximum(jnp.sum(values), 1e-12)
    return 1.0 + jnp.sum(share < _RANK_FRACTION)


def _is_target(path: Path) -> bool:
    """Return whether a leaf belongs to target parameters."""
    return any(getattr(entry, "name", "").split("_")[0] == "target" for entry in path)


def _is_variable(path: Path) -> bool:
    """Return whether a leaf is a variable of a network."""
    return any(isinstance(entry, jax.tree_util.DictKey) and entry.key == "params" for entry in path)


def _network_of(path: Path) -> str:
    """Return the network that a leaf of the parameters or of the states of optimisers belongs to."""
    names = [getattr(entry, "name", "") for entry in path]
    stems = [name.removesuffix("_params").removesuffix("_opt_state") for name in names]
    return next((stem for name, stem in zip(names, stems, strict=True) if stem != name), "")
