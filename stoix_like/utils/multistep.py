"""Returns, advantages and temporal-difference errors over sequences.

Time follows Sutton & Barto: from the observation at `tm1` an action leads to the reward `r_t`, the discount
`discount_t` and the observation at `t`. `discount_t` is gamma where the episode goes on and zero where it
*terminated*. `truncation_t` marks steps that a limit cut: the value beyond them, `v_t`, still counts, and
nothing later does. For both to hold, `v_t` at a truncated step is the value of the step's true successor, not of
the observation that a reset made.

Every function is a reverse linear recurrence, run as a scan over time or, with `associative=True`, as a parallel
prefix scan of logarithmic depth: the same numbers up to rounding, and faster for long sequences on an accelerator.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Real

from stoix_like.utils.jax_utils import Scalar, standardize

Flags = Bool[Array, "B T"] | Real[Array, "B T"]


def _reverse_recurrence(
    bias: Float[Array, "T *S"], slope: Float[Array, "T *S"], final: Float[Array, "*S"], associative: bool
) -> Float[Array, "T *S"]:
    """Solves x_t = bias_t + slope_t * x_{t+1} backwards from x_T = final; time leads."""
    if associative:

        def compose(
            later: tuple[Array, Array], earlier: tuple[Array, Array]
        ) -> tuple[Array, Array]:
            return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

        biases, slopes = jax.lax.associative_scan(compose, (bias, slope), reverse=True)
        return biases + slopes * final[None]

    def step(x: Array, line: tuple[Array, Array]) -> tuple[Array, Array]:
        x = line[0] + line[1] * x
        return x, x

    return jax.lax.scan(step, final, (bias, slope), reverse=True)[1]


def _swap(time_major: bool, *arrays: Array | None) -> list[Array | None]:
    """Exchanges the two leading dimensions unless time leads; numbers and None pass through."""
    return [x if x is None or time_major or jnp.ndim(x) < 2 else jnp.swapaxes(x, 0, 1) for x in arrays]


def _trace(lambda_: Array, like: Array, truncation_t: Array | None) -> Array:
    """Lambda per step, zero where a limit cut the sequence."""
    trace = jnp.broadcast_to(jnp.asarray(lambda_, like.dtype), like.shape)
    return trace if truncation_t is None else jnp.where(truncation_t.astype(bool), jnp.zeros_like(trace), trace)


def batch_truncated_generalized_advantage_estimation(
    r_t: Float[Array, "B T"],
    discount_t: Float[Array, "B T"],
    lambda_: Scalar | Float[Array, "B T"],
    values: Float[Array, "B T+1"] | Float[Array, "B+1 T"] | None = None,
    v_tm1: Float[Array, "B T"] | None = None,
    v_t: Float[Array, "B T"] | None = None,
    truncation_t: Flags | None = None,
    stop_target_gradients: bool = False,
    time_major: bool = False,
    standardize_advantages: bool = False,
    *,
    axis_names: tuple[str, ...] = (),
    associative: bool = False,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Generalised advantage estimation over sequences cut at their ends.

        delta_t = r_t + discount_t * v_t - v_tm1
        A_t = delta_t + discount_t * lambda_t * (1 - truncation_t) * A_{t+1}

    Source: Schulman et al. 2016, "High-dimensional continuous control using GAE", equation 16, truncated as in
    Schulman et al. 2017 (PPO), equation 11.

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        lambda_: mixing parameter in [0, 1], a number or `[B, T]`.
        values: `[B, T+1]` values of consecutive observations; or leave it out and give the next two.
        v_tm1: `[B, T]` values of the observations acted on.
        v_t: `[B, T]` values of their true successors.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        stop_target_gradients: whether no gradient flows into the results.
        time_major: whether every array is `[T, B]`, and `values` `[T+1, B]`.
        standardize_advantages: whether the advantages are shifted and scaled to mean 0 and variance 1.
        axis_names: mapped axes over which the standardisation is shared.
        associative: whether to use the parallel scan.

    Returns:
        Advantages and value targets (v_tm1 + advantage before standardisation), each `[B, T]`, or `[T, B]`.

    Raises:
        ValueError: unless either `values` or both of `v_tm1` and `v_t` are given.
    """
    pair_given = v_tm1 is not None or v_t is not None
    if (values is not None) == pair_given or (v_tm1 is None) != (v_t is None):
        raise ValueError("give either `values`, or both `v_tm1` and `v_t`")
    r_t, discount_t, lambda_, values, v_tm1, v_t, truncation_t = _swap(
        time_major, r_t, discount_t, lambda_, values, v_tm1, v_t, truncation_t
    )
    if values is not None:
        v_tm1, v_t = values[:-1], values[1:]
    delta_t = r_t + discount_t * v_t - v_tm1
    decay_t = discount_t * _trace(lambda_, r_t, truncation_t)
    advantage_t = _reverse_recurrence(delta_t, decay_t, jnp.zeros_like(delta_t[0]), associative)
    target_tm1 = v_tm1 + advantage_t
    if standardize_advantages:
        advantage_t = standardize(advantage_t, axis_names)
    if stop_target_gradients:
        advantage_t, target_tm1 = jax.lax.stop_gradient((advantage_t, target_tm1))
    advantage_t, target_tm1 = _swap(time_major, advantage_t, target_tm1)
    return advantage_t, target_tm1
