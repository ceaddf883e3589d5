"""Running mean and standard deviation of nested data.

The statistics of two sets of samples merge exactly (Chan et al. 1979), so the state may be fed batch by batch, and
devices or update batches may each see a part: their sums are added over the named axes. Leaves of integer or
boolean type, such as pixels, keep mean 0 and standard deviation 1 and pass through `normalize` untouched.

A float32 counter stops at 2**24 and a float32 sum of squares stalls even earlier. Everything that accumulates is
therefore held as the nearest float32 together with what that one lost to rounding (Møller 1965), which is good for
2**48 samples.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, Real

from stoix_like.utils.jax_utils import Scalar, prepend_dims

Path = tuple[Any, ...]
"""Where a leaf sits: dict keys, sequence positions and attribute names from the root down."""

Weights = Real[Array, "..."] | Bool[Array, "..."]
"""Weights of samples, numbers or flags: the leading shape of a batch."""

# The fields of the states are annotated as trees, `count` (a float32 scalar) among them: jax also builds these classes
# around axis numbers, partition specs and None.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundingErrors:
    """What fields of the statistics lost to rounding; the accurate value is the sum of both.

    Attributes:
        count: float array, the low half of the count.
        mean: nest of float arrays, the low halves of the means.
        summed_variance: nest of float arrays, the low halves of the summed variances.
    """

    count: PyTree
    mean: PyTree
    summed_variance: PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NestedMeanStd:
    """Mean and standard deviation of each element of a nest.

    Attributes:
        mean: nest of float arrays, in the unit of the data.
        std: nest of float arrays, likewise.
    """

    mean: PyTree
    std: PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunningStatisticsState(NestedMeanStd):
    """Everything that merging further data needs.

    Attributes:
        count: sum of the weights so far, the number of samples where none were given.
        summed_variance: nest of weighted sums of squared deviations from the mean.
        rounding: the low halves of `count`, `mean` and `summed_variance`; left out, they are zero.
    """

    count: PyTree
    summed_variance: PyTree
    rounding: RoundingErrors = None  # type: ignore[assignment]  # never None once it is made from arrays

    def __post_init__(self) -> None:
        """Fill in the rounding errors of statistics that come from elsewhere."""
        nests = (self.count, self.mean, self.summed_variance)
        if self.rounding is None and all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(nests)):
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, _statistics_dtype(x)), nests)
            object.__setattr__(self, "rounding", RoundingErrors(*zeros))


@dataclasses.dataclass(frozen=True)
class NestStatisticsConfig:
    """Which leaves have statistics; the others keep mean 0 and standard deviation 1.

    Attributes:
        paths: a leaf is in where one of these is the beginning of its path; `()` is the beginning of every path.
    """

    paths: tuple[Path, ...] = ((),)


@dataclasses.dataclass(frozen=True)
class NestClippingConfig:
    """How far leaves may go.

    Attributes:
        path_map: pairs of a path and the largest absolute value of all leaves below it; the first that fits counts.
    """

    path_map: tuple[tuple[Path, float], ...] = ()


def fast_map_structure(func: Callable[..., Any], *structure: PyTree) -> PyTree:
    """Maps a function over the leaves of trees.

    Args:
        func: takes one leaf of each tree.
        *structure: trees; the first one gives the structure.

    Returns:
        The tree of results, structured like the first.
    """
    return jax.tree.map(func, *structure)


def fast_map_structure_with_path(func: Callable[..., Any], *structure: PyTree) -> PyTree:
    """Maps a function over the paths and leaves of trees.

    Args:
        func: takes the path, a tuple of dict keys, positions and attribute names, then one leaf of each tree.
        *structure: trees; the first one gives the structure.

    Returns:
        The tree of results, structured like the first.
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


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _two_sum(large: Array, low: Array, addend: Array) -> tuple[Array, Array]:
    """(large + low) + addend as the nearest float and the rest (Knuth's error-free transformation)."""
    addend = addend + low
    total = large + addend
    of_addend = total - large
    return total, (large - (total - of_addend)) + (addend - of_addend)


