"""Running mean and standard deviation of nested data.

The statistics of two sets of samples merge exactly (Chan et al. 1979), so the state is updated batch by batch. A batch
may be spread over devices or update batches: sums are added over the named axes. Leaves of integer or boolean type,
such as pixels, keep mean 0 and standard deviation 1 and pass through `normalize` unchanged.

A float32 counter stops at 2**24, and a float32 sum of squares stops growing even earlier. Therefore every accumulator
is stored as the nearest float32 plus its rounding error (Møller 1965), which is accurate up to 2**48 samples.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, Real

from stoix_like.utils.collectives import sum_over
from stoix_like.utils.jax_utils import Scalar, append_dims, prepend_dims, two_sum
from stoix_like.utils.shapes import check_last_axes

_LARGEST = 3e30  # the sum of 10^8 such numbers is finite in 32 bits
Path = tuple[Any, ...]
"""The path of a leaf: dict keys, sequence positions and attribute names, from the root down."""

Weights = Real[Array, "..."] | Bool[Array, "..."]
"""Sample weights, numeric or boolean, with the leading shape of a batch."""

# Every field is annotated as a tree, even the scalar `count`: jax also builds these classes from axis numbers,
# partition specs and None.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundingErrors:
    """Rounding errors of the statistics; the sum of a field and its error is the accurate value."""

    count: PyTree  # float array, the rounding error of the count
    mean: PyTree  # nest of float arrays, the rounding errors of the means
    summed_variance: PyTree  # nest of float arrays, the rounding errors of the summed variances


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NestedMeanStd:
    """Mean and standard deviation of each element of a nest."""

    mean: PyTree  # nest of float arrays, in the unit of the data
    std: PyTree  # nest of float arrays, in the unit of the data


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunningStatisticsState(NestedMeanStd):
    """Running statistics, with everything required to merge further data."""

    count: PyTree  # sum of the weights so far; the number of samples if they have no weights
    summed_variance: PyTree  # nest of weighted sums of squared deviations from the mean
    rounding: RoundingErrors  # rounding errors of `count`, `mean` and `summed_variance`


@dataclasses.dataclass(frozen=True)
class NestStatisticsConfig:
    """Selection of the leaves that have statistics; the others keep mean 0 and standard deviation 1."""

    paths: tuple[Path, ...] = ((),)  # prefixes of the paths of the selected leaves; `()` selects every leaf


@dataclasses.dataclass(frozen=True)
class NestClippingConfig:
    """Clipping limits of leaves."""

    # Pairs of a path and the largest absolute value of all leaves below it; the first match applies.
    path_map: tuple[tuple[Path, float], ...] = ()


def fast_map_structure(func: Callable[..., Any], *structure: PyTree) -> PyTree:
    """Map a function over the leaves of trees.

    Args:
        func: function of one leaf from each tree.
        *structure: trees; the first one determines the structure.

    Returns:
        The tree of results, with the structure of the first tree.
    """
    return jax.tree.map(func, *structure)


def fast_map_structure_with_path(func: Callable[..., Any], *structure: PyTree) -> PyTree:
    """Map a function over the paths and leaves of trees.

    Args:
        func: function of a path (a tuple of dict keys, positions and attribute names) and one leaf from each tree.
        *structure: trees; the first one determines the structure.

    Returns:
        The tree of results, with the structure of the first tree.
    """
    return jax.tree_util.tree_map_with_path(lambda path, *leaves: func(_plain_path(path), *leaves), *structure)


def _plain_path(path: Sequence[Any]) -> Path:
    return tuple(_plain_key(entry) for entry in path)


def _plain_key(entry: Any) -> Any:
    match entry:
        case jax.tree_util.DictKey(key=key) | jax.tree_util.FlattenedIndexKey(key=key):
            return key
        case jax.tree_util.SequenceKey(idx=index):
            return index
        case jax.tree_util.GetAttrKey(name=name):
            return name
    return entry


def _is_prefix(prefix: Path, path: Path) -> bool:
    return path[: len(prefix)] == prefix


def _check_paths(prefixes: Sequence[Any], nest: PyTree) -> None:
    paths = [_plain_path(path) for path, _ in jax.tree_util.tree_leaves_with_path(nest)]
    for prefix in prefixes if paths else ():
        if not isinstance(prefix, tuple) or not any(_is_prefix(prefix, path) for path in paths):
            leaves = ", ".join(map(str, paths))
            raise ValueError(f"path={prefix!r} selects no leaf: pass a tuple that is the start of one of {leaves}")


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def initialize_statistics(nest: PyTree) -> RunningStatisticsState:
    """Return the statistics of an empty data set: count 0, mean 0, standard deviation 1.

    Args:
        nest: one sample without batch dimensions: arrays, numbers or `jax.ShapeDtypeStruct`s.

    Returns:
        A state of nests with the structure of `nest`, in float32 (float64 where the data is float64).
    """
    nest = jax.eval_shape(lambda tree: jax.tree.map(jnp.asarray, tree), nest)

    def filled(value: float) -> PyTree:
        # A separate array per leaf: a donated state must not contain a buffer twice.
        def fill(x: Any) -> Array:
            return jnp.full(x.shape, value, jnp.promote_types(x.dtype, jnp.float32) if _is_float(x) else jnp.float32)

        return jax.tree.map(fill, nest)

    return RunningStatisticsState(
        mean=filled(0.0),
        std=filled(1.0),
        count=jnp.zeros((), jnp.float32),
        summed_variance=filled(0.0),
        rounding=RoundingErrors(jnp.zeros((), jnp.float32), filled(0.0), filled(0.0)),
    )


def initialize_statistics_from_data(
    nest: PyTree,
    data_sample: PyTree,
    *,
    config: NestStatisticsConfig | None = None,
    weights: Weights | None = None,
    std_min_value: Scalar = 0.0005,
    std_max_value: Scalar = 50000.0,
    pmap_axes: str | Sequence[str] | None = None,
    validate_shapes: bool = True,
) -> RunningStatisticsState:
    """Compute the statistics of a first batch of data.

    Args:
        nest: one sample without batch dimensions.
        data_sample: `[*batch, *element]` per leaf, see `update_statistics`.
        config: selection of the leaves that have statistics; None selects all.
        weights: `[*batch]` weight of each sample; None means 1 each.
        std_min_value: lower bound of the standard deviation, in the unit of the data.
        std_max_value: upper bound of the standard deviation, in the unit of the data.
        pmap_axes: mapped axes that the batch is spread over.
        validate_shapes: whether to check the shapes of batch and weights.

    Returns:
        `update_statistics(initialize_statistics(nest), data_sample, ...)`.

    Raises:
        ValueError: if a leaf or the weights have the wrong shape.
    """
    return update_statistics(
        initialize_statistics(nest),
        data_sample,
        config=config,
        weights=weights,
        std_min_value=std_min_value,
        std_max_value=std_max_value,
        pmap_axes=pmap_axes,
        validate_shapes=validate_shapes,
    )


def convert_pmap_axes_names(pmap_axes: str | Sequence[str] | None) -> list[str] | None:
    """Convert one axis name or several to a list.

    Args:
        pmap_axes: a name, a sequence of names, or None.

    Returns:
        The list of names, or None for None.
    """
    if pmap_axes is None:
        return None
    return [pmap_axes] if isinstance(pmap_axes, str) else list(pmap_axes)


class _LeafStatistics(NamedTuple):
    """Statistics of one leaf, or nests of such statistics."""

    mean: Any
    std: Any
    summed_variance: Any
    mean_low: Any
    summed_variance_low: Any


def update_statistics(
    state: RunningStatisticsState,
    batch: PyTree,
    *,
    config: NestStatisticsConfig | None = None,
    weights: Weights | None = None,
    std_min_value: Scalar = 1e-6,
    std_max_value: Scalar = 1e6,
    pmap_axes: str | Sequence[str] | None = None,
    validate_shapes: bool = True,
) -> RunningStatisticsState:
    """Merge a batch into the statistics.

        n' = n + w,  d = mean(batch) - mean,  mean' = mean + d w / n'
        S' = S + S_batch + d^2 n w / n',  std' = clip(sqrt(S' / n'), std_min_value, std_max_value)

    A batch of total weight zero leaves the state unchanged.
    Source: Chan, Golub & LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".

    Args:
        state: the statistics so far, `[*element]` per leaf.
        batch: `[*batch, *element]` per leaf, with any number of leading dimensions, the same for every leaf.
        config: selection of the leaves that have statistics; None selects all.
        weights: `[*batch]` non-negative weight of each sample, in samples; None means 1 each.
        std_min_value: lower bound of the standard deviation, in the unit of the data.
        std_max_value: upper bound of the standard deviation, in the unit of the data.
        pmap_axes: mapped axes (vmap, shard_map) that the batch is spread over; the result is identical along them.
        validate_shapes: whether to check the shapes of batch and weights.

    Returns:
        The statistics of all data so far.

    Raises:
        ValueError: if a leaf or the weights do not have the batch dimensions of the first leaf, or a path of `config`
            is not a tuple, or the start of the path of no leaf.
    """
    paths = (NestStatisticsConfig() if config is None else config).paths
    _check_paths(paths, batch)
    axes = tuple(convert_pmap_axes_names(pmap_axes) or ())
    num_dims = _num_batch_dims(state.mean, batch, weights, validate_shapes)
    if num_dims is None:
        return state
    weights, added = _weigh(batch, weights, num_dims, axes)
    count, count_low = two_sum(state.count, state.rounding.count, added)

    def update_leaf(path: Path, data: Array, *fields: Array) -> _LeafStatistics:
        old = _LeafStatistics(*fields)
        if not _is_float(data) or not any(_is_prefix(prefix, path) for prefix in paths):
            return old
        moments = _batch_moments(data, old, weights, added, axes)
        return _merge(old, moments, (state.count, added, count), (std_min_value, std_max_value))

    low = state.rounding
    nests = _LeafStatistics(state.mean, state.std, state.summed_variance, low.mean, low.summed_variance)
    updated = fast_map_structure_with_path(update_leaf, batch, *nests)
    new = jax.tree.transpose(jax.tree.structure(batch), jax.tree.structure(_LeafStatistics(*range(5))), updated)
    low = RoundingErrors(count_low, new.mean_low, new.summed_variance_low)
    return RunningStatisticsState(new.mean, new.std, count, new.summed_variance, low)


def _merge(
    old: _LeafStatistics,
    moments: tuple[Array, Array, Array],
    counts: tuple[Array, Array, Array],
    std_limits: tuple[Scalar, Scalar],
) -> _LeafStatistics:
    """Merge a leaf with a batch, given its `_batch_moments` and the counts before, of and after the batch."""
    shift, correction, spread = moments
    before, added, after = (count.astype(old.mean.dtype) for count in counts)
    total = jnp.where(after > 0, after, 1.0)
    share = added / total
    # The square stays finite: there may be no data before this batch.
    gap = jnp.clip(shift + correction, -math.sqrt(_LARGEST), math.sqrt(_LARGEST))
    spread += jnp.square(gap) * share * before
    mean, mean_low = two_sum(old.mean, old.mean_low, shift * share)
    mean, mean_low = two_sum(mean, mean_low, correction * share)
    summed, summed_low = two_sum(old.summed_variance, old.summed_variance_low, spread)
    # Far above any deviation that counts: an infinite sum has no rounding error, and would be taken for a divergence.
    summed, summed_low = jnp.minimum(summed, _LARGEST), jnp.where(summed < _LARGEST, summed_low, 0.0)
    std = jnp.clip(jnp.sqrt(summed / total), *std_limits)
    return _LeafStatistics(mean, jnp.where(added > 0, std, old.std), summed, mean_low, summed_low)


def _num_batch_dims(mean: PyTree, batch: PyTree, weights: Array | None, validate: bool) -> int | None:
    """Return the number of batch dimensions, or None for a nest without leaves."""
    leaves, means = jax.tree.leaves(batch), jax.tree.leaves(mean)
    if not leaves:
        return None
    num_dims = leaves[0].ndim - means[0].ndim
    if not validate:
        return num_dims
    batch_dims = leaves[0].shape[: max(num_dims, 0)]
    for data, reference in zip(leaves, means, strict=True):
        if data.shape != batch_dims + reference.shape:
            raise ValueError(
                f"leaf.shape={data.shape} must be {batch_dims + reference.shape}: the batch dimensions {batch_dims} of "
                f"the first leaf, then the shape {reference.shape} of the statistics"
            )
    if weights is not None and weights.shape != batch_dims:
        raise ValueError(f"weights.shape={weights.shape} must equal the batch dimensions {batch_dims}")
    return num_dims


def _weigh(batch: PyTree, weights: Array | None, num_dims: int, axes: tuple[str, ...]) -> tuple[Array | None, Array]:
    """Return the weights as floats, and their sum over all shards."""
    if weights is not None:
        weights = weights.astype(jnp.float32)
        return weights, sum_over(jnp.sum(weights), axes)
    num_shards = math.prod(jax.lax.axis_size(axis) for axis in axes)
    num_samples = math.prod(jax.tree.leaves(batch)[0].shape[:num_dims])
    return None, jnp.asarray(num_shards * num_samples, jnp.float32)


def _batch_moments(
    data: Array, old: _LeafStatistics, weights: Array | None, added: Array, axes: tuple[str, ...]
) -> tuple[Array, Array, Array]:
    """Return batch mean minus old mean, as a value and a correction, and the batch's sum of squared deviations."""
    dtype = old.mean.dtype
    batch_dims = tuple(range(data.ndim - old.mean.ndim))
    added = jnp.where(added > 0, added, 1.0).astype(dtype)
    # Sums over finite data stay finite; infinite data give NaN.
    data = jnp.where(jnp.isinf(data), data, jnp.clip(data, -_LARGEST, _LARGEST)).astype(dtype)
    deviation = (data - prepend_dims(old.mean, data.ndim)) - prepend_dims(old.mean_low, data.ndim)
    if weights is None:
        weight = jnp.ones((), dtype)
    else:
        weight = append_dims(weights.astype(dtype), data.ndim)
        # Data of weight zero may hold any value, NaN included.
        deviation = jnp.where(weight > 0, deviation, 0.0)
    shift = sum_over(jnp.sum(weight * deviation, batch_dims), axes) / added
    residual = deviation - prepend_dims(shift, data.ndim)
    weighted = weight * residual
    # The exact residuals sum to zero; the sum of the rounded ones corrects the results.
    remainder, spread = sum_over((jnp.sum(weighted, batch_dims), jnp.sum(weighted * residual, batch_dims)), axes)
    correction = remainder / added
    return shift, correction, jnp.where(jnp.isinf(spread), spread, jnp.maximum(spread - remainder * correction, 0.0))


