"""The meta-network Disco103, which turns experience into targets for the agent's predictions (Oh et al. 2025).

An LSTM reads each trajectory backwards and so bootstraps: the targets of a step depend on later steps. A second LSTM
takes one step per update and follows the lifetime of the agent; its state scales the output of the first.

Shape letters: T time, B trajectories, A actions, Y length of the predictions `y` and `z`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rlax
from jaxtyping import Array, Float

from stoix_like.base_types import Axes, PyTree
from stoix_like.utils.jax_utils import prepend_dims
from stoix_like.utils.loss.common import values_of_actions
from stoix_like.weights import LIFETIME, RULE

Weights = Mapping[str, np.ndarray]
"""The arrays of `weights.SHAPES`."""
_HIDDEN, _LIFETIME_HIDDEN = 256, 128


class LSTMState(NamedTuple):
    """The state of an LSTM, `[..., H]`."""

    hidden: jax.Array
    cell: jax.Array


class Pair(NamedTuple):
    """Arrays of the observations, and of their true successors; `[T, B, ...]` each."""

    now: PyTree
    after: PyTree


class RuleInputs(NamedTuple):
    """Inputs of the meta-network. It reads the predictions of the current and of the target parameters."""

    online: Pair  # `Pair` of `networks.heads.Predictions` of the current parameters
    target: Pair  # likewise of the target parameters
    behaviour: jax.Array  # `[T, B, A]` probabilities of the behaviour policy
    action: jax.Array  # `[T, B]`
    reward: jax.Array  # `[T, B]`
    terminated: jax.Array  # `[T, B]` bool; the authors' code, with which it was trained, also counts time limits
    ended: jax.Array  # `[T, B]` bool, whether the step was the last one of its episode
    value: Pair  # `Pair` of `[T, B]`, values of the current policy by the current parameters
    advantage: jax.Array  # `[T, B]` of the actions taken, by the target parameters
    normalized_advantage: jax.Array  # `[T, B]`
    action_value: jax.Array  # `[T, B, A]`, by the target parameters
    action_advantage: jax.Array  # `[T, B, A]`, likewise
    normalized_action_advantage: jax.Array  # `[T, B, A]`


class RuleTargets(NamedTuple):
    """Logits of the targets: of the policy `[T, B, A]`, and of `y` and of the action's `z`, `[T, B, Y]`."""

    policy: jax.Array
    y: jax.Array
    z: jax.Array


def initial_lifetime() -> LSTMState:
    """Return the state that follows the lifetime of an agent, at its start."""
    return LSTMState(jnp.zeros((_LIFETIME_HIDDEN,)), jnp.zeros((_LIFETIME_HIDDEN,)))


def apply(weights: Weights, inputs: RuleInputs, lifetime: LSTMState, axes: Axes) -> tuple[RuleTargets, LSTMState]:
    """Compute the targets of the agent's predictions."""
    x, about_actions = _embed(weights, RULE, inputs)
    x = _backwards(weights, x, inputs.ended)
    x = x * _dense(weights, "lstm/linear", lifetime.hidden)[None, None]
    y, z = (_dense(weights, f"lstm/linear_{i}", x) for i in (2, 3))
    per_action = jnp.broadcast_to(x[:, :, None], (*about_actions.shape[:3], _HIDDEN))
    per_action = _mix(weights, "lstm/sequential_1/conv1_d", jnp.concatenate([per_action, about_actions], -1))
    policy = _dense(weights, "lstm/linear_4", per_action)[..., 0]

    own, _ = _embed(weights, LIFETIME, inputs)
    of_y = _mlp(weights, f"{LIFETIME}/mlp", jax.nn.softmax(y))
    summary = jnp.concatenate([own, _dense(weights, "lstm/linear_1", x), of_y], -1)
    summary = axes.mean(jnp.mean(_dense(weights, f"{LIFETIME}/mlp_2/~/linear_0", summary), axis=(0, 1)))
    return RuleTargets(policy, y, z), _lstm(weights, f"{LIFETIME}/lstm", summary, lifetime)


