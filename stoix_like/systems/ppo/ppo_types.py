"""Types of PPO agents."""

from stoix_like.systems.on_policy.actor_critic import OnPolicyShared
from stoix_like.systems.on_policy.networks import OnPolicyTransition

PPOShared = OnPolicyShared
PPOTransition = OnPolicyTransition
"""One step of a rollout with the inputs of the losses."""
RNNPPOTransition = OnPolicyTransition
"""One step of a sequence; `obs` is a `recurrent.Sequences`."""
