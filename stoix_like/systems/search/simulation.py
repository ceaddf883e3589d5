"""The environments of a run as the model of a tree search.

Shape letters: N environments, K actions of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mctx

from stoix_like.base_types import Model, Observation, PyTree, RolloutState
from stoix_like.systems.search.candidates import take_action
from stoix_like.systems.search.tree import RecurrentFn
from stoix_like.utils.accelerate.packing import pack_rows, unpack
from stoix_like.utils.accelerate.platform import on_cpu
from stoix_like.utils.jax_utils import Scalar

_LARGEST_CPU_ROW = 2


class Expansion(NamedTuple):
    """Outputs of the networks for the state of a new node."""

    prior_logits: jax.Array  # `[N, K]`, of the lowest finite number where an action is illegal
    value: jax.Array  # `[N]`
    actions: jax.Array | None = None  # `[N, K, ...]`, the actions of the node; None where they are `0 … K - 1`


Expand = Callable[[PyTree, Observation, jax.Array], Expansion]
"""`(params, observation [N, ...], key) -> Expansion`."""


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=["kind"])
@dataclass(frozen=True)
class _KeyData:
    """The data of PRNG keys, which mctx can store, and their kind."""

    data: jax.Array
    kind: Hashable


class Node(NamedTuple):
    """A state of the environments in a search tree, where it is packed: mctx reads and writes each array by itself."""

    state: PyTree  # of the model, with the data of PRNG keys in place of the keys
    actions: jax.Array | None
    beyond: jax.Array  # `[N]`, what all that follows is worth once the episode is over


class Simulation(NamedTuple):
    """A search in the environments."""

    # `(params, RolloutState, observation, key) -> RootFnOutput`; its embedding is a packed `Node`.
    root: Callable[[PyTree, RolloutState, Observation, jax.Array], mctx.RootFnOutput]
    step: RecurrentFn  # the recurrent function of mctx


def make_simulation(model: Model, expand: Expand, discount: Scalar, reward_scale: Scalar) -> Simulation:
    """Build the functions with which mctx searches in the environments.

    Behind the end of an episode all actions lead nowhere, without a reward or a discount: what simulations bring back
    is the value of a truncated state, and zero of a terminated one.
    """

    def root(params: PyTree, state: RolloutState, observation: Observation, key: jax.Array) -> mctx.RootFnOutput:
        new = expand(params, observation, key)
        node = Node(_without_keys(model.state_of(state.env_state)), new.actions, jnp.full_like(new.value, jnp.nan))
        return mctx.RootFnOutput(prior_logits=new.prior_logits, value=new.value, embedding=_pack(node))

    def step(params: PyTree, key: jax.Array, index: jax.Array, packed: PyTree) -> tuple[mctx.RecurrentFnOutput, PyTree]:
        node, (step_key, expand_key) = unpack(packed), jax.random.split(key)
        action = take_action(node.actions, index)
        state, timestep = model.step(jax.random.split(step_key, len(index)), _with_keys(node.state), action)
        new = expand(params, timestep.observation, expand_key)
        is_over, terminated = ~jnp.isnan(node.beyond), timestep.terminated
        ended = jnp.where(terminated, 0.0, jnp.where(timestep.truncated, new.value, jnp.nan))
        output = mctx.RecurrentFnOutput(
            reward=jnp.where(is_over, 0.0, timestep.reward * reward_scale),
            discount=jnp.where(is_over, 1.0, jnp.where(terminated, 0.0, discount)),
            prior_logits=new.prior_logits,
            value=jnp.where(is_over, node.beyond, new.value),
        )
        beyond = jnp.where(is_over, node.beyond, ended)
        return output, _pack(Node(_without_keys(state), new.actions, beyond))

    return Simulation(root, step)


def _pack(node: Node) -> PyTree:
    # A CPU copies longer rows more slowly than it starts one more operation.
    return pack_rows(node, 1, _LARGEST_CPU_ROW) if on_cpu() else pack_rows(node, 1)


def _without_keys(state: PyTree) -> PyTree:
    def replace(leaf: jax.Array) -> jax.Array | _KeyData:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return _KeyData(jax.random.key_data(leaf), jax.random.key_impl(leaf)) if is_key else leaf

    return jax.tree.map(replace, state)


def _with_keys(state: PyTree) -> PyTree:
    def replace(node: jax.Array | _KeyData) -> jax.Array:
        return jax.random.wrap_key_data(node.data, impl=node.kind) if isinstance(node, _KeyData) else node

    return jax.tree.map(replace, state, is_leaf=lambda node: isinstance(node, _KeyData))