def _embed(weights: Weights, scope: str, inputs: RuleInputs) -> tuple[Float[Array, "T B 27"], Float[Array, "T B A 2"]]:
    """Embed the inputs, per step and per action."""
    of_y, of_z = partial(_mlp, weights, f"{scope}/mlp"), partial(_mlp, weights, f"{scope}/mlp_1")
    policies = [jax.nn.softmax(each.now.policy.logits) for each in (inputs.online, inputs.target)]
    after = jax.nn.softmax(inputs.online.after.policy.logits)
    sign_log = rlax.signed_logp1

    def taken(x: jax.Array) -> jax.Array:
        return values_of_actions(x, inputs.action)

    def about(predictions: Pair) -> tuple[list[jax.Array], jax.Array]:
        """Return inputs `[T, B]` from `y` and `z`, and an input `[T, B, A]` from `z`."""
        y = [of_y(jax.nn.softmax(each.y))[..., 0] for each in predictions]
        z = [of_z(jax.nn.softmax(each.z))[..., 0] for each in predictions]
        means = [jnp.sum(policy * each, -1) for policy, each in zip((policies[0], after), z, strict=True)]
        return [*y, taken(z[0]), *means, *(jnp.max(each, -1) for each in z)], z[0]

    (online, online_z), (target, target_z) = about(inputs.online), about(inputs.target)
    per_step = [
        *(taken(policies[0]), taken(inputs.behaviour), sign_log(inputs.reward), 1.0 - inputs.terminated),
        *(sign_log(inputs.value.now), sign_log(inputs.value.after)),
        *(sign_log(inputs.advantage), inputs.normalized_advantage, taken(policies[1])),
        *(*online[:2], *target[:2], *online[2:], *target[2:]),
    ]
    per_action = [
        *(policies[0], inputs.behaviour, policies[1], online_z, target_z, sign_log(inputs.action_value)),
        *(sign_log(inputs.action_advantage), inputs.normalized_action_advantage),
        jax.nn.one_hot(inputs.action, inputs.behaviour.shape[-1]),
    ]
    x = _mix(weights, f"{scope}/sequential/conv1_d", jnp.stack(per_action, -1))
    x = _mix(weights, f"{scope}/sequential/conv1_d_1", x)
    of_action = jnp.sum(x * per_action[-1][..., None], axis=2)
    return jnp.concatenate([jnp.stack(per_step, -1), jnp.mean(x, axis=2), of_action], -1), x


def _backwards(weights: Weights, x: Float[Array, "T B F"], ended: jax.Array) -> Float[Array, "T B H"]:
    """Apply the LSTM of the rule to trajectories, from the last step to the first, starting again in each episode."""
    start = LSTMState(*(jnp.zeros((x.shape[1], _HIDDEN)) for _ in LSTMState._fields))

    def step(state: LSTMState, inputs: tuple[jax.Array, jax.Array]) -> tuple[LSTMState, jax.Array]:
        x, ended = inputs
        state = jax.tree.map(lambda leaf: jnp.where(ended[:, None], 0.0, leaf), state)
        state = _lstm(weights, "lstm/lstm", x, state)
        return state, state.hidden

    return jax.lax.scan(step, start, (x, ended), reverse=True)[1]


def _lstm(weights: Weights, name: str, x: jax.Array, state: LSTMState) -> LSTMState:
    gates = _dense(weights, f"{name}/linear", jnp.concatenate([x, state.hidden], -1))
    take, new, keep, show = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(keep + 1.0) * state.cell + jax.nn.sigmoid(take) * jnp.tanh(new)
    return LSTMState(jax.nn.sigmoid(show) * jnp.tanh(cell), cell)


def _mix(weights: Weights, name: str, x: Float[Array, "T B A F"]) -> Float[Array, "T B A G"]:
    """Apply a layer to the features of each action, and their means over the actions."""
    mean = jnp.broadcast_to(jnp.mean(x, axis=2, keepdims=True), x.shape)
    kernel, bias = weights[f"{name}/w"][0], weights[f"{name}/b"]
    return jax.nn.relu(_affine(jnp.concatenate([x, mean], -1), kernel, bias))


def _mlp(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(_dense(weights, f"{name}/~/linear_0", x))
    return _dense(weights, f"{name}/~/linear_1", hidden)


def _dense(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    return _affine(x, weights[f"{name}/w"], weights[f"{name}/b"])


def _affine(x: jax.Array, kernel: np.ndarray, bias: np.ndarray) -> jax.Array:
    return jnp.dot(x, kernel) + prepend_dims(jnp.asarray(bias), x.ndim)
