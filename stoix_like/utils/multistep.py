"""Returns, advantages and temporal-difference errors over sequences.

Time follows Sutton & Barto: from the observation at `tm1` an action leads to the reward `r_t`, the discount
`discount_t` and the observation at `t`. `discount_t` is gamma where the episode goes on and zero where it
*terminated*. `truncation_t` marks steps that a limit cut: the value beyond them, `v_t`, still counts, and
nothing later does. For both to hold, `v_t` at a truncated step is the value of the step's true successor, not of
the observation that a reset made.

Every function but the n-step one solves a linear recurrence backwards: as a scan over time, which is the faster way on
a CPU, or with `associative=True` as a parallel prefix scan of logarithmic depth, meant for long sequences on an
accelerator. The numbers are the same up to rounding.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Real

from stoix_like.utils.jax_utils import Scalar, standardize

# The letters are those of the layout [B, T]; with time_major every one of these is [T, B] instead.
Sequences = Float[Array, "B T"]
LongerByOne = Float[Array, "B T+1"] | Float[Array, "B+1 T"]
ShorterByOne = Float[Array, "B T-1"] | Float[Array, "B-1 T"]
ActionSequences = Float[Array, "B T A"]
Flags = Bool[Array, "B T"] | Real[Array, "B T"]
Lambda = Scalar | Float[Array, "_"] | Float[Array, "B T"]
"""A mixing parameter: one number, one per time step, or one per time step and sequence."""


class VTraceOutput(NamedTuple):
    """What an actor-critic learns from, each `[B, T]`, or `[T, B]` where time leads.

    Attributes:
        errors: value targets less `v_tm1`.
        pg_advantage: advantages, weighted by clipped importance ratios.
        q_estimate: estimates of the values of the actions taken.
    """

    errors: Sequences
    pg_advantage: Sequences
    q_estimate: Sequences


def _reverse_recurrence(
    bias: Float[Array, "T *S"], slope: Float[Array, "T *S"], final: Float[Array, "*S"], associative: bool
) -> Float[Array, "T *S"]:
    """Solves x_t = bias_t + slope_t * x_{t+1} backwards from x_T = final; time leads."""
    if associative:

        def compose(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
            return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

        biases, slopes = jax.lax.associative_scan(compose, (bias, slope), reverse=True)
        return biases + slopes * final[None]

    def step(x: Array, line: tuple[Array, Array]) -> tuple[Array, Array]:
        x = line[0] + line[1] * x
        return x, x

    return jax.lax.scan(step, final, (bias, slope), reverse=True)[1]


def _swap(time_major: bool, *arrays: Any) -> Any:
    """Exchanges the two leading dimensions unless time leads; what has fewer, and None, passes through."""
    if time_major:
        return arrays
    return tuple(x if x is None or jnp.ndim(x) < 2 else jnp.swapaxes(x, 0, 1) for x in arrays)


def _trace(lambda_: Any, like: Array, truncation_t: Array | None) -> Array:
    """Lambda per step, zero where a limit cut the sequence; time leads."""
    trace = jnp.asarray(lambda_, like.dtype)
    if trace.ndim == 1:
        # One per time step; a plain broadcast would take it for one per sequence where T = B.
        trace = trace.reshape(-1, *(1,) * (like.ndim - 1))
    trace = jnp.broadcast_to(trace, like.shape)
    return trace if truncation_t is None else jnp.where(truncation_t.astype(bool), jnp.zeros_like(trace), trace)


def _maybe_stop(stop: bool, *arrays: Array) -> Any:
    return jax.lax.stop_gradient(arrays) if stop else arrays


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
    associative: bool = False,
) -> tuple[Sequences, Sequences]:
    """Generalised advantage estimation over sequences cut at their ends.

        delta_t = r_t + discount_t * v_t - v_tm1
        A_t = delta_t + discount_t * lambda_t * (1 - truncation_t) * A_{t+1}

    Source: Schulman et al. 2016, "High-dimensional continuous control using GAE", equation 16, truncated as in
    Schulman et al. 2017 (PPO), equation 11.

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        lambda_: mixing parameter in [0, 1]: a number, `[T]` or `[B, T]`.
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
    advantage_t, target_tm1 = _maybe_stop(stop_target_gradients, *_swap(time_major, advantage_t, target_tm1))
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
    """Returns over n steps, or as many as are left, and the value after them.

        G^n_t = r_t + discount_t * ((1 - lambda_t) * v_t + lambda_t * G^{n-1}_{t+1}),  G^0_{t+1} = v_t

    Source: Sutton & Barto 2018, equation 7.1 (lambda 1).

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        v_t: `[B, T]` values of the true successors.
        n: number of steps, at least 1.
        lambda_t: mixing parameter in [0, 1]: a number, `[T]` or `[B, T]`.
        stop_target_gradients: whether no gradient flows into the result.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        time_major: whether every array is `[T, B]`.

    Returns:
        `[B, T]` returns from the observations at `tm1`.

    Raises:
        ValueError: if `n` is less than 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    r_t, discount_t, v_t, lambda_t, truncation_t = _swap(time_major, r_t, discount_t, v_t, lambda_t, truncation_t)
    trace = _trace(lambda_t, r_t, truncation_t)
    bias, slope = r_t + discount_t * (1.0 - trace) * v_t, discount_t * trace
    # Entry t holds the return of k steps from t. Beyond the end stands the last value, so that late steps get shorter
    # returns.
    returns = v_t
    for k in range(n):
        following = returns if k == 0 else jnp.concatenate([returns[1:], v_t[-1:]])
        returns = bias + slope * following
    return _maybe_stop(stop_target_gradients, *_swap(time_major, returns))[0]


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
    associative: bool = False,
) -> Sequences:
    """Returns under a target policy from the data of another one.

        G_t = r_t + discount_t * (v_t - c_t * q_t + c_t * G_{t+1}),  and r_t + discount_t * v_t at the last step

    c_t = pi/mu gives importance sampling, lambda Q(lambda), pi tree backup, lambda min(1, pi/mu) Retrace.
    Source: Munos et al. 2016, "Safe and efficient off-policy reinforcement learning", equation 3.

    Args:
        q_t: `[B, T-1]` values of the actions taken after each step but the last.
        v_t: `[B, T]` values, under the target policy, of the true successors.
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        c_t: `[B, T-1]` trace coefficients of the actions of `q_t`.
        stop_target_gradients: whether no gradient flows into the result.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        time_major: whether time leads in every array.
        associative: whether to use the parallel scan.

    Returns:
        `[B, T]` returns from the observations at `tm1`.

    Raises:
        ValueError: if the shapes of `q_t` and `c_t` differ.
    """
    if q_t.shape != c_t.shape:
        raise ValueError(f"q_t of shape {q_t.shape} and c_t of shape {c_t.shape} must be alike")
    q_t, v_t, r_t, discount_t, c_t, truncation_t = _swap(time_major, q_t, v_t, r_t, discount_t, c_t, truncation_t)
    nothing = jnp.zeros_like(r_t[:1])
    c_t = _trace(jnp.concatenate([c_t, nothing]), r_t, truncation_t)
    bias = r_t + discount_t * (v_t - c_t * jnp.concatenate([q_t, nothing]))
    returns = _reverse_recurrence(bias, discount_t * c_t, nothing[0], associative)
    return _maybe_stop(stop_target_gradients, *_swap(time_major, returns))[0]


def batch_retrace_continuous(
    q_tm1: Sequences,
    q_t: ShorterByOne,
    v_t: Sequences,
    r_t: Sequences,
    discount_t: Sequences,
    log_rhos: ShorterByOne,
    lambda_: Scalar | ShorterByOne,
    stop_target_gradients: bool = True,
    *,
    truncation_t: Flags | None = None,
    time_major: bool = False,
    associative: bool = False,
) -> Sequences:
    """Errors of action values against the Retrace return.

        c_t = lambda_ * min(1, exp(log_rho_t)),  error_tm1 = G_t(c) - q_tm1

    Source: Munos et al. 2016, "Safe and efficient off-policy reinforcement learning", section 3.

    Args:
        q_tm1: `[B, T]` values of the actions taken at `tm1`.
        q_t: `[B, T-1]` values of the actions taken after each step but the last.
        v_t: `[B, T]` values, under the target policy, of the true successors.
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        log_rhos: `[B, T-1]` log pi/mu (nats) of the actions of `q_t`.
        lambda_: mixing parameter in [0, 1], a number or `[B, T-1]`.
        stop_target_gradients: whether no gradient flows into the return.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        time_major: whether time leads in every array.
        associative: whether to use the parallel scan.

    Returns:
        `[B, T]` errors, return less value.
    """
    c_t = lambda_ * jnp.exp(jnp.minimum(log_rhos, 0.0))
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
    associative: bool = False,
) -> Sequences:
    """Mixtures of n-step returns with weights that fall geometrically.

        G_t = r_t + discount_t * ((1 - lambda_t) * v_t + lambda_t * G_{t+1}),  and the last value beyond the end

    Source: Sutton & Barto 2018, equation 12.18 (lambda-return, by recursion).

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        v_t: `[B, T]` values of the true successors.
        lambda_: mixing parameter in [0, 1]: a number, `[T]` or `[B, T]`.
        stop_target_gradients: whether no gradient flows into the result.
        time_major: whether every array is `[T, B]`.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        associative: whether to use the parallel scan.

    Returns:
        `[B, T]` returns from the observations at `tm1`.
    """
    r_t, discount_t, v_t, lambda_, truncation_t = _swap(time_major, r_t, discount_t, v_t, lambda_, truncation_t)
    trace = _trace(lambda_, r_t, truncation_t)
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
    associative: bool = False,
) -> Sequences:
    """Sums of discounted rewards, and the value beyond the last one.

        G_t = r_t + discount_t * G_{t+1},  with v_t in the place of G_{t+1} at the end and where truncated

    Source: Sutton & Barto 2018, equation 3.9.

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        v_t: values of the true successors: one number, `[B]` (one per sequence) or `[B, T]`.
        stop_target_gradients: whether no gradient flows into the result.
        time_major: whether every array is `[T, B]`.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        associative: whether to use the parallel scan.

    Returns:
        `[B, T]` returns from the observations at `tm1`.
    """
    value_t = jnp.asarray(v_t, r_t.dtype)
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
    associative: bool = False,
) -> Float[Array, "T"]:
    """Multistep errors of one trajectory with an importance ratio per decision.

        delta_t = r_t + discount_t * v_t - v_tm1
        D_t = delta_t + discount_t * lambda_t * rho_t * (1 - truncation_t) * D_{t+1},  error_tm1 = rho_tm1 * D_t

    Source: Sutton et al. 2014, "A new Q(lambda) with interim forward view and Monte Carlo equivalence".

    Args:
        r_t: `[T]` rewards.
        discount_t: `[T]` gamma, zero where the episode terminated.
        rho_tm1: `[T]` ratios pi/mu of the actions at `tm1`.
        lambda_: mixing parameter in [0, 1], a number or `[T]`.
        values: `[T+1]` values of consecutive observations.
        truncation_t: `[T]` whether a limit cut the sequence after the step; None where none did.
        stop_target_gradients: whether gradients flow through `v_tm1` alone.
        v_t: `[T]` values of the true successors; None means `values[1:]`.
        associative: whether to use the parallel scan.

    Returns:
        `[T]` errors.
    """
    v_tm1 = values[:-1]
    delta_t = r_t + discount_t * (values[1:] if v_t is None else v_t) - v_tm1
    rho_t = jnp.concatenate([rho_tm1[1:], jnp.ones_like(rho_tm1[:1])])
    decay_t = discount_t * rho_t * _trace(lambda_, r_t, truncation_t)
    errors = rho_tm1 * _reverse_recurrence(delta_t, decay_t, jnp.zeros_like(delta_t[0]), associative)
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
    associative: bool = False,
) -> Sequences:
    """Lambda-returns that bootstrap from the greedy action's value.

        G_t = r_t + discount_t * ((1 - lambda_t) * max_a q_t(a) + lambda_t * G_{t+1})

    One lambda gives Peng's Q(lambda); lambda_t = 0 where the next action is not greedy gives Watkins's.
    Source: Peng & Williams 1996, "Incremental multi-step Q-learning"; Watkins 1989.

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        q_t: `[B, T, A]` action values at the true successors.
        lambda_: mixing parameter in [0, 1]: a number, `[T]` or `[B, T]`.
        stop_target_gradients: whether no gradient flows into the result.
        time_major: whether time leads in every array.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        associative: whether to use the parallel scan.

    Returns:
        `[B, T]` returns from the observations at `tm1`.
    """
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
    associative: bool = False,
) -> Sequences:
    """Lambda-returns without correction that bootstrap from the mean value under a target policy.

        G_t = r_t + discount_t * ((1 - lambda_t) * sum_a pi_t(a) q_t(a) + lambda_t * G_{t+1})

    Source: Kozuno et al. 2021, "Revisiting Peng's Q(lambda) for modern reinforcement learning".

    Args:
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        q_t: `[B, T, A]` action values at the true successors.
        pi_t: `[B, T, A]` probabilities of the target policy there; an action of probability zero may have any value.
        lambda_: mixing parameter in [0, 1]: a number, `[T]` or `[B, T]`.
        stop_target_gradients: whether no gradient flows into the result.
        time_major: whether time leads in every array.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        associative: whether to use the parallel scan.

    Returns:
        `[B, T]` returns from the observations at `tm1`.
    """
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
    associative: bool = False,
) -> Sequences:
    """Errors of values against the V-trace target.

        delta_t = min(clip_rho_threshold, rho_tm1) * (r_t + discount_t * v_t - v_tm1)
        error_t = delta_t + discount_t * lambda_t * min(1, rho_tm1) * (1 - truncation_t) * error_{t+1}

    Source: Espeholt et al. 2018 (IMPALA), equation 1 and remark 2.

    Args:
        v_tm1: `[B, T]` values of the observations acted on.
        v_t: `[B, T]` values of their true successors.
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        rho_tm1: `[B, T]` ratios pi/mu of the actions at `tm1`.
        lambda_: mixing parameter in [0, 1]: a number, `[T]` or `[B, T]`.
        clip_rho_threshold: largest ratio that weighs an error.
        stop_target_gradients: whether gradients flow through `v_tm1` alone.
        time_major: whether every array is `[T, B]`.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        associative: whether to use the parallel scan.

    Returns:
        `[B, T]` errors, target less value.
    """
    v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, truncation_t = _swap(
        time_major, v_tm1, v_t, r_t, discount_t, rho_tm1, lambda_, truncation_t
    )
    delta_t = jnp.minimum(clip_rho_threshold, rho_tm1) * (r_t + discount_t * v_t - v_tm1)
    decay_t = discount_t * jnp.minimum(1.0, rho_tm1) * _trace(lambda_, r_t, truncation_t)
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
    associative: bool = False,
) -> VTraceOutput:
    """V-trace errors, and the advantages that go with them.

        q_t = r_t + discount_t * (v_t + lambda_t * (1 - truncation_t) * error_{t+1})
        A_t = min(clip_pg_rho_threshold, rho_tm1) * (q_t - v_tm1)

    Source: Espeholt et al. 2018 (IMPALA), equation 1 and section 4.2.

    Args:
        v_tm1: `[B, T]` values of the observations acted on.
        v_t: `[B, T]` values of their true successors.
        r_t: `[B, T]` rewards.
        discount_t: `[B, T]` gamma, zero where the episode terminated.
        rho_tm1: `[B, T]` ratios pi/mu of the actions at `tm1`.
        lambda_: mixing parameter in [0, 1]: a number, `[T]` or `[B, T]`.
        clip_rho_threshold: largest ratio that weighs an error.
        clip_pg_rho_threshold: largest ratio that weighs an advantage.
        stop_target_gradients: whether gradients flow through the `v_tm1` of the errors alone.
        time_major: whether every array is `[T, B]`.
        truncation_t: `[B, T]` whether a limit cut the sequence after the step; None where none did.
        associative: whether to use the parallel scan.

    Returns:
        Errors, advantages and action values.
    """
    errors = batch_vtrace(
        v_tm1,
        v_t,
        r_t,
        discount_t,
        rho_tm1,
        lambda_,
        clip_rho_threshold,
        stop_target_gradients,
        time_major,
        truncation_t=truncation_t,
        associative=associative,
    )
    next_error, lambda_, truncation_t = _swap(time_major, errors, lambda_, truncation_t)
    next_error = jnp.concatenate([next_error[1:], jnp.zeros_like(next_error[:1])])
    (correction,) = _swap(time_major, _trace(lambda_, next_error, truncation_t) * next_error)
    q_estimate = r_t + discount_t * (v_t + correction)
    pg_advantage = jnp.minimum(clip_pg_rho_threshold, rho_tm1) * (q_estimate - v_tm1)
    return VTraceOutput(errors, *_maybe_stop(stop_target_gradients, pg_advantage, q_estimate))
