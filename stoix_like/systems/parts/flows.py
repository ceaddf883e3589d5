"""Flows from noise to actions: networks of a velocity, which Euler's method follows.

A place at time t on the way from noise x to an action a is `(1 - t) x + t a`, with the velocity `a - x` (Lipman et al.
2023, arXiv:2210.02747). Actions are in units of half their range.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree

_MIN_SQUARE = 1e-12


class Flow(NamedTuple):
    """A flow to actions within their bounds."""

    network: Any  # of an observation, and of a place and the time as one vector
    steps: int  # Euler steps from noise to an action

    def init(self, key: jax.Array, observation: Observation, place: jax.Array) -> PyTree:
        """Initialise the parameters, for places `[B, ...]`."""
        return self.network.init(key, observation, _inputs(place, jnp.zeros(len(place))))

    def velocity(self, params: PyTree, observation: Observation, place: jax.Array, time: jax.Array) -> jax.Array:
        """Compute the velocities `[B, ...]` at places `[B, ...]` and times `[B]`, from 0 to 1."""
        return self.network.apply(params, observation, _inputs(place, time))

    def follow(self, params: PyTree, observation: Observation, noise: jax.Array) -> jax.Array:
        """Return where the flow ends that starts with noise `[B, ...]`, within the bounds."""
        return jnp.clip(self.end(params, observation, noise), -1.0, 1.0)

    def end(self, params: PyTree, observation: Observation, noise: jax.Array) -> jax.Array:
        """Return where the flow ends that starts with noise `[B, ...]`, which may be out of bounds."""

        def step(place: jax.Array, time: jax.Array) -> tuple[jax.Array, None]:
            times = jnp.broadcast_to(time, place.shape[:1])
            return place + self.velocity(params, observation, place, times) / self.steps, None

        return jax.lax.scan(step, noise, jnp.arange(self.steps) / self.steps)[0]


def nearest_neighbour_entropy(samples: jax.Array) -> jax.Array:
    """Estimate the entropy of distributions in nats, without their densities, from distances between samples.

        H = D mean_i log d_i + log V + psi(M) - psi(1)

    d_i is the distance to the nearest other sample, and V the volume of the unit ball.

    Source: Kozachenko & Leonenko 1987, "Sample estimate of the entropy of a random vector".

    `samples`: `[M, B, D]`, M samples of each of B distributions. Returns `[B]`.
    """
    number, _, dims = samples.shape
    squares = jnp.sum(jnp.square(samples[:, None] - samples[None]), axis=-1)
    others = jnp.where(jnp.eye(number, dtype=bool)[..., None], jnp.inf, squares)
    # Of a flow to one point, all samples are equal.
    distances = 0.5 * jnp.log(jnp.maximum(jnp.min(others, axis=1), _MIN_SQUARE))
    volume = 0.5 * dims * math.log(math.pi) - math.lgamma(0.5 * dims + 1.0)
    digammas = sum(1.0 / i for i in range(1, number))
    return dims * jnp.mean(distances, axis=0) + volume + digammas


def _inputs(place: jax.Array, time: jax.Array) -> dict[str, jax.Array]:
    return {
        "action": jnp.concatenate([place.reshape(place.shape[0], math.prod(place.shape[1:])), time[:, None]], axis=-1)
    }
