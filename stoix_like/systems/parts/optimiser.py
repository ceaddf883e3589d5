"""Optimisers and gradient steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import jax
import optax
from optax.contrib import MuonDimensionNumbers

from stoix_like.base_types import Axes, PyTree, SystemConfig, SystemSpec
from stoix_like.errors import ConfigError
from stoix_like.networks.hyperspherical import project_weights
from stoix_like.schema import Part, Range, above, at_least, one_of
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.jax_utils import Scalar, leaf_name
from stoix_like.utils.training import clip_by_global_norm, make_learning_rate_schedule, on_trees

_MUON_RMS = 0.2

AuxT = TypeVar("AuxT")
LossFn = Callable[..., tuple[jax.Array, AuxT]]
"""A function `(params, ...) -> (loss, metrics)`."""
Transform = Callable[[optax.ScalarOrSchedule], optax.GradientTransformation]
"""A function `(learning_rate) -> GradientTransformation`."""


BY_AXES = ("adamw", "muon")
"""Optimisers that tell weights from biases by their axes."""


@dataclass(frozen=True, kw_only=True)
class Gradients(Part):
    """Hyperparameters of gradient descent."""

    # Whether learning rates decay linearly to zero over the run; or to this share of them.
    decay_learning_rates: bool | Annotated[float, Range(0.0, 1.0, without_low=True, without_high=True)]
    max_grad_norm: Annotated[float | None, above(0.0)]  # largest global norm of the gradients of each optimiser
    adam_eps: Annotated[float, above(0.0)] = 1e-8  # constant that Adam adds to the root mean square gradient
    optimiser: Annotated[str, one_of("adam", "radam", "adamw", "muon")] = "adam"  # `adam`, `radam`, `adamw` or `muon`
    weight_decay: Annotated[float, at_least(0.0)] = 0.0  # of weight matrices, times the learning rate; `adamw`, `muon`

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check that the optimiser has a weight decay if one is set."""
        if self.weight_decay and self.optimiser not in BY_AXES:
            raise ConfigError(
                f"system.weight_decay={self.weight_decay} has no effect with system.optimiser={self.optimiser}: use"
                " system.optimiser=adamw"
            )

    @property
    def final_rate(self) -> float:
        """Learning rates at the end of the run, as a share of the initial ones."""
        decay = self.decay_learning_rates
        return float(not decay) if isinstance(decay, bool) else decay

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        if not self.decay_learning_rates:
            return {}
        rate = float(make_learning_rate_schedule(1.0, num_updates, 1, 1, self.final_rate)(updates))
        return {"learning rates (fraction of the initial ones)": rate}


def make_optimiser(
    config: Any, spec: SystemSpec, lr: Scalar, period: int = 1, transform: Transform | None = None, b1: Scalar = 0.9
) -> optax.GradientTransformation:
    """Build an optimiser with gradient clipping and, optionally, learning rate decay.

    `transform`: `(learning_rate) -> GradientTransformation`; None: from `gradients.optimiser`.
    """
    gradients = config.gradients
    rate: Any = lr
    if gradients.decay_learning_rates:
        schedule = make_learning_rate_schedule(lr, spec.num_updates, config.gradient_steps, 1, gradients.final_rate)

        def rate(count: jax.Array) -> jax.Array:
            return schedule(count * period)

    step = make_transform(gradients, rate, b1) if transform is None else transform(rate)
    clip = optax.identity() if gradients.max_grad_norm is None else clip_by_global_norm(gradients.max_grad_norm)
    return optax.chain(clip, step)


def make_transform(config: Gradients, rate: optax.ScalarOrSchedule, b1: Scalar = 0.9) -> optax.GradientTransformation:
    """Build the transformation of `config.optimiser`.

    `adam`, `radam`, `adamw` and `muon` come from optax. The decay acts on weights, which are kernels and embeddings,
    and not on biases, scales or temperatures. Muon orthogonalises the update of each weight matrix, and of each kernel
    of a convolution as a matrix with one column per output channel, and scales it to the root mean square 0.2 of an
    update of Adam, so that learning rates keep their meaning; other leaves take steps of Adam with Nesterov momentum.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2; Liu et al. 2025, arXiv:2502.16982, section 2.2.
    """
    eps, decay = config.adam_eps, config.weight_decay
    if config.optimiser == "adamw":
        return on_trees(optax.adamw(rate, b1, eps=eps, weight_decay=decay, mask=_is_weight))
    if config.optimiser == "muon":
        rules = {"muon_weight_dimension_numbers": _matrices, "consistent_rms": _MUON_RMS}
        return on_trees(optax.contrib.muon(rate, eps=eps, weight_decay=decay, adam_b1=b1, **rules))
    return {"adam": optax.adam, "radam": optax.radam}[config.optimiser](rate, b1, eps=eps)


def _is_weight(tree: PyTree) -> PyTree:
    def is_weight(path: tuple[Any, ...], leaf: jax.Array) -> bool:
        name = leaf_name(path)
        # `sigma_kernel` are the deviations of noisy layers.
        return leaf.ndim > 1 and ("kernel" in name or "embedding" in name) and "sigma" not in name

    return jax.tree.map_with_path(is_weight, tree)


def _matrices(tree: PyTree) -> PyTree:
    """Return which axes of each leaf form a matrix, as Muon expects; None for leaves without one.

    Kernels of convolutions have four axes, with output channels last; leaves with three are stacks of matrices.
    """

    def axes(leaf: jax.Array, is_weight: bool) -> MuonDimensionNumbers | None:
        if not is_weight:
            return None
        return MuonDimensionNumbers((0, 1, 2) if leaf.ndim == 4 else leaf.ndim - 2, leaf.ndim - 1)

    return jax.tree.map(axes, tree, _is_weight(tree))


def gradient_step(
    loss: LossFn[AuxT], optim: optax.GradientTransformation, axes: Axes, params: PyTree, opt_state: PyTree, *args: Any
) -> tuple[PyTree, PyTree, AuxT]:
    """Take one gradient step on a loss, averaging the gradient over all shards; see also `project_weights`."""
    grads, metrics = mean_gradient(loss, axes, params, *args)
    return *descend(optim, grads, params, opt_state), metrics


def mean_gradient(loss: LossFn[AuxT], axes: Axes, params: PyTree, *args: Any) -> tuple[PyTree, AuxT]:
    """Return the gradient of a loss, averaged over all shards, and its metrics."""
    grads, metrics = jax.grad(lambda params: loss(unpack(params), *args), has_aux=True)(params)
    return axes.mean(grads), metrics


def descend(
    optim: optax.GradientTransformation, grads: PyTree, params: PyTree, opt_state: PyTree
) -> tuple[PyTree, PyTree]:
    """Return the parameters and the optimiser's state after one step along a gradient."""
    updates, opt_state = optim.update(grads, opt_state, params)
    return project_weights(optax.apply_updates(params, updates)), opt_state
