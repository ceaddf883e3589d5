"""Scales of rewards, values and observations of unknown magnitudes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stoix_like.utils.jax_utils import prepend_dims


def symlog(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Compress large magnitudes; close to the identity around 0.

        symlog(x) = sign(x) ln(|x| + 1)

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, symlog transformation.
    """
    # Not by |x|, which has the derivative 0 at 0.
    return jnp.log1p(jnp.maximum(x, 0.0)) - jnp.log1p(jnp.maximum(-x, 0.0))


def symexp(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Invert `symlog`.

    symexp(x) = sign(x) (exp(|x|) - 1)
    """
    return jnp.expm1(jnp.maximum(x, 0.0)) - jnp.expm1(jnp.maximum(-x, 0.0))


def signed_hyperbolic(x: Float[Array, "..."], eps: float = 1e-3) -> Float[Array, "..."]:
    """Compress large magnitudes; close to half the argument around 0.

        h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x

    Source: Pohlen et al. 2018, arXiv:1805.11593, section 3.2.
    """
    # Without the difference, which is nothing but rounding around 0.
    return x / (jnp.sqrt(jnp.abs(x) + 1.0) + 1.0) + eps * x


def signed_parabolic(x: Float[Array, "..."], eps: float = 1e-3) -> Float[Array, "..."]:
    """Invert `signed_hyperbolic`.

    h^-1(x) = sign(x) ((w + 1)^2 - 1), w = (sqrt(1 + 4 eps (|x| + 1 + eps)) - 1) / (2 eps) - 1
    """
    # The same w, by 1 + 2 eps = sqrt(1 + 4 eps (1 + eps)): as written, its error of 1e-4 hides small values.
    w = 2.0 * x / (jnp.sqrt(1.0 + 4.0 * eps * (jnp.abs(x) + 1.0 + eps)) + 1.0 + 2.0 * eps)
    return w * (jnp.abs(w) + 2.0)


def symexp_atoms(num_atoms: int, limit: float = 20.0) -> Float[np.ndarray, "K"]:
    """Return atoms that are evenly spaced on the scale of `symlog`, and symmetric to the last bit.

        atoms = symexp(-limit … limit)

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, symexp two-hot loss.

    Returns `[K]` atoms, ascending.
    """
    above = np.expm1(np.linspace(-limit, limit, num_atoms)[(num_atoms + 1) // 2 :]).astype(np.float32)
    return np.concatenate([-above[::-1], np.zeros(num_atoms % 2, np.float32), above])


def two_hot(target: Float[Array, "*B"], atoms: Float[Array, "K"]) -> Float[Array, "*B K"]:
    """Return the probabilities of the two atoms around each target that make the target their mean.

    It is a single loop on a CPU, where all targets have the same atoms; see also `two_hot_loss_per_example`.

    `atoms`: `[K]`, ascending; their distances may differ.
    """
    # Above the outermost atoms, both lines are at least 1.
    gaps = jnp.diff(atoms)
    below, above = jnp.concatenate([gaps[:1], gaps]), jnp.concatenate([gaps, gaps[-1:]])
    lines = atoms - below, atoms + above, 1.0 / below, 1.0 / above
    first, last, rising, falling = (prepend_dims(x, target.ndim + 1) for x in lines)
    target = jax.lax.stop_gradient(jnp.clip(target, atoms[0], atoms[-1]))[..., None]
    return jnp.clip(jnp.minimum((target - first) * rising, (last - target) * falling), 0.0, 1.0)
