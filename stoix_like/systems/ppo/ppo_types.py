"""Types of PPO agents."""

from stoix_like.systems.on_policy.networks import OnPolicyTransition

PPOTransition = OnPolicyTransition
"""One step of a rollout with the inputs of the losses."""
RNNPPOTransition = OnPolicyTransition
"""One step of a sequence; `obs` is a `recurrent.Sequences`."""
