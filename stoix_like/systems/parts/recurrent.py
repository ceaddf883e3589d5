"""Components of recurrent systems: networks, sequences, and the values of true successors.

A recurrent network has three forms with the same parameters: `step` for one time step, `__call__` for sequences, and
`unroll`, which also returns the state after every step. States are reset where `Transition.is_first` or
`TimeStep.starts_episode` is True.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree
from stoix_like.networks.base import RecurrentActor, RecurrentActorCritic, RecurrentCritic, StatelessCritic
from stoix_like.networks.inputs import ArrayInput

RecurrentNetwork = RecurrentActor | RecurrentCritic | RecurrentActorCritic | StatelessCritic


class RecurrentStart:
    """The start of agents with one recurrent network, a base class before the feed-forward algorithm."""

    network: Any

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the recurrent state at the start of an episode."""
        return self.network.initialize_carry(num_envs)

    def init_params(self, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters of the network."""
        return init_params(self.network, key, observation)


def make_actor(network: SimpleNamespace) -> RecurrentActor:
    """Build a recurrent policy, or action values, from the parts of a network configuration."""
    return RecurrentActor(action_head=network.action_head, **_parts(network))


def make_critic(network: SimpleNamespace) -> RecurrentCritic | StatelessCritic:
    """Build a value function from the parts of a network configuration, recurrent if it has cells."""
    if getattr(network, "rnn_layer", None) is None:
        return StatelessCritic(network.critic_head, network.pre_torso, network.input_layer)
    return RecurrentCritic(critic_head=network.critic_head, **_parts(network))


def make_actor_critic(network: SimpleNamespace) -> RecurrentActorCritic:
    """Build a recurrent policy with the head of a value function from the parts of a network configuration."""
    return RecurrentActorCritic(action_head=network.action_head, critic_head=network.critic_head, **_parts(network))


def make_cells(network: SimpleNamespace) -> RecurrentCritic:
    """Build the cells of a network configuration, and what precedes them; the last cell's output is the output."""
    return RecurrentCritic(critic_head=ArrayInput(), **_parts(network) | {"post_torso": ArrayInput()})


def _parts(network: SimpleNamespace) -> dict[str, Any]:
    body = {name: getattr(network, name) for name in ("post_torso", "pre_torso", "input_layer")}
    cells = ("hidden_state_dim", "cell_type", "num_layers", "dtype", "cell_kwargs")
    return body | {name: getattr(network.rnn_layer, name) for name in cells}


def init_params(network: RecurrentNetwork, key: jax.Array, observation: Observation) -> PyTree:
    """Initialise the parameters of a recurrent network. `observation`: `[N, ...]`, an example."""
    starts = _all_first(observation)
    return network.init(key, network.initialize_carry(starts.shape), (observation, starts), method="step")


def _all_first(observation: Observation) -> jax.Array:
    return jnp.ones(jax.tree.leaves(observation.agent_view)[0].shape[:1], bool)


def first_output(network: RecurrentNetwork, params: PyTree, observation: Observation, **kwargs: Any) -> PyTree:
    """Apply a recurrent network to the first observations of episodes. `observation`: `[N, ...]`."""
    starts = _all_first(observation)
    return step(network, params, network.initialize_carry(starts.shape), observation, starts, **kwargs)[1]


def step(
    network: RecurrentNetwork,
    params: PyTree,
    state: PyTree,
    observation: Observation,
    is_first: jax.Array,
    **kwargs: Any,
) -> tuple[PyTree, PyTree]:
    """Apply a recurrent network to one time step, with the state reset where an episode starts.

    `state`: `[N, H]`, before the step.
    `observation`: `[N, ...]`.
    `is_first`: `[N]` bool, whether `observation` is the first of its episode.
    """
    return network.apply(params, state, (observation, is_first), method="step", **kwargs)


def unroll(
    network: RecurrentNetwork,
    params: PyTree,
    state: PyTree,
    observation: Observation,
    is_first: jax.Array,
    every: int = 1,
) -> tuple[PyTree, PyTree]:
    """Apply a recurrent network to sequences, with the state reset where episodes start.

    `state`: `[N, H]`, before the first step.
    `observation`: `[T, N, ...]`.
    `is_first`: `[T, N]` bool, whether an observation is the first of its episode.
    Returns the states after each E steps, `[T / E, N, H]`, and the outputs of the head.
    """
    return network.apply(params, state, (observation, is_first), every=every, method="unroll")


def unroll_with_successors(
    network: RecurrentNetwork,
    params: PyTree,
    state: PyTree,
    observation: Observation,
    is_first: jax.Array,
    next_observation: Observation,
    every: int = 1,
) -> tuple[PyTree, PyTree, PyTree]:
    """Apply a recurrent network as `unroll` does, and to the true successors o' `[T, N, ...]`, all in one pass.

        h_t = cell(h_{t-1}, o_t),   y_t = head(h_t),   y'_t = head(cell(h_t, o'_t))

    The state of a successor continues from its step's state, also where the episode ends there and the sequence
    continues with another one.
    """
    if network.has_large_states:
        inputs = state, (observation, is_first), next_observation
        return network.apply(params, *inputs, every=every, method="unroll_with_successors")
    states, output = unroll(network, params, state, observation, is_first)
    _, successor = step(network, params, states, next_observation, jnp.zeros_like(is_first))
    return jax.tree.map(lambda x: x[every - 1 :: every], states), output, successor


def burn_in(
    network: RecurrentNetwork,
    params: PyTree,
    state: PyTree,
    observation: Observation,
    is_first: jax.Array,
    next_observation: Observation | None,
    length: int,
) -> tuple[PyTree, Observation, jax.Array, Observation | None]:
    """Bring the state before sequences up to date by their first steps, and cut these off.

    Source: Kapturowski et al. 2019 (R2D2), section 3.

    `state`: `[N, H]`, before the first step, computed with other parameters.
    `next_observation`: `[T, N, ...]`, the true successors; or None.
    Returns the state before step L, without a gradient, and the other arguments from step L on, `[T - L, N, ...]`.
    """
    if length:
        observed, starts = jax.tree.map(lambda x: x[:length], (observation, is_first))
        states, _ = unroll(network, params, state, observed, starts, length)
        state = jax.lax.stop_gradient(jax.tree.map(lambda x: x[-1], states))
    return state, *jax.tree.map(lambda x: x[length:], (observation, is_first, next_observation))


def split_sequences(tree: PyTree, length: int) -> PyTree:
    """Split a rollout into sequences. `tree`: arrays `[T, N, ...]`. Returns arrays `[N * T / L, L, ...]`."""
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, length, *x.shape[2:]), tree)


def states_at_starts(first_state: PyTree, states: PyTree) -> PyTree:
    """Return the states before the sequences of `split_sequences`.

    `first_state`: `[N, H]`, before the rollout.
    `states`: `[T / L, N, H]`, after each L steps.
    Returns `[N * T / L, H]`.
    """

    def select(first: jax.Array, after: jax.Array) -> jax.Array:
        starts = jnp.concatenate([first[None], after[:-1]])
        return jnp.swapaxes(starts, 0, 1).reshape(-1, *first.shape[1:])

    return jax.tree.map(select, first_state, states)
