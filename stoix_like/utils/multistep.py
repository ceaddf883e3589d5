"""Returns, advantages and temporal-difference errors of sequences.

Time indices follow Sutton & Barto: an action at `tm1` leads to the reward `r_t`, the discount `discount_t` and the
observation at `t`. `discount_t` is gamma, and zero where the episode *terminated*. `truncation_t` marks steps after
which the episode was truncated: their bootstrap value `v_t` counts, and nothing after it does. `v_t` of a truncated
step must therefore be the value of the true successor, not of the observation that a reset returned.

Every function except the n-step one solves a linear recurrence backwards: on CPUs as a scan over time, which was faster
there at every size measured, and on accelerators as a parallel prefix scan of logarithmic depth. `associative` chooses
one of them. Results agree up to rounding; `scripts/benchmark/returns.py` compares both on your machine.
"""

import operator
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Real

from stoix_like.utils.accelerate.platform import on_cpu
from stoix_like.utils.collectives import vary_alike
from stoix_like.utils.jax_utils import Scalar, append_dims, standardize
from stoix_like.utils.shapes import check_shapes

# The letters name the layout [B, T]; with time_major all of these are [T, B] instead.
Sequences = Float[Array, "B T"]
"""Floats `[B, T]`, or `[T, B]` if time-major."""
LongerByOne = Float[Array, "B T+1"] | Float[Array, "B+1 T"]
"""`Sequences` with one more step."""
ShorterByOne = Float[Array, "B T-1"] | Float[Array, "B-1 T"]
"""`Sequences` with one step less."""
ActionSequences = Float[Array, "B T A"]
"""Floats `[B, T, A]`, or `[T, B, A]` if time-major."""
Flags = Bool[Array, "B T"] | Real[Array, "B T"]
"""Flags `[B, T]`, or `[T, B]` if time-major."""
Lambda = Scalar | Float[Array, "_"] | Float[Array, "B T"]
"""Mixing parameter: a scalar, one value per time step, or one value per time step and sequence."""


class VTraceOutput(NamedTuple):
    """V-trace errors, advantages and action values, each `[B, T]`, or `[T, B]` if time-major."""

    errors: Sequences  # value targets minus `v_tm1`
    pg_advantage: Sequences  # advantages, weighted by clipped importance ratios
    q_estimate: Sequences  # estimated values of the actions taken


def _reverse_recurrence(
    bias: Float[Array, "T *S"], slope: Float[Array, "T *S"], final: Float[Array, "*S"], associative: bool | None
) -> Float[Array, "T *S"]:
    """Solve x_t = bias_t + slope_t * x_{t+1} backwards from x_T = final, on time-major arrays."""
    dtype = jnp.result_type(bias, slope, final, 1.0)
    bias, slope, final = vary_alike(*(jnp.asarray(x, dtype) for x in (bias, slope, final)))
    with jax.named_scope("returns"):
        if associative or (associative is None and not on_cpu()):
            # Fold `final` into the last bias: the product of all slopes may overflow, and inf * 0 is NaN.
            bias = bias.at[-1].add(slope[-1] * final)
            return jax.lax.associative_scan(_compose, (bias, slope), reverse=True)[0]
        return jax.lax.scan(_recurrence_step, final, (bias, slope), reverse=True)[1]


