"""Parts of systems that learn only from their last rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import jax

from stoix_like.base_types import Metrics, PyTree, SystemConfig
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, Part, between
from stoix_like.systems.parts.kl_stop import NEVER, Stop
from stoix_like.utils.accelerate import packing
from stoix_like.utils.jax_utils import random_order

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MinibatchConfig(Part):
    """Hyperparameters of gradient steps on the minibatches of a rollout."""

    epochs: Annotated[int, between(1, 1_000_000)]  # passes over each rollout
    num_minibatches: Annotated[int, between(1, INT32_MAX)]  # minibatches per epoch

    @property
    def gradient_steps(self) -> int:
        """Gradient steps per update."""
        return self.epochs * self.num_minibatches

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check that minibatches divide the rollout."""
        batch = config.rollout_length * num_envs
        if batch % self.num_minibatches:
            raise ConfigError(
                f"system.num_minibatches={self.num_minibatches} must divide the per-shard batch of {batch:,}"
                f" (system.rollout_length {config.rollout_length} × {num_envs} envs): use a divisor of {batch}"
            )


def minibatch_epochs(
    sgd_step: Callable[..., tuple[T, Metrics]],
    shared: T,
    batch: PyTree,
    key: jax.Array,
    config: MinibatchConfig,
    stop: Stop = NEVER,
    step_keys: bool = True,
) -> tuple[T, Metrics]:
    """Take gradient steps on the shuffled minibatches of a rollout, for several epochs.

    `batch`: arrays `[B, ...]`.
    `step_keys`: whether each step receives a key; otherwise None.
    """
    step = stop.guard(lambda shared, inputs: sgd_step(shared, *inputs))

    def packed_step(carry: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        minibatch, keys, chosen = inputs
        carry, metrics = step(carry, packing.unpack((packing.join_rows(minibatch, large, chosen), keys)))
        return carry, packing.pack_metrics(metrics)

    def epoch(carry: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
        shuffle_key, loss_key = jax.random.split(key) if step_keys else (key, None)
        order = random_order(shuffle_key, jax.tree.leaves(batch)[0].shape[0])
        shuffled = jax.tree.map(lambda x: x[order].reshape(config.num_minibatches, -1, *x.shape[1:]), small)
        chosen = order.reshape(config.num_minibatches, -1) if large else None
        keys = None if loss_key is None else jax.random.split(loss_key, config.num_minibatches)
        with jax.named_scope("minibatch"):
            return packing.scan(packed_step, carry, (shuffled, keys, chosen))

    # Each minibatch gathers its own large rows, such as images: a shuffled copy would double the memory of a rollout.
    small, large = packing.split_rows(packing.pack_examples(batch, 1))
    first = stop.start(packing.pack_params(shared))
    with jax.named_scope("epoch"):
        carry, metrics = packing.scan(epoch, first, jax.random.split(key, config.epochs))
    shared, metrics = stop.finish(carry, metrics)
    return packing.unpack(shared), packing.unpack(metrics)
