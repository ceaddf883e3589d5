"""Action and value distributions with the interface of distrax.

Every `entropy` takes an optional `seed`, which only estimates need. Every `log_prob` takes values with further leading
sample axes. Distributions are pytrees: they pass through `jit`, `vmap` and `scan`.
"""

from stoix_like.networks.distributions.base import Independent, Seed, Sizes
from stoix_like.networks.distributions.beta import AffineBeta, ClippedBeta
from stoix_like.networks.distributions.bounded import Bound, squash
from stoix_like.networks.distributions.decoupling import decouple, kl_per_dimension
from stoix_like.networks.distributions.deterministic import Deterministic
from stoix_like.networks.distributions.discrete import (
    Categorical,
    DiscreteValuedTfpDistribution,
    EpsilonGreedy,
    MultiDiscreteActionDistribution,
)
from stoix_like.networks.distributions.masks import legal_actions, mask_logits
from stoix_like.networks.distributions.normal import MultivariateNormalDiag, StateDependentNoise
from stoix_like.networks.distributions.squashed import AffineTanhTransformedDistribution

__all__ = [
    "AffineBeta",
    "AffineTanhTransformedDistribution",
    "Bound",
    "Categorical",
    "ClippedBeta",
    "Deterministic",
    "DiscreteValuedTfpDistribution",
    "EpsilonGreedy",
    "Independent",
    "MultiDiscreteActionDistribution",
    "MultivariateNormalDiag",
    "Seed",
    "Sizes",
    "StateDependentNoise",
    "decouple",
    "kl_per_dimension",
    "legal_actions",
    "mask_logits",
    "squash",
]
