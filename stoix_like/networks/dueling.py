"""Dueling heads, under the import path of Stoix; see `networks.heads`."""

from stoix_like.networks.heads.q_networks import (
    DistributionalDuelingQNetwork,
    DuelingQNetwork,
    NoisyDistributionalDuelingQNetwork,
)

__all__ = ["DistributionalDuelingQNetwork", "DuelingQNetwork", "NoisyDistributionalDuelingQNetwork"]