def initialize_statistics(nest: PyTree) -> RunningStatisticsState:
    """The statistics of no data at all: count 0, mean 0, standard deviation 1.

    Args:
        nest: one sample without batch dimensions: arrays, numbers or `jax.ShapeDtypeStruct`s.

    Returns:
        A state whose nests are structured like `nest`, in float32 (float64 where the data is).
    """
    nest = jax.eval_shape(lambda tree: jax.tree.map(jnp.asarray, tree), nest)

    def filled(value: float) -> PyTree:
        # One array per leaf: a donated state must not hold a buffer twice.
        return jax.tree.map(lambda x: jnp.full(x.shape, value, _statistics_dtype(x)), nest)

    return RunningStatisticsState(
        mean=filled(0.0),
        std=filled(1.0),
        count=jnp.zeros((), jnp.float32),
        summed_variance=filled(0.0),
        rounding=RoundingErrors(jnp.zeros((), jnp.float32), filled(0.0), filled(0.0)),
    )


def _statistics_dtype(x: Any) -> Any:
    return jnp.promote_types(x.dtype, jnp.float32) if _is_float(x) else jnp.float32


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
    """The statistics of a first batch of data.

    Args:
        nest: one sample without batch dimensions.
        data_sample: the batch, see `update_statistics` for it and the other arguments.
        config: which leaves have statistics.
        weights: weight of each sample.
        std_min_value: least standard deviation, in the unit of the data.
        std_max_value: largest standard deviation.
        pmap_axes: mapped axes whose members each hold a part of the batch.
        validate_shapes: whether the shapes of batch and weights are checked.

    Returns:
        `update_statistics(initialize_statistics(nest), data_sample, ...)`.

    Raises:
        ValueError: if a shape does not fit.
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
    """One axis name or several, as a list.

    Args:
        pmap_axes: a name, names, or None.

    Returns:
        The list of names; None for None.
    """
    if pmap_axes is None:
        return None
    return [pmap_axes] if isinstance(pmap_axes, str) else list(pmap_axes)


class _LeafStatistics(NamedTuple):
    """The statistics of one leaf, or nests of them."""

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
    """Merges a batch into the statistics.

        n' = n + w,  d = mean(batch) - mean,  mean' = mean + d w / n'
        S' = S + S_batch + d^2 n w / n',  std' = clip(sqrt(S' / n'), std_min_value, std_max_value)

    A total weight of zero leaves the state as it was.
    Source: Chan, Golub & LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".

    Args:
        state: the statistics so far, `[*element]` per leaf.
        batch: `[*batch, *element]` per leaf, with any number of leading dimensions, the same for every leaf.
        config: which leaves have statistics; None means all.
        weights: `[*batch]` weight of each sample, not negative, in samples; None means 1 each.
        std_min_value: least standard deviation, in the unit of the data.
        std_max_value: largest standard deviation.
        pmap_axes: mapped axes (vmap, shard_map) whose members each hold a part of the batch; the result is the
            same on all of them.
        validate_shapes: whether the shapes of batch and weights are checked.

    Returns:
        The statistics of all data so far.

    Raises:
        ValueError: if a leaf or the weights do not have the shape that the first leaf implies.
    """
    axes = tuple(convert_pmap_axes_names(pmap_axes) or ())
    num_dims = _num_batch_dims(state.mean, batch, weights, validate_shapes)
    if num_dims is None:
        return state
    weights, added = _weigh(batch, weights, num_dims, axes)
    count, count_low = _two_sum(state.count, state.rounding.count, added)

    def update_leaf(path: Path, data: Array, *fields: Array) -> _LeafStatistics:
        old = _LeafStatistics(*fields)
        if not _has_statistics(path, data, config):
            return old
        moments = _batch_moments(data, old, weights, added, axes)
        return _merge(old, moments, (state.count, added, count), (std_min_value, std_max_value))

    low = state.rounding
    nests = _LeafStatistics(state.mean, state.std, state.summed_variance, low.mean, low.summed_variance)
    new = _transpose(batch, fast_map_structure_with_path(update_leaf, batch, *nests))
    low = RoundingErrors(count_low, new.mean_low, new.summed_variance_low)
    return RunningStatisticsState(new.mean, new.std, count, new.summed_variance, low)


def _has_statistics(path: Path, data: Array, config: NestStatisticsConfig | None) -> bool:
    paths = (NestStatisticsConfig() if config is None else config).paths
    return _is_float(data) and any(_is_prefix(prefix, path) for prefix in paths)


def _merge(
    old: _LeafStatistics,
    moments: tuple[Array, Array, Array],
    counts: tuple[Array, Array, Array],
    std_limits: tuple[Scalar, Scalar],
) -> _LeafStatistics:
    """The statistics of a leaf and a batch together, given `_batch_moments` and the counts before, added and after."""
    shift, correction, spread = moments
    before, added, after = (count.astype(old.mean.dtype) for count in counts)
    total = jnp.where(after > 0, after, 1.0)
    share = added / total
    spread += jnp.square(shift + correction) * share * before
    mean, mean_low = _two_sum(old.mean, old.mean_low, shift * share)
    mean, mean_low = _two_sum(mean, mean_low, correction * share)
    summed, summed_low = _two_sum(old.summed_variance, old.summed_variance_low, spread)
    std = jnp.clip(jnp.sqrt(summed / total), *std_limits)
    return _LeafStatistics(mean, jnp.where(added > 0, std, old.std), summed, mean_low, summed_low)


def _transpose(outer: PyTree, nest: PyTree) -> _LeafStatistics:
    """Turns a nest of leaf statistics into leaf statistics of nests."""
    inner = jax.tree.structure(_LeafStatistics(*range(5)))
    transposed: _LeafStatistics = jax.tree.transpose(jax.tree.structure(outer), inner, nest)
    return transposed


def _num_batch_dims(mean: PyTree, batch: PyTree, weights: Array | None, validate: bool) -> int | None:
    """The number of batch dimensions, None for a nest without leaves."""
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
                f"a leaf of shape {data.shape} does not fit statistics of shape {reference.shape} "
                f"and batch dimensions {batch_dims}"
            )
    if weights is not None and weights.shape != batch_dims:
        raise ValueError(f"weights of shape {weights.shape} do not fit batch dimensions {batch_dims}")
    return num_dims


def _weigh(batch: PyTree, weights: Array | None, num_dims: int, axes: tuple[str, ...]) -> tuple[Array | None, Array]:
    """The weights as floats and their sum over all members of the axes."""
    if weights is not None:
        weights = weights.astype(jnp.float32)
        return weights, _sum_over_axes(jnp.sum(weights), axes)
    members = math.prod(jax.lax.axis_size(axis) for axis in axes)
    samples = math.prod(jax.tree.leaves(batch)[0].shape[:num_dims])
    return None, jnp.asarray(members * samples, jnp.float32)


def _sum_over_axes(tree: PyTree, axes: tuple[str, ...]) -> PyTree:
    return jax.lax.psum(tree, axes) if axes else tree


def _batch_moments(
    data: Array, old: _LeafStatistics, weights: Array | None, added: Array, axes: tuple[str, ...]
) -> tuple[Array, Array, Array]:
    """How far the batch's mean is from the old one, in a large and a small part, and its sum of squared deviations."""
    dtype = old.mean.dtype
    batch_dims = tuple(range(data.ndim - old.mean.ndim))
    added = jnp.where(added > 0, added, 1.0).astype(dtype)
    deviation = (data.astype(dtype) - prepend_dims(old.mean, data.ndim)) - prepend_dims(old.mean_low, data.ndim)
    if weights is None:
        weight = jnp.ones((), dtype)
    else:
        weight = weights.astype(dtype).reshape(weights.shape + (1,) * old.mean.ndim)
        # Data of weight zero may be anything, NaN included.
        deviation = jnp.where(weight > 0, deviation, 0.0)
    shift = _sum_over_axes(jnp.sum(weight * deviation, batch_dims), axes) / added
    residual = deviation - prepend_dims(shift, data.ndim)
    weighted = weight * residual
    # The residuals would sum to zero, were it not for rounding: what they sum to corrects the results.
    rest, spread = _sum_over_axes((jnp.sum(weighted, batch_dims), jnp.sum(weighted * residual, batch_dims)), axes)
    correction = rest / added
    return shift, correction, jnp.maximum(spread - rest * correction, 0.0)


