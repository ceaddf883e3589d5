"""The environments of a run as the model of a tree search.

Shape letters: N environments, K actions of a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx

from stoix_like.base_types import Model, Observation, PyTree, RolloutState
from stoix_like.systems.search.tree import RecurrentFn
from stoix_like.utils.jax_utils import Scalar


class Expansion(NamedTuple):
    """What networks say about the state of a new node.

    Attributes:
        prior_logits: `[N, K]`, of the lowest finite number where an action is illegal.
        value: `[N]`.
        actions: `[N, K, ...]`, the actions of the node; None where they are `0 … K - 1`.
    """

    prior_logits: jax.Array
    value: jax.Array
    actions: jax.Array | None = None


Expand = Callable[[Any, Observation, jax.Array], Expansion]
"""`(params, observation [N, ...], key) -> Expansion`."""


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=["kind"])
@dataclass(frozen=True)
class _KeyData:
    """The data of PRNG keys, which mctx can store, and their kind."""

    data: jax.Array
    kind: Any


class Node(NamedTuple):
    """A state of the environments in a search tree.

    Attributes:
        state: of the model, with the data of PRNG keys in place of the keys.
        actions: see `Expansion`.
        value: `[N]`.
        terminated: `[N]` bool, whether the episode terminated here or before: nothing follows.
        truncated: `[N]` bool, whether it was truncated here or before: what follows is worth `value`.
    """

    state: PyTree
    actions: jax.Array | None
    value: jax.Array
    terminated: jax.Array
    truncated: jax.Array


class Simulation(NamedTuple):
    """A search in the environments.

    Attributes:
        root: `(params, RolloutState, observation, key) -> RootFnOutput`, whose embedding is a `Node`.
        step: the recurrent function of mctx.
    """

    root: Callable[[Any, RolloutState, Observation, jax.Array], mctx.RootFnOutput]
    step: RecurrentFn


def make_simulation(model: Model, expand: Expand, discount: Scalar, reward_scale: Scalar) -> Simulation:
    """Build the functions with which mctx searches in the environments.

    Behind a truncated step, all actions lead nowhere, without a reward or a discount: the value of the truncated state
    is what simulations bring back.

    Args:
        model: the environments.
        expand: the networks.
        discount: gamma, negative where players take turns: a value is that of the player to move.
        reward_scale: factor of the rewards.

    Returns:
        The functions.
    """

    def root(params: Any, state: RolloutState, observation: Observation, key: jax.Array) -> mctx.RootFnOutput:
        new, no = expand(params, observation, key), jnp.zeros(state.timestep.reward.shape, bool)
        node = Node(_without_keys(model.state_of(state.env_state)), new.actions, new.value, no, no)
        return mctx.RootFnOutput(prior_logits=new.prior_logits, value=new.value, embedding=node)

    def step(params: Any, key: jax.Array, index: jax.Array, node: Node) -> tuple[mctx.RecurrentFnOutput, Node]:
        step_key, expand_key = jax.random.split(key)
        action = index if node.actions is None else jax.vmap(lambda actions, i: actions[i])(node.actions, index)
        state, timestep = model.step(jax.random.split(step_key, len(index)), _with_keys(node.state), action)
        new = expand(params, timestep.observation, expand_key)
        value = jnp.where(node.truncated, node.value, new.value)
        going = ~(node.terminated | node.truncated)
        output = mctx.RecurrentFnOutput(
            reward=jnp.where(going, timestep.reward * reward_scale, 0.0),
            discount=jnp.where(going & ~timestep.terminated, discount, jnp.where(node.truncated, 1.0, 0.0)),
            prior_logits=new.prior_logits,
            value=value,
        )
        ends = node.terminated | (going & timestep.terminated), node.truncated | (going & timestep.truncated)
        return output, Node(_without_keys(state), new.actions, value, *ends)

    return Simulation(root, step)


def _without_keys(state: PyTree) -> PyTree:
    def replace(leaf: jax.Array) -> Any:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return _KeyData(jax.random.key_data(leaf), jax.random.key_impl(leaf)) if is_key else leaf

    return jax.tree.map(replace, state)


def _with_keys(state: PyTree) -> PyTree:
    def replace(node: Any) -> jax.Array:
        return jax.random.wrap_key_data(node.data, impl=node.kind) if isinstance(node, _KeyData) else node

    return jax.tree.map(replace, state, is_leaf=lambda node: isinstance(node, _KeyData))
