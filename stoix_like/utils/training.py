"""Learning-rate schedules, and transformations of gradients and of optimisers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from stoix_like.utils.accelerate.packing import is_packed, pack_params, unpack
from stoix_like.utils.jax_utils import Scalar

Schedule = Callable[[int | Int[Array, ""]], Float[Array, ""]]
"""A function from the number of gradient steps taken to a learning rate."""


def make_learning_rate_schedule(
    init_lr: Scalar, num_updates: int, num_epochs: int, num_minibatches: int, final: Scalar = 0.0
) -> Schedule:
    """Build a learning rate that decays linearly, once per update.

        lr(k) = init_lr * max(final, 1 - (1 - final) floor(k / (num_epochs * num_minibatches)) / num_updates)

    Args:
        init_lr: learning rate of the first update, per gradient step.
        num_updates: updates of the run.
        num_epochs: passes over the data of one update.
        num_minibatches: gradient steps per pass.
        final: share of the initial learning rate at the end of the run.

    Returns:
        The learning rate as a function of k, the number of gradient steps taken.

    Raises:
        ValueError: if a count is less than 1.
    """
    counts = {"num_updates": num_updates, "num_epochs": num_epochs, "num_minibatches": num_minibatches}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name}={count} must be at least 1")

    def schedule(count: int | Int[Array, ""]) -> Float[Array, ""]:
        fraction_done = (count // (num_epochs * num_minibatches)) / num_updates
        # A negative rate after the last update would ascend the loss.
        return init_lr * jnp.maximum(final, 1.0 - (1.0 - final) * fraction_done)

    return schedule


def make_learning_rate(
    init_lr: Scalar, config: Any, num_epochs: int, num_minibatches: int | None = None
) -> Scalar | Schedule:
    """Return a constant learning rate, or a schedule if the config enables decay.

    Args:
        init_lr: learning rate of the first update, per gradient step.
        config: an object with `decay_learning_rates` (whether rates decay to zero, or the share in (0, 1) to which they
            decay) and `num_updates` (updates of the run), or with both as `system.decay_learning_rates` and
            `arch.num_updates`.
        num_epochs: passes over the data of one update.
        num_minibatches: gradient steps per pass; None means 1.

    Returns:
        `init_lr`, or the schedule of `make_learning_rate_schedule`.

    Raises:
        AttributeError: if the config lacks one of these attributes.
        ValueError: if a count is less than 1, or the share is not in (0, 1).
    """
    system, arch = (config.system, config.arch) if hasattr(config, "system") else (config, config)
    decay = system.decay_learning_rates
    if not decay:
        return init_lr
    final = 0.0 if isinstance(decay, bool) else decay
    if not 0.0 <= final < 1.0:
        raise ValueError(f"decay_learning_rates={decay} must be true, false or a share below 1")
    num_minibatches = 1 if num_minibatches is None else num_minibatches
    return make_learning_rate_schedule(init_lr, arch.num_updates, num_epochs, num_minibatches, final)


def clip_by_global_norm(max_norm: Scalar) -> optax.GradientTransformation:
    """Clip gradients by their global norm.

        g * min(1, max_norm / ||g||)

    `optax.clip_by_global_norm` divides every entry by the norm, once for each moment of Adam; this function divides a
    single scalar. The results differ by rounding.

    Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", algorithm 1.
    """

    def clip(updates: PyTree[Array], params: PyTree[Array] | None) -> PyTree[Array]:
        scale = jnp.minimum(1.0, max_norm / optax.tree.norm(updates))
        return jax.tree.map(lambda update: (update * scale).astype(update.dtype), updates)

    return optax.stateless(clip)


def clip_by_parameter_norm(clip: Scalar, least: Scalar = 1e-3) -> optax.GradientTransformation:
    """Clip each gradient by the norm of its parameters (adaptive gradient clipping).

        g * min(1, clip * max(least, ||p||) / ||g||), for each array of the tree

    Source: Brock et al. 2021, arXiv:2102.06171, equation 3, per array instead of per unit, as in Hafner et al. 2023
    (DreamerV3), arXiv:2301.04104.
    """

    def clip_array(grad: Array, param: Array) -> Array:
        limit = clip * jnp.maximum(least, jnp.linalg.norm(param))
        # A norm of 0 needs no scale; the quotient of the other branch must be finite, too.
        norm = jnp.linalg.norm(grad)
        return grad * jnp.where(norm > limit, limit / jnp.maximum(norm, limit), 1.0)

    def update(updates: PyTree[Array], params: PyTree[Array] | None) -> PyTree[Array]:
        return jax.tree.map(clip_array, updates, params)

    return on_trees(optax.stateless(update))


class LaPropState(NamedTuple):
    """The state of LaProp: gradient steps, and means of normalised and of squared gradients, in the form of Adam's."""

    count: jax.Array  # type: ignore[assignment]  # named as in optax
    mu: Any
    nu: Any