def normalize(batch: PyTree, mean_std: NestedMeanStd, max_abs_value: Scalar | None = None) -> PyTree:
    """Shifts and scales data to mean 0 and standard deviation 1.

        y = clip((x - mean) / std, -max_abs_value, max_abs_value)

    Args:
        batch: `[..., *element]` per leaf; integers and booleans pass through.
        mean_std: the statistics, `[*element]` per leaf.
        max_abs_value: how many standard deviations are kept; None keeps all.

    Returns:
        Nest like `batch`, of the same types.
    """

    def normalize_leaf(data: Array, mean: Array, std: Array) -> Array:
        if not _is_float(data):
            return data
        scaled = (data.astype(mean.dtype) - prepend_dims(mean, data.ndim)) / prepend_dims(std, data.ndim)
        if max_abs_value is not None:
            scaled = jnp.clip(scaled, -max_abs_value, max_abs_value)
        return scaled.astype(data.dtype)

    return fast_map_structure(normalize_leaf, batch, mean_std.mean, mean_std.std)


def denormalize(batch: PyTree, mean_std: NestedMeanStd) -> PyTree:
    """Undoes `normalize`, but for its clipping.

        x = y * std + mean

    Args:
        batch: `[..., *element]` per leaf; integers and booleans pass through.
        mean_std: the statistics, `[*element]` per leaf.

    Returns:
        Nest like `batch`, of the same types.
    """

    def denormalize_leaf(data: Array, mean: Array, std: Array) -> Array:
        if not _is_float(data):
            return data
        return (data.astype(mean.dtype) * prepend_dims(std, data.ndim) + prepend_dims(mean, data.ndim)).astype(
            data.dtype
        )

    return fast_map_structure(denormalize_leaf, batch, mean_std.mean, mean_std.std)