def normalize(batch: PyTree, mean_std: NestedMeanStd, max_abs_value: Scalar | None = None) -> PyTree:
    """Shift and scale data to mean 0 and standard deviation 1.

        y = clip((x - mean) / std, -max_abs_value, max_abs_value)

    Args:
        batch: `[..., *element]` per leaf; integers and booleans pass through.
        mean_std: the statistics, `[*element]` per leaf.
        max_abs_value: clipping limit, in standard deviations; None disables clipping.

    Returns:
        A nest like `batch`, with the same dtypes.

    Raises:
        ValueError: the shape of a leaf does not end with that of its statistics.
    """

    def normalize_leaf(data: Array, mean: Array, std: Array) -> Array:
        if not _is_float(data):
            return data
        check_last_axes("leaf", data.shape, mean.shape, mean.ndim, "its statistics")
        scaled = (data.astype(mean.dtype) - prepend_dims(mean, data.ndim)) / prepend_dims(std, data.ndim)
        if max_abs_value is not None:
            scaled = jnp.clip(scaled, -max_abs_value, max_abs_value)
        return scaled.astype(data.dtype)

    return fast_map_structure(normalize_leaf, batch, mean_std.mean, mean_std.std)


def denormalize(batch: PyTree, mean_std: NestedMeanStd) -> PyTree:
    """Invert `normalize`, except for its clipping.

        x = y * std + mean

    Args:
        batch: `[..., *element]` per leaf; integers and booleans pass through.
        mean_std: the statistics, `[*element]` per leaf.

    Returns:
        A nest like `batch`, with the same dtypes.

    Raises:
        ValueError: the shape of a leaf does not end with that of its statistics.
    """

    def denormalize_leaf(data: Array, mean: Array, std: Array) -> Array:
        if not _is_float(data):
            return data
        check_last_axes("leaf", data.shape, mean.shape, mean.ndim, "its statistics")
        scaled = data.astype(mean.dtype) * prepend_dims(std, data.ndim)
        return (scaled + prepend_dims(mean, data.ndim)).astype(data.dtype)

    return fast_map_structure(denormalize_leaf, batch, mean_std.mean, mean_std.std)