def laprop(rate: Scalar | Schedule, b1: Scalar, b2: Scalar, eps: Scalar) -> optax.GradientTransformation:
    """Build LaProp: Adam with momentum of normalised gradients, so that no step is much larger than the rate.

        nu <- b2 nu + (1 - b2) g^2
        mu <- b1 mu + (1 - b1) g / (sqrt(nu / (1 - b2^t)) + eps)
        step = -rate * mu / (1 - b1^t)

    Source: Ziyin et al. 2020, arXiv:2002.04839, algorithm 1, with the bias correction of Adam.
    """

    def init(params: PyTree[Array]) -> LaPropState:
        return LaPropState(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params), optax.tree.zeros_like(params))

    def update(grads: PyTree[Array], state: LaPropState, params: Any = None) -> tuple[PyTree[Array], LaPropState]:
        count = optax.safe_increment(state.count)
        unbias_mu, unbias_nu = (1.0 / (1.0 - decay**count) for decay in (b1, b2))
        nu = jax.tree.map(lambda nu, g: b2 * nu + (1.0 - b2) * jnp.square(g), state.nu, grads)
        mu = jax.tree.map(
            lambda mu, nu, g: b1 * mu + (1.0 - b1) * g / (jnp.sqrt(unbias_nu * nu) + eps), state.mu, nu, grads
        )
        return jax.tree.map(lambda mu: unbias_mu * mu, mu), LaPropState(count, mu, nu)

    return optax.chain(optax.GradientTransformation(init, update), optax.scale_by_learning_rate(rate))


def on_trees(optim: optax.GradientTransformation) -> optax.GradientTransformation:
    """Let an optimiser that depends on the shapes of parameters see them unpacked."""

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, new_state = optim.update(unpack(grads), unpack(state), unpack(params))
        return (pack_params(updates), pack_params(new_state)) if is_packed(grads) else (updates, new_state)

    return optax.GradientTransformation(optim.init, update)


def join_optimisers(
    *optims: optax.GradientTransformation, states: Callable[..., Any] = lambda *states: states
) -> optax.GradientTransformation:
    """Combine the optimisers of the parts of a tuple into one."""

    def init(params: Any) -> Any:
        return states(*(optim.init(part) for optim, part in zip(optims, params, strict=True)))

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        parts = (None,) * len(optims) if params is None else params
        steps = [optim.update(*args) for optim, *args in zip(optims, grads, state, parts, strict=True)]
        updates, state = zip(*steps, strict=True)
        return jax.tree.unflatten(jax.tree.structure(grads), jax.tree.leaves(updates)), states(*state)

    return optax.GradientTransformation(init, update)


def advance_schedules(opt_states: PyTree[Any], steps: jax.Array) -> PyTree[Any]:
    """Let the learning rate schedules in optimiser states count gradient steps that were left out."""

    def advance(state: Any) -> Any:
        return state._replace(count=state.count + steps) if is_schedule(state) else state

    return jax.tree.map(advance, opt_states, is_leaf=is_schedule)


def is_schedule(state: Any) -> bool:
    """Return whether a part of an optimiser's state counts the steps of a schedule."""
    return isinstance(state, optax.ScaleByScheduleState)
