"""Action and value distributions with the interface of distrax.

Every `entropy` but distrax's in `Normal` takes an optional `seed`, which only estimates need. Every
`log_prob` takes values with further leading sample axes; every one but `Normal`'s refuses values that would
broadcast, such as `[B, 1]` against a batch `[B]`. Distributions are pytrees: they pass through `jit`, `vmap` and
`scan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoix_like.interpreter import on_first_use

if TYPE_CHECKING:
    from stoix_like.networks.distributions.base import Independent, Seed, Sizes
    from stoix_like.networks.distributions.beta import AffineBeta, ClippedBeta
    from stoix_like.networks.distributions.bounded import Bound, interval, squash
    from stoix_like.networks.distributions.decoupling import decouple, kl_per_dimension
    from stoix_like.networks.distributions.deterministic import Deterministic
    from stoix_like.networks.distributions.discrete import (
        Categorical,
        DiscreteValuedTfpDistribution,
        EpsilonGreedy,
        MultiDiscreteActionDistribution,
        SymmetricallyValuedDistribution,
    )
    from stoix_like.networks.distributions.masks import legal_actions, mask_logits, mix_uniform
    from stoix_like.networks.distributions.mixed import MixedActionDistribution
    from stoix_like.networks.distributions.normal import MultivariateNormalDiag, Normal, StateDependentNoise
    from stoix_like.networks.distributions.squashed import AffineTanhTransformedDistribution
else:
    # distrax imports TensorFlow Probability, which takes half a second.
    __getattr__, __dir__ = on_first_use(
        __name__,
        "masks",
        "base",
        "beta",
        "bounded",
        "decoupling",
        "deterministic",
        "discrete",
        "mixed",
        "normal",
        "squashed",
    )


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
    "MixedActionDistribution",
    "MultiDiscreteActionDistribution",
    "MultivariateNormalDiag",
    "Normal",
    "Seed",
    "Sizes",
    "StateDependentNoise",
    "SymmetricallyValuedDistribution",
    "decouple",
    "interval",
    "kl_per_dimension",
    "legal_actions",
    "mask_logits",
    "mix_uniform",
    "squash",
]
