"""Heads: maps from an embedding to a distribution over actions, or to values.

Every head maps `[..., D]` for any number of leading axes. `PolicyHead` documents the class variables of a policy head:
the action spaces that it supports, and whether it takes an action mask.
"""

from typing import TYPE_CHECKING

from stoix_like.interpreter import on_first_use

if TYPE_CHECKING:
    from stoix_like.networks.heads.base import Bounds, Embedding, Epsilon, Mask, PolicyHead, Shape, mask_argument
    from stoix_like.networks.heads.continuous import (
        ActionVectorHead,
        BetaDistributionHead,
        BoundedNormalHead,
        DeterministicHead,
        MultivariateNormalDiagHead,
        NormalAffineTanhDistributionHead,
        StateDependentNoiseHead,
    )
    from stoix_like.networks.heads.critics import (
        CategoricalCriticHead,
        DiscreteValuedTfpHead,
        DistributionalContinuousQNetwork,
        ScalarCriticHead,
        SymexpCriticHead,
    )
    from stoix_like.networks.heads.discovered import DiscoveredHead, Predictions
    from stoix_like.networks.heads.discrete import CategoricalHead, MultiDiscreteHead
    from stoix_like.networks.heads.general import (
        LinearHead,
        MixedHead,
        PolicyValueHead,
        dreamer_policy_head,
        policy_head,
    )
    from stoix_like.networks.heads.hyperspherical import (
        HypersphericalCategoricalCriticHead,
        HypersphericalCriticHead,
        HypersphericalPolicyHead,
    )
    from stoix_like.networks.heads.q_networks import (
        AtomPolicy,
        DiscreteQNetworkHead,
        DistributionalDiscreteQNetwork,
        DistributionalDuelingQNetwork,
        DuelingQNetwork,
        NoisyDiscreteQNetworkHead,
        NoisyDistributionalDuelingQNetwork,
        NoisyDuelingQNetwork,
    )
    from stoix_like.networks.heads.quantiles import (
        ImplicitQuantileDiscreteQNetwork,
        QuantileCriticHead,
        QuantileDiscreteQNetwork,
        quantile_levels,
    )
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        "base",
        "continuous",
        "critics",
        "discovered",
        "discrete",
        "general",
        "hyperspherical",
        "q_networks",
        "quantiles",
    )

__all__ = [
    "ActionVectorHead",
    "AtomPolicy",
    "BetaDistributionHead",
    "BoundedNormalHead",
    "Bounds",
    "CategoricalCriticHead",
    "CategoricalHead",
    "DeterministicHead",
    "DiscoveredHead",
    "DiscreteQNetworkHead",
    "DiscreteValuedTfpHead",
    "DistributionalContinuousQNetwork",
    "DistributionalDiscreteQNetwork",
    "DistributionalDuelingQNetwork",
    "DuelingQNetwork",
    "Embedding",
    "Epsilon",
    "HypersphericalCategoricalCriticHead",
    "HypersphericalCriticHead",
    "HypersphericalPolicyHead",
    "ImplicitQuantileDiscreteQNetwork",
    "LinearHead",
    "Mask",
    "MixedHead",
    "MultiDiscreteHead",
    "MultivariateNormalDiagHead",
    "NoisyDiscreteQNetworkHead",
    "NoisyDistributionalDuelingQNetwork",
    "NoisyDuelingQNetwork",
    "NormalAffineTanhDistributionHead",
    "PolicyHead",
    "PolicyValueHead",
    "Predictions",
    "QuantileCriticHead",
    "QuantileDiscreteQNetwork",
    "ScalarCriticHead",
    "Shape",
    "StateDependentNoiseHead",
    "SymexpCriticHead",
    "dreamer_policy_head",
    "mask_argument",
    "policy_head",
    "quantile_levels",
]
