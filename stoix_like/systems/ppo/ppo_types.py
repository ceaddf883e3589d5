"""State and training batch of a PPO agent."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax

from stoix_like.base_types import ActorCriticOptStates, ActorCriticParams, Observation


class PPOTransition(NamedTuple):
    """One step of a rollout with the inputs of the surrogate objective.

    Attributes:
        obs: the observation that the policy acted on, normalised if the run normalises observations.
        action: the action taken.
        log_prob: log-probability of the action under the behaviour policy.
        value: value of `obs` before the update.
        advantage: generalised advantage estimate.
        target: value target.
    """

    obs: Observation
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


class PPOShared(NamedTuple):
    """The shared state of a PPO agent: parameters, optimiser states, statistics of observations and of returns."""

    params: ActorCriticParams
    opt_states: ActorCriticOptStates
    statistics: Any
    return_statistics: Any = ()


def actor_critic_optimiser(
    actor_optim: optax.GradientTransformation, critic_optim: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Combine the optimisers of an actor and a critic.

    Args:
        actor_optim: optimiser of `ActorCriticParams.actor_params`.
        critic_optim: optimiser of `ActorCriticParams.critic_params`.

    Returns:
        An optimiser of `ActorCriticParams` with the state `ActorCriticOptStates`.
    """

    def init(params: ActorCriticParams) -> ActorCriticOptStates:
        return ActorCriticOptStates(actor_optim.init(params.actor_params), critic_optim.init(params.critic_params))

    def update(
        grads: ActorCriticParams, state: ActorCriticOptStates, params: ActorCriticParams | None = None
    ) -> tuple[ActorCriticParams, ActorCriticOptStates]:
        actor_params, critic_params = (None, None) if params is None else params
        actor, actor_state = actor_optim.update(grads.actor_params, state.actor_opt_state, actor_params)
        critic, critic_state = critic_optim.update(grads.critic_params, state.critic_opt_state, critic_params)
        return ActorCriticParams(actor, critic), ActorCriticOptStates(actor_state, critic_state)

    return optax.GradientTransformation(init, update)