def _compose(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
    """Compose two lines x -> bias + slope * x: the earlier one applied to the result of the later one."""
    return _finite(earlier[0] + earlier[1] * later[0]), _finite(earlier[1] * later[1])


def _recurrence_step(x: Array, line: tuple[Array, Array]) -> tuple[Array, Array]:
    x = _finite(line[0] + line[1] * x)
    return x, x


def _finite(x: Array) -> Array:
    """Clip to finite values: products of importance ratios may overflow, and inf * 0 is NaN."""
    x = jnp.asarray(x)
    largest = float(jnp.finfo(x.dtype).max)
    return jnp.clip(x, -largest, largest)


def _check_sequences(layout: str, arrays: Sequence[Any], time_major: bool) -> None:
    """Check arrays of the layout `[B,T]`, with any further axes, or `[T,B]` if time-major."""
    check_shapes(re.sub(r"\[B,(T[-+\d]*)", r"[\1,B", layout) if time_major else layout, arrays)


def _shift(x: Array, steps: int, fill: float) -> Array:
    """Return the entries `steps` later in a time-major array, padded with `fill`."""
    return jnp.concatenate([x[steps:], jnp.full_like(x[:steps], fill)])


def _swap(time_major: bool, *arrays: Any) -> Any:
    """Swap the two leading dimensions unless `time_major`; None and arrays with fewer dimensions pass through."""
    if time_major:
        return arrays
    return tuple(x if x is None or jnp.ndim(x) < 2 else jnp.swapaxes(x, 0, 1) for x in arrays)


def _trace(lambda_: Any, truncation_t: Array | None, *like: Array) -> Array:
    """Broadcast lambda to the shape and joint dtype of time-major arrays, with zeros where truncated."""
    # The number keeps integers from rounding lambda to 0.
    trace = jnp.asarray(lambda_, jnp.result_type(*like, 1.0))
    if trace.ndim > 1:
        check_shapes("r_t[*B] lambda_[*B]", (like[0], trace))
    if trace.ndim == 1:
        # `[T]` is one value per time step; plain broadcasting would align it with the batch where T = B.
        trace = append_dims(trace, like[0].ndim)
    trace = jnp.broadcast_to(trace, like[0].shape)
    return trace if truncation_t is None else jnp.where(truncation_t.astype(bool), jnp.zeros_like(trace), trace)


def _maybe_stop(stop: bool, *arrays: Array) -> Any:
    return jax.lax.stop_gradient(arrays) if stop else arrays


def _pair_of_values(values: Array | None, v_tm1: Array | None, v_t: Array | None, time_major: bool) -> Any:
    """Return the values before and after each step, from either form of input."""
    if (values is None) == (v_tm1 is None and v_t is None) or (v_tm1 is None) != (v_t is None):
        raise ValueError("pass either `values`, or both `v_tm1` and `v_t`")
    if values is None:
        return v_tm1, v_t
    return (values[:-1], values[1:]) if time_major else (values[:, :-1], values[:, 1:])


def batch_truncated_generalized_advantage_estimation(
    r_t: Sequences,
    discount_t: Sequences,
    lambda_: Lambda,
    values: LongerByOne | None = None,
    v_tm1: Sequences | None = None,
    v_t: Sequences | None = None,
    truncation_t: Flags | None = None,
    stop_target_gradients: bool = False,
    time_major: bool = False,
    standardize_advantages: bool = False,
    *,
    axis_names: tuple[str, ...] = (),
    associative: bool | None = None,
) -> tuple[Sequences, Sequences]:
    """Compute truncated generalised advantage estimates.

        delta_t = r_t + discount_t * v_t - v_tm1
        A_t = delta_t + discount_t * lambda_t * (1 - truncation_t) * A_{t+1}

    Source: Schulman et al. 2016, "High-dimensional continuous control using GAE", equation 16, truncated as in
    Schulman et al. 2017 (PPO), equation 11.

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        lambda_: mixing parameter in [0, 1]: a scalar, `[T]` or `[B, T]`.
        values: `[B, T+1]` values of consecutive observations, an alternative to `v_tm1` and `v_t`; wrong where an
            environment resets itself after a truncation: `values[t+1]` then belongs to the reset observation.
        v_tm1: `[B, T]` values of the observations acted on.
        v_t: `[B, T]` values of their true successors.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        stop_target_gradients: whether to stop the gradients of the results.
        time_major: whether every array is `[T, B]`, and `values` `[T+1, B]`.
        standardize_advantages: whether to standardise the advantages to mean 0 and variance 1.
        axis_names: mapped axes that the batch of the standardisation is spread over.
        associative: whether to use the parallel scan; None: on accelerators.

    Returns:
        Advantages and value targets (v_tm1 + advantage before standardisation), each `[B, T]`, or `[T, B]`.

    Raises:
        ValueError: unless either `values` or both `v_tm1` and `v_t` are passed.
    """
    arrays = r_t, discount_t, values, v_tm1, v_t, truncation_t
    _check_sequences("r_t[B,T] discount_t[B,T] values[B,T+1] v_tm1[B,T] v_t[B,T] truncation_t[B,T]", arrays, time_major)
    v_tm1, v_t = _pair_of_values(values, v_tm1, v_t, time_major)
    delta_t = r_t + discount_t * v_t - v_tm1
    delta_t, discount_t, lambda_, truncation_t = _swap(time_major, delta_t, discount_t, lambda_, truncation_t)
    decay_t = discount_t * _trace(lambda_, truncation_t, delta_t)
    (advantage_t,) = _swap(time_major, _reverse_recurrence(delta_t, decay_t, jnp.zeros_like(delta_t[0]), associative))
    target_tm1 = v_tm1 + advantage_t
    if standardize_advantages:
        advantage_t = standardize(advantage_t, axis_names)
    advantage_t, target_tm1 = _maybe_stop(stop_target_gradients, advantage_t, target_tm1)
    return advantage_t, target_tm1


def batch_n_step_bootstrapped_returns(
    r_t: Sequences,
    discount_t: Sequences,
    v_t: Sequences,
    n: int,
    lambda_t: Lambda = 1.0,
    stop_target_gradients: bool = True,
    *,
    truncation_t: Flags | None = None,
    time_major: bool = False,
) -> Sequences:
    """Compute n-step bootstrapped returns, of fewer steps at the end of a sequence.

        G^n_t = r_t + discount_t * ((1 - lambda_t) * v_t + lambda_t * G^{n-1}_{t+1}),  G^0_{t+1} = v_t

    Where truncated, lambda_t counts as 0.
    Source: Sutton & Barto 2018, equation 7.1 (lambda 1).

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        v_t: `[B, T]` values of the true successors.
        n: number of steps, at least 1.
        lambda_t: mixing parameter in [0, 1]: a scalar, `[T]` or `[B, T]`.
        stop_target_gradients: whether to stop the gradients of the result.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        time_major: whether every array is `[T, B]`.

    Returns:
        `[B, T]` returns from the observations at `tm1`.

    Raises:
        ValueError: if `n` is less than 1.
    """
    arrays = r_t, discount_t, v_t, truncation_t
    _check_sequences("r_t[B,T] discount_t[B,T] v_t[B,T] truncation_t[B,T]", arrays, time_major)
    if n < 1:
        raise ValueError(f"n={n} must be at least 1")
    r_t, discount_t, v_t, lambda_t, truncation_t = _swap(time_major, r_t, discount_t, v_t, lambda_t, truncation_t)
    trace = _trace(lambda_t, truncation_t, r_t, discount_t, v_t)
    bias, slope = _windows(r_t + discount_t * (1.0 - trace) * v_t, discount_t * trace, min(n, len(r_t)))
    # Steps near the end bootstrap from the last value, after fewer than n steps.
    last = jnp.minimum(jnp.arange(len(v_t)) + n - 1, len(v_t) - 1)
    returns = bias + slope * jnp.asarray(v_t)[last]
    return _maybe_stop(stop_target_gradients, *_swap(time_major, returns))[0]


def batch_transformed_n_step_returns(
    r_t: Sequences,
    discount_t: Sequences,
    v_t: Sequences,
    n: int,
    tx_pair: Any,
    stop_target_gradients: bool = True,
    *,
    truncation_t: Flags | None = None,
    time_major: bool = False,
) -> Sequences:
    """Compute n-step bootstrapped returns where values are learned on another scale.

        G_t = h(sum_{k<n} gamma^k r_{t+k} + gamma^n h^-1(v_{t+n-1}))

    There are fewer steps at the end of a sequence, and where an episode ends within the n steps.

    Source: Kapturowski et al. 2019, "Recurrent experience replay in distributed reinforcement learning", section 2.3.

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        v_t: `[B, T]` transformed values of the true successors.
        n: number of steps, at least 1.
        tx_pair: h and its inverse as the fields `apply` and `apply_inv` of a `rlax.TxPair`; see `utils.scales`.
        stop_target_gradients: whether to stop the gradients of the result.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        time_major: whether every array is `[T, B]`.

    Returns:
        `[B, T]` transformed returns from the observations at `tm1`.

    Raises:
        ValueError: if `n` is less than 1.
    """
    returns = batch_n_step_bootstrapped_returns(
        r_t,
        discount_t,
        tx_pair.apply_inv(v_t),
        n,
        stop_target_gradients=stop_target_gradients,
        truncation_t=truncation_t,
        time_major=time_major,
    )
    transformed: Array = tx_pair.apply(returns)
    return transformed


def _windows(bias: Float[Array, "T *S"], slope: Float[Array, "T *S"], n: int) -> tuple[Array, Array]:
    """Compose the lines x -> bias_t + slope_t * x of n steps, fewer at the end, in time-major arrays.

    Window lengths are powers of two; the windows of the binary digits of n are chained.
    """
    dtype = jnp.result_type(bias, slope)
    window, done = (bias.astype(dtype), slope.astype(dtype)), 0
    chosen = jnp.zeros_like(window[0]), jnp.ones_like(window[1])
    for digit in range(operator.index(n).bit_length()):
        length = 1 << digit
        if n & length:
            chosen = _compose((_shift(window[0], done, 0.0), _shift(window[1], done, 1.0)), chosen)
            done += length
        if n >> (digit + 1):
            window = _compose((_shift(window[0], length, 0.0), _shift(window[1], length, 1.0)), window)
    return chosen


def batch_general_off_policy_returns_from_q_and_v(
    q_t: Float[Array, "_ _"],
    v_t: Sequences,
    r_t: Sequences,
    discount_t: Sequences,
    c_t: ShorterByOne,
    stop_target_gradients: bool = False,
    *,
    truncation_t: Flags | None = None,
    time_major: bool = False,
    associative: bool | None = None,
) -> Sequences:
    """Compute returns under a target policy from the data of a behaviour policy.

        G_t = r_t + discount_t * (v_t - c_t * q_t + c_t * G_{t+1}),  and r_t + discount_t * v_t at the last step

    c_t = pi/mu gives importance sampling, c_t = lambda Q(lambda), c_t = pi tree backup, and
    c_t = lambda * min(1, pi/mu) Retrace.
    Where truncated, c_t counts as 0.
    Source: Munos et al. 2016, "Safe and efficient off-policy reinforcement learning", equation 3.

    Args:
        q_t: `[B, T-1]` values of the actions taken after every step but the last.
        v_t: `[B, T]` values, under the target policy, of the true successors.
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        c_t: `[B, T-1]` trace coefficients of the actions of `q_t`.
        stop_target_gradients: whether to stop the gradients of the result.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        time_major: whether every array is time-major.
        associative: whether to use the parallel scan; None: on accelerators.

    Returns:
        `[B, T]` returns from the observations at `tm1`.

    Raises:
        ValueError: if the shapes do not fit together.
    """
    arrays = r_t, q_t, v_t, discount_t, c_t, truncation_t
    _check_sequences("r_t[B,T] q_t[B,T-1] v_t[B,T] discount_t[B,T] c_t[B,T-1] truncation_t[B,T]", arrays, time_major)
    q_t, v_t, r_t, discount_t, c_t, truncation_t = _swap(time_major, q_t, v_t, r_t, discount_t, c_t, truncation_t)
    zeros = jnp.zeros_like(r_t[:1])
    c_t = _finite(_trace(jnp.concatenate([c_t, zeros]), truncation_t, r_t, discount_t, v_t, c_t))
    bias = r_t + discount_t * (v_t - c_t * jnp.concatenate([q_t, zeros]))
    returns = _reverse_recurrence(bias, discount_t * c_t, zeros[0], associative)
    return _maybe_stop(stop_target_gradients, *_swap(time_major, returns))[0]


def batch_retrace_continuous(
    q_tm1: Sequences,
    q_t: ShorterByOne,
    v_t: Sequences,
    r_t: Sequences,
    discount_t: Sequences,
    log_rhos: ShorterByOne,
    lambda_: Scalar | Float[Array, "_"] | ShorterByOne,
    stop_target_gradients: bool = True,
    *,
    truncation_t: Flags | None = None,
    time_major: bool = False,
    associative: bool | None = None,
) -> Sequences:
    """Compute the errors of action values against the Retrace return.

        c_t = lambda_ * min(1, exp(log_rho_t)),  error_tm1 = G_t(c) - q_tm1

    Where truncated, c_t counts as 0.
    Source: Munos et al. 2016, "Safe and efficient off-policy reinforcement learning", section 3.

    Args:
        q_tm1: `[B, T]` values of the actions taken at `tm1`.
        q_t: `[B, T-1]` values of the actions taken after every step but the last.
        v_t: `[B, T]` values, under the target policy, of the true successors.
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        log_rhos: `[B, T-1]` log pi/mu (nats) of the actions of `q_t`.
        lambda_: mixing parameter in [0, 1]: a scalar, `[T-1]` or `[B, T-1]`.
        stop_target_gradients: whether to stop the gradients of the return.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        time_major: whether every array is time-major.
        associative: whether to use the parallel scan; None: on accelerators.

    Returns:
        `[B, T]` errors, return minus value.
    """
    _check_sequences("r_t[B,T] q_tm1[B,T] q_t[B,T-1] log_rhos[B,T-1]", (r_t, q_tm1, q_t, log_rhos), time_major)
    lambda_, log_rho_t = _swap(time_major, lambda_, log_rhos)
    (c_t,) = _swap(time_major, _trace(lambda_, None, log_rho_t) * jnp.exp(jnp.minimum(log_rho_t, 0.0)))
    target_tm1 = batch_general_off_policy_returns_from_q_and_v(
        q_t,
        v_t,
        r_t,
        discount_t,
        c_t,
        stop_target_gradients,
        truncation_t=truncation_t,
        time_major=time_major,
        associative=associative,
    )
    return target_tm1 - q_tm1


def batch_lambda_returns(
    r_t: Sequences,
    discount_t: Sequences,
    v_t: Sequences,
    lambda_: Lambda = 1.0,
    stop_target_gradients: bool = False,
    time_major: bool = False,
    *,
    truncation_t: Flags | None = None,
    associative: bool | None = None,
) -> Sequences:
    """Compute lambda-returns, mixtures of n-step returns with geometrically decaying weights.

        G_t = r_t + discount_t * ((1 - lambda_t) * v_t + lambda_t * G_{t+1}),  with v_t in place of the last G_{t+1}

    Where truncated, lambda_t counts as 0.
    Source: Sutton & Barto 2018, equation 12.18 (lambda-return, by recursion).

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        v_t: `[B, T]` values of the true successors.
        lambda_: mixing parameter in [0, 1]: a scalar, `[T]` or `[B, T]`.
        stop_target_gradients: whether to stop the gradients of the result.
        time_major: whether every array is `[T, B]`.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        associative: whether to use the parallel scan; None: on accelerators.

    Returns:
        `[B, T]` returns from the observations at `tm1`.
    """
    arrays = r_t, discount_t, v_t, truncation_t
    _check_sequences("r_t[B,T] discount_t[B,T] v_t[B,T] truncation_t[B,T]", arrays, time_major)
    r_t, discount_t, v_t, lambda_, truncation_t = _swap(time_major, r_t, discount_t, v_t, lambda_, truncation_t)
    trace = _trace(lambda_, truncation_t, r_t, discount_t, v_t)
    bias = r_t + discount_t * (1.0 - trace) * v_t
    returns = _reverse_recurrence(bias, discount_t * trace, v_t[-1], associative)
    return _maybe_stop(stop_target_gradients, *_swap(time_major, returns))[0]


def batch_discounted_returns(
    r_t: Sequences,
    discount_t: Sequences,
    v_t: Scalar | Float[Array, "_"] | Sequences,
    stop_target_gradients: bool = False,
    time_major: bool = False,
    *,
    truncation_t: Flags | None = None,
    associative: bool | None = None,
) -> Sequences:
    """Compute discounted returns, which bootstrap at the end of a sequence.

        G_t = r_t + discount_t * G_{t+1},  with v_t in place of G_{t+1} at the end and where truncated

    Source: Sutton & Barto 2018, equation 3.9.

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        v_t: values of the true successors: a scalar, `[B]` (one per sequence) or `[B, T]`.
        stop_target_gradients: whether to stop the gradients of the result.
        time_major: whether every array is `[T, B]`.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        associative: whether to use the parallel scan; None: on accelerators.

    Returns:
        `[B, T]` returns from the observations at `tm1`.
    """
    layout_of_v = {0: "v_t[]", 1: "v_t[B]"}.get(jnp.ndim(v_t), "v_t[B,T]")
    _check_sequences(f"r_t[B,T] discount_t[B,T] {layout_of_v}", (r_t, discount_t, v_t), time_major)
    # A Python number takes the dtype of the rewards, unless they are integers; an array keeps its own.
    value_t = v_t if isinstance(v_t, jax.Array) else jnp.asarray(v_t, jnp.result_type(r_t, discount_t, v_t))
    if value_t.ndim == 1:
        value_t = value_t[None] if time_major else value_t[:, None]
    value_t = jnp.broadcast_to(value_t, r_t.shape)
    return batch_lambda_returns(
        r_t,
        discount_t,
        value_t,
        1.0,
        stop_target_gradients,
        time_major,
        truncation_t=truncation_t,
        associative=associative,
    )


def importance_corrected_td_errors(
    r_t: Float[Array, "T"],
    discount_t: Float[Array, "T"],
    rho_tm1: Float[Array, "T"],
    lambda_: Scalar | Float[Array, "T"],
    values: Float[Array, "T+1"],
    truncation_t: Bool[Array, "T"] | Real[Array, "T"] | None = None,
    stop_target_gradients: bool = False,
    *,
    v_t: Float[Array, "T"] | None = None,
    associative: bool | None = None,
) -> Float[Array, "T"]:
    """Compute multistep errors of one trajectory, with per-decision importance sampling.

        delta_t = r_t + discount_t * v_t - v_tm1
        D_t = delta_t + discount_t * lambda_t * rho_t * (1 - truncation_t) * D_{t+1},  error_tm1 = rho_tm1 * D_t

    Values that overflow are clipped to the largest finite number of their dtype.
    Source: Sutton et al. 2014, "A new Q(lambda) with interim forward view and Monte Carlo equivalence".

    Args:
        r_t: `[T]` rewards.
        discount_t: `[T]` gamma, zero where the episode terminated.
        rho_tm1: `[T]` ratios pi/mu of the actions at `tm1`.
        lambda_: mixing parameter in [0, 1]: a scalar or `[T]`.
        values: `[T+1]` values of consecutive observations.
        truncation_t: `[T]` whether the episode was truncated after the step; None if none was.
        stop_target_gradients: whether to stop all gradients except those through `v_tm1`.
        v_t: `[T]` values of the true successors; None means `values[1:]`, which is wrong where an environment resets
            itself after a truncation: `values[t+1]` then belongs to the reset observation.
        associative: whether to use the parallel scan; None: on accelerators.

    Returns:
        `[T]` errors.
    """
    arrays = r_t, discount_t, rho_tm1, values, truncation_t, v_t
    check_shapes("r_t[T] discount_t[T] rho_tm1[T] values[T+1] truncation_t[T] v_t[T]", arrays)
    v_tm1 = values[:-1]
    delta_t = r_t + discount_t * (values[1:] if v_t is None else v_t) - v_tm1
    rho_tm1 = _finite(rho_tm1)
    rho_t = jnp.concatenate([rho_tm1[1:], jnp.ones_like(rho_tm1[:1])])
    decay_t = discount_t * rho_t * _trace(lambda_, truncation_t, delta_t)
    errors = _finite(rho_tm1 * _reverse_recurrence(delta_t, decay_t, jnp.zeros_like(delta_t[0]), associative))
    return jax.lax.stop_gradient(errors + v_tm1) - v_tm1 if stop_target_gradients else errors


def batch_q_lambda(
    r_t: Sequences,
    discount_t: Sequences,
    q_t: ActionSequences,
    lambda_: Lambda,
    stop_target_gradients: bool = True,
    time_major: bool = False,
    *,
    truncation_t: Flags | None = None,
    associative: bool | None = None,
) -> Sequences:
    """Compute lambda-returns that bootstrap from the value of the greedy action.

        G_t = r_t + discount_t * ((1 - lambda_t) * max_a q_t(a) + lambda_t * G_{t+1})

    A constant lambda gives Peng's Q(lambda); lambda_t = 0 where the next action is not greedy gives Watkins's.
    Where truncated, lambda_t counts as 0.
    Source: Peng & Williams 1996, "Incremental multi-step Q-learning"; Watkins 1989.

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        q_t: `[B, T, A]` action values at the true successors.
        lambda_: mixing parameter in [0, 1]: a scalar, `[T]` or `[B, T]`.
        stop_target_gradients: whether to stop the gradients of the result.
        time_major: whether every array is time-major.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        associative: whether to use the parallel scan; None: on accelerators.

    Returns:
        `[B, T]` returns from the observations at `tm1`.
    """
    _check_sequences("r_t[B,T] q_t[B,T,A]", (r_t, q_t), time_major)
    return batch_lambda_returns(
        r_t,
        discount_t,
        jnp.max(q_t, axis=-1),
        lambda_,
        stop_target_gradients,
        time_major,
        truncation_t=truncation_t,
        associative=associative,
    )


def batch_peng_q_lambda(
    r_t: Sequences,
    discount_t: Sequences,
    q_t: ActionSequences,
    pi_t: ActionSequences,
    lambda_: Lambda,
    stop_target_gradients: bool = True,
    time_major: bool = False,
    *,
    truncation_t: Flags | None = None,
    associative: bool | None = None,
) -> Sequences:
    """Compute uncorrected lambda-returns that bootstrap from the mean value under a target policy.

        G_t = r_t + discount_t * ((1 - lambda_t) * sum_a pi_t(a) q_t(a) + lambda_t * G_{t+1})

    Where truncated, lambda_t counts as 0.
    Source: Kozuno et al. 2021, "Revisiting Peng's Q(lambda) for modern reinforcement learning".

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        q_t: `[B, T, A]` action values at the true successors.
        pi_t: `[B, T, A]` probabilities of the target policy at the true successors; the values of actions of
            probability zero are ignored.
        lambda_: mixing parameter in [0, 1]: a scalar, `[T]` or `[B, T]`.
        stop_target_gradients: whether to stop the gradients of the result.
        time_major: whether every array is time-major.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        associative: whether to use the parallel scan; None: on accelerators.

    Returns:
        `[B, T]` returns from the observations at `tm1`.
    """
    _check_sequences("r_t[B,T] q_t[B,T,A] pi_t[B,T,A]", (r_t, q_t, pi_t), time_major)
    return batch_lambda_returns(
        r_t,
        discount_t,
        jnp.sum(pi_t * jnp.where(pi_t > 0.0, q_t, 0.0), axis=-1),
        lambda_,
        stop_target_gradients,
        time_major,
        truncation_t=truncation_t,
        associative=associative,
    )


def batch_vtrace(
    v_tm1: Sequences,
    v_t: Sequences,
    r_t: Sequences,
    discount_t: Sequences,
    rho_tm1: Sequences,
    lambda_: Lambda = 1.0,
    clip_rho_threshold: Scalar = 1.0,
    stop_target_gradients: bool = True,
    time_major: bool = False,
    *,
    truncation_t: Flags | None = None,
    associative: bool | None = None,
) -> Sequences:
    """Compute the errors of values against the V-trace target.

        delta_t = min(clip_rho_threshold, rho_tm1) * (r_t + discount_t * v_t - v_tm1)
        error_t = delta_t + discount_t * lambda_t * min(1, rho_tm1) * (1 - truncation_t) * error_{t+1}

    Source: Espeholt et al. 2018 (IMPALA), equation 1 and remark 2.

    Args:
        v_tm1: `[B, T]` values of the observations acted on.
        v_t: `[B, T]` values of their true successors.
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        rho_tm1: `[B, T]` ratios pi/mu of the actions at `tm1`.
        lambda_: mixing parameter in [0, 1]: a scalar, `[T]` or `[B, T]`.
        clip_rho_threshold: upper bound of the ratios that weight the errors.
        stop_target_gradients: whether to stop all gradients except those through `v_tm1`.
        time_major: whether every array is `[T, B]`.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        associative: whether to use the parallel scan; None: on accelerators.

    Returns:
        `[B, T]` errors, target minus value.
    """
    arrays = r_t, v_tm1, v_t, discount_t, rho_tm1, truncation_t
    _check_sequences("r_t[B,T] v_tm1[B,T] v_t[B,T] discount_t[B,T] rho_tm1[B,T] truncation_t[B,T]", arrays, time_major)
    v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, truncation_t = _swap(
        time_major, v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, truncation_t
    )
    delta_t = jnp.minimum(clip_rho_threshold, rho_tm1) * (r_t + discount_t * v_t - v_tm1)
    decay_t = discount_t * jnp.minimum(1.0, rho_tm1) * _trace(lambda_, truncation_t, delta_t)
    errors = _reverse_recurrence(delta_t, decay_t, jnp.zeros_like(delta_t[0]), associative)
    if stop_target_gradients:
        errors = jax.lax.stop_gradient(errors + v_tm1) - v_tm1
    return _swap(time_major, errors)[0]


def batch_vtrace_td_error_and_advantage(
    v_tm1: Sequences,
    v_t: Sequences,
    r_t: Sequences,
    discount_t: Sequences,
    rho_tm1: Sequences,
    lambda_: Lambda = 1.0,
    clip_rho_threshold: Scalar = 1.0,
    clip_pg_rho_threshold: Scalar = 1.0,
    stop_target_gradients: bool = True,
    time_major: bool = False,
    *,
    truncation_t: Flags | None = None,
    associative: bool | None = None,
) -> VTraceOutput:
    """Compute V-trace errors with their advantages and action values.

        q_t = r_t + discount_t * (v_t + lambda_t * (1 - truncation_t) * error_{t+1})
        A_t = min(clip_pg_rho_threshold, rho_tm1) * (q_t - v_tm1)

    Source: Espeholt et al. 2018 (IMPALA), equation 1 and section 4.2.

    Args:
        v_tm1: `[B, T]` values of the observations acted on.
        v_t: `[B, T]` values of their true successors.
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        rho_tm1: `[B, T]` ratios pi/mu of the actions at `tm1`.
        lambda_: mixing parameter in [0, 1]: a scalar, `[T]` or `[B, T]`.
        clip_rho_threshold: upper bound of the ratios that weight the errors.
        clip_pg_rho_threshold: upper bound of the ratios that weight the advantages.
        stop_target_gradients: whether to stop all gradients except those through the `v_tm1` of the errors.
        time_major: whether every array is `[T, B]`.
        truncation_t: `[B, T]` whether the episode was truncated after the step; None if none was.
        associative: whether to use the parallel scan; None: on accelerators.

    Returns:
        Errors, advantages and action values.
    """
    arrays = v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_
    options = clip_rho_threshold, stop_target_gradients, time_major
    errors = batch_vtrace(*arrays, *options, truncation_t=truncation_t, associative=associative)
    next_error, lambda_, truncation_t = _swap(time_major, errors, lambda_, truncation_t)
    next_error = jnp.concatenate([next_error[1:], jnp.zeros_like(next_error[:1])])
    (correction,) = _swap(time_major, _trace(lambda_, truncation_t, next_error) * next_error)
    q_estimate = r_t + discount_t * (v_t + correction)
    pg_advantage = jnp.minimum(clip_pg_rho_threshold, rho_tm1) * (q_estimate - v_tm1)
    return VTraceOutput(errors, *_maybe_stop(stop_target_gradients, pg_advantage, q_estimate))