def get_clip_config_for_path(config: NestClippingConfig, path: Path) -> NestClippingConfig:
    """Return the part of a clipping config that applies to one subtree.

    Args:
        config: clipping limits by path from the root.
        path: the path of the subtree.

    Returns:
        The config with paths from the root of the subtree.

    Raises:
        ValueError: a path is not a tuple.
    """
    paths: list[Any] = [clipped for clipped, _ in config.path_map]
    if stray := [clipped for clipped in paths if not isinstance(clipped, tuple)]:
        raise ValueError(f"path={stray[0]!r} selects no leaf: pass a tuple")
    below: list[tuple[Path, float]] = []
    for clipped_path, max_abs_value in config.path_map:
        if _is_prefix(clipped_path, path):
            return NestClippingConfig((*below, ((), max_abs_value)))
        if _is_prefix(path, clipped_path):
            below.append((clipped_path[len(path) :], max_abs_value))
    return NestClippingConfig(tuple(below))


def clip(batch: PyTree, clipping_config: NestClippingConfig) -> PyTree:
    """Clip the leaves that the config names to their largest absolute values.

    Args:
        batch: nest of arrays of any shape; integers and booleans pass through.
        clipping_config: clipping limits by path.

    Returns:
        A nest like `batch`.

    Raises:
        ValueError: a path is not a tuple, or the start of the path of no leaf.
    """
    _check_paths([path for path, _ in clipping_config.path_map], batch)

    def clip_leaf(path: Path, data: Array) -> Array:
        if not _is_float(data):
            return data
        for clipped_path, max_abs_value in clipping_config.path_map:
            if _is_prefix(clipped_path, path):
                return jnp.clip(data, -max_abs_value, max_abs_value)
        return data

    return fast_map_structure_with_path(clip_leaf, batch)
