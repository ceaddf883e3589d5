"""Bounds of MPO and V-MPO on divergences, with learned temperature and Lagrange multipliers.

`networks.distributions.decouple` splits a normal policy, squashed or not, into its means and its standard deviations,
which have bounds of their own in each dimension; a categorical policy is bounded as a whole, a Beta policy, or one of
several choices, in each entry of an action. One file therefore serves all actions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import Distribution, Loss, PyTree
from stoix_like.networks import distributions
from stoix_like.schema import Part, above
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss import mpo_alpha_loss

# Keeps the temperature, by which values are divided, away from 0.
_MINIMUM = 1e-8
# Below it, where the softplus is about `_MINIMUM`, the gradients of multipliers vanish, and they would not grow again.
_LOWEST = -18.0


@dataclass(frozen=True, kw_only=True)
class DualConfig(Part):
    """Hyperparameters of the bounds; mean and deviation have bounds in normal policies, squashed or not."""

    epsilon: Annotated[float, above(0.0)]  # bound on the divergence of the weighted actions from the target, in nats
    epsilon_policy: Annotated[float, above(0.0)]  # bound on the divergence of an update, in nats per entry of an action
    epsilon_mean: Annotated[float, above(0.0)]  # bound on the divergence by changed means, in nats per action dimension
    epsilon_stddev: Annotated[float, above(0.0)]  # likewise by changed standard deviations
    init_temperature: Annotated[float, above(0.0)]
    init_alpha: Annotated[float, above(0.0)]  # initial Lagrange multiplier of `epsilon_policy`, per nat
    init_alpha_mean: Annotated[float, above(0.0)]  # initial Lagrange multiplier of `epsilon_mean`, per nat
    init_alpha_stddev: Annotated[float, above(0.0)]  # initial Lagrange multiplier of `epsilon_stddev`, per nat
    dual_lr: Annotated[float, above(0.0)]  # Adam learning rate of temperature and multipliers, before the softplus

    def init(self, pi: Distribution, penalised: bool = False) -> Duals:
        """Return the initial temperature and multipliers; `penalised`: with a temperature of a penalty."""
        values = {"policy": self.init_alpha, "mean": self.init_alpha_mean, "stddev": self.init_alpha_stddev}
        parts = distributions.decouple(pi, pi)
        sizes = {name: distributions.kl_per_dimension(pi, part).shape[-1] for name, part in parts.items()}
        alphas = {name: jnp.full((size,), inverse_softplus(values[name])) for name, size in sizes.items()}
        penalty_temperature = inverse_softplus(self.init_temperature) if penalised else ()
        return Duals(inverse_softplus(self.init_temperature), alphas, penalty_temperature)


class Duals(NamedTuple):
    """Temperature and Lagrange multipliers, before the softplus that keeps them positive."""

    temperature: jax.Array  # of the weights of the E-step, a scalar
    alphas: dict[str, jax.Array]  # multipliers `[A]` by the part of the policy
    penalty_temperature: PyTree = ()  # of the weights by a penalty, a scalar; `()` without one


def positive(raw: jax.Array) -> jax.Array:
    """Return a dual variable from its learned value, `softplus(raw)`."""
    return jax.nn.softplus(raw) + _MINIMUM


def make_dual_optimiser(config: DualConfig) -> optax.GradientTransformation:
    """Build Adam for the duals, which keeps their learned values from where their gradients vanish."""
    bounded = optax.stateless(
        lambda updates, duals: jax.tree.map(lambda update, raw: jnp.maximum(update, _LOWEST - raw), updates, duals)
    )
    return optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(config.dual_lr), bounded)


def inverse_softplus(value: Scalar) -> jax.Array:
    """Return the learned value of a dual variable, the inverse of `positive`."""
    value = jnp.asarray(value, jnp.float32)
    # Stable for large values: their exponential would overflow.
    return value + jnp.log(-jnp.expm1(-value))


def constrained_policy_loss(
    config: DualConfig, duals: Duals, pi: Distribution, b_pi: Distribution, cross_entropy: Callable[[Any], jax.Array]
) -> Loss:
    """Compute the loss of the M-step: policy loss, penalties on divergences, and the losses of their multipliers.

        L = sum_parts [L_pi(part) + sum_d alpha_d KL_d(b_pi || part) + alpha_d (epsilon - KL_d)]

    where the second term has a gradient of only the policy, and the third of only the multipliers. `decouple` returns
    the parts.
    Source: Abdolmaleki et al. 2018, "Relative entropy regularized policy iteration", section 4.2; Song et al. 2020
    (V-MPO), equation 5, which decouples only the divergence, and here the policy loss as well, as in MPO.
    """
    epsilons = {"policy": config.epsilon_policy, "mean": config.epsilon_mean, "stddev": config.epsilon_stddev}
    loss, metrics = jnp.zeros(()), {}
    for name, part in distributions.decouple(pi, b_pi).items():
        kl = distributions.kl_per_dimension(b_pi, part)
        alpha = positive(duals.alphas[name])
        losses = jax.vmap(mpo_alpha_loss, in_axes=(-1, 0, None))(kl, alpha, epsilons[name])
        loss += cross_entropy(part) + sum(jnp.sum(term) for term in losses)
        metrics[f"kl_{name}"] = jnp.mean(kl)
        metrics[f"alpha_{name}"] = jnp.mean(alpha)
    return loss, metrics