def get_clip_config_for_path(config: NestClippingConfig, path: Path) -> NestClippingConfig:
    """The part of a clipping config that concerns one subtree.

    Args:
        config: paths from the root.
        path: where the subtree sits.

    Returns:
        The config with paths from the subtree's root.
    """
    below: list[tuple[Path, float]] = []
    for clipped_path, max_abs_value in config.path_map:
        if _is_prefix(clipped_path, path):
            return NestClippingConfig((*below, ((), max_abs_value)))
        if _is_prefix(path, clipped_path):
            below.append((clipped_path[len(path) :], max_abs_value))
    return NestClippingConfig(tuple(below))


def clip(batch: PyTree, clipping_config: NestClippingConfig) -> PyTree:
    """Limits the absolute values of the leaves that the config names.

    Args:
        batch: nest of arrays of any shape; integers and booleans pass through.
        clipping_config: the limits.

    Returns:
        Nest like `batch`.
    """

    def clip_leaf(path: Path, data: Array) -> Array:
        if not _is_float(data):
            return data
        for clipped_path, max_abs_value in clipping_config.path_map:
            if _is_prefix(clipped_path, path):
                return jnp.clip(data, -max_abs_value, max_abs_value)
        return data

    return fast_map_structure_with_path(clip_leaf, batch)
