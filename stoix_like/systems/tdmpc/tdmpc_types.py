"""State of a TD-MPC2 agent, its replay buffer and the weights of its losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import PyTree
from stoix_like.schema import between
from stoix_like.systems.parts.optimiser import Gradients, make_transform
from stoix_like.systems.tdmpc.world_model import ModelParams
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.replay import BlockReplayConfig, Step


@dataclass(frozen=True, kw_only=True)
class HorizonReplay(BlockReplayConfig):
    """Hyperparameters of a buffer of sequences as long as the horizon, of steps with their true successors."""

    n_step: Literal[1] = 1
    store_next_observation: Literal[True] = True
    horizon: Annotated[int, between(1, 2**10)]  # steps of a sequence, and of a plan, H

    @property
    def num_steps(self) -> int:
        return self.horizon

    @property
    def learned_steps(self) -> int:
        return self.horizon

    @property
    def length_keys(self) -> str:
        return f"system.horizon={self.horizon}"


class TDMPC2Params(NamedTuple):
    """Parameters of the model, of slow copies of its critics, and of the policy."""

    model: ModelParams
    target_q: PyTree
    actor: PyTree


class TDMPC2Shared(NamedTuple):
    """The shared state of an agent."""

    params: TDMPC2Params
    opt_states: tuple[PyTree, PyTree]  # of the model and of the policy
    statistics: PyTree  # of observations
    value_percentiles: jax.Array  # `[2]`, moving percentiles of values
    parts: PyTree = ()  # what options need, by name


def alive(steps: Step) -> tuple[jax.Array, jax.Array]:
    """Return which steps of sequences belong to the first episode, and which latents do, as ones and zeros.

    The latent behind a truncated step is the one of its true successor, behind a terminated step there is none.

    `steps`: `[H, B, ...]`.
    Returns `[H, B]` and `[H + 1, B]`.
    """
    assert steps.truncated is not None
    goes_on = 1.0 - (steps.terminated | steps.truncated)
    step = jnp.cumprod(jnp.concatenate([jnp.ones_like(goes_on[:1]), goes_on[:-1]]), axis=0)
    return step, jnp.concatenate([jnp.ones_like(step[:1]), step * (1.0 - steps.terminated)])


def decay(rho: Scalar, length: int) -> jax.Array:
    """Return the weights `rho^t` of the steps of sequences, `[length, 1]`."""
    return rho ** jnp.arange(length)[:, None]


def scale_encoder(config: Gradients, factor: Scalar, rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    """Build the optimiser of `ModelParams`, with another learning rate of the representation: `factor` times `rate`."""

    def scale(updates: ModelParams, params: ModelParams | None = None) -> ModelParams:
        return updates._replace(representation=jax.tree.map(lambda x: factor * x, updates.representation))

    return optax.chain(make_transform(config, rate), optax.stateless(scale))
