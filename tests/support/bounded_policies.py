"""Policies on an interval."""

import distrax
import jax.numpy as jnp

from stoix_like.networks.distributions import AffineBeta, AffineTanhTransformedDistribution, ClippedBeta


def tanh_normal(loc, scale, minimum=-1.0, maximum=1.0):
    normal = distrax.Normal(jnp.asarray(loc), jnp.asarray(scale))
    return AffineTanhTransformedDistribution(normal, minimum, maximum)


def beta(alpha, concentration, minimum=0.0, maximum=1.0):
    return AffineBeta(ClippedBeta(jnp.asarray(alpha), jnp.asarray(concentration)), minimum, maximum)
