"""Parts of systems that learn only from their last rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp

from stoix_like.base_types import Metrics, PyTree, SystemConfig
from stoix_like.errors import ConfigError
from stoix_like.systems.parts.kl_stop import NEVER, Stop
from stoix_like.systems.parts.optimiser import Gradients
from stoix_like.utils.accelerate.packing import pack_metrics, pack_params, pack_steps, scan, unpack
from stoix_like.utils.jax_utils import Scalar, random_order


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(SystemConfig):
    """Hyperparameters of which some may change linearly over the run.

    Attributes:
        annealed: names of hyperparameters with a second one, the same name after `final_`: the value at the end of the
            run, or None for one that does not change.
        gradients: gradient descent.
    """

    annealed: ClassVar[tuple[str, ...]] = ()
    gradients: Gradients

    @property
    def gradient_steps(self) -> int:
        """Gradient steps per update: one, on the whole rollout."""
        return 1

    @property
    def ignores_lag(self) -> bool:
        """See `SystemConfig.ignores_lag`."""
        return not self.has_replay

    @property
    def final_values(self) -> dict[str, Scalar]:
        """The values at the end of the run, of the hyperparameters that change."""
        finals = {name: getattr(self, f"final_{name}") for name in self.annealed}
        return {name: value for name, value in finals.items() if value is not None}

    def init_updates(self) -> Any:
        """Return the count of updates that `at` needs, `()` if nothing changes."""
        return jnp.zeros((), jnp.int32) if self.final_values else ()

    def at(self, updates: Any, num_updates: int) -> Self:
        """Return the hyperparameters after a number of updates: `x + (final_x - x) min(1, updates / num_updates)`."""
        finals = self.final_values
        if not finals:
            return self
        fraction = jnp.minimum(1.0, updates / num_updates)
        starts = {name: getattr(self, name) for name in finals}
        return replace(
            self, **{name: starts[name] + fraction * (final - starts[name]) for name, final in finals.items()}
        )

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        """See `SystemConfig.schedules`."""
        now = self.at(updates, num_updates)
        return {name: float(getattr(now, name)) for name in self.final_values} | super().schedules(updates, num_updates)

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check that there is no warm-up; see `SystemConfig.check`."""
        super().check(num_envs, num_shards)
        if self.warmup_steps:
            raise ConfigError(
                f"system.warmup_steps={self.warmup_steps}: this system learns only from its last rollout: use 0"
            )


class MinibatchConfig(OnPolicyConfig):
    """Hyperparameters with `epochs` and `num_minibatches`, which each system declares.

    Attributes:
        epochs: passes over each rollout.
        num_minibatches: minibatches per epoch.
    """

    epochs: int
    num_minibatches: int

    @property
    def gradient_steps(self) -> int:
        """Gradient steps per update."""
        return self.epochs * self.num_minibatches

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check that minibatches divide the rollout; see `SystemConfig.check`."""
        super().check(num_envs, num_shards)
        batch = self.rollout_length * num_envs
        if batch % self.num_minibatches:
            raise ConfigError(
                f"system.num_minibatches={self.num_minibatches} must divide the per-shard batch of {batch:,}"
                f" (system.rollout_length {self.rollout_length} × {num_envs} envs): use a divisor of {batch}"
            )


class Passes(NamedTuple):
    """How often an update passes over a rollout, and in how many minibatches."""

    epochs: int
    num_minibatches: int


def minibatch_epochs(
    sgd_step: Callable[..., tuple[Any, Metrics]],
    shared: Any,
    batch: PyTree,
    key: jax.Array,
    config: MinibatchConfig | Passes,
    stop: Stop = NEVER,
    step_keys: bool = True,
) -> tuple[Any, Metrics]:
    """Take gradient steps on the shuffled minibatches of a rollout, for several epochs.

    Args:
        sgd_step: `(shared, minibatch, key) -> (shared, metrics)`.
        shared: the state before the update.
        batch: arrays `[B, ...]`.
        key: one key.
        config: the number of epochs and of minibatches, a divisor of B.
        stop: ends the update early, if it is to.
        step_keys: whether each step receives a key; otherwise None.

    Returns:
        The state after the update, and the mean metrics.
    """
    step = stop.guard(lambda shared, inputs: sgd_step(shared, *inputs))

    def packed_step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        carry, metrics = step(carry, unpack(inputs))
        return carry, pack_metrics(metrics)

    def epoch(carry: Any, key: jax.Array) -> tuple[Any, Any]:
        shuffle_key, loss_key = jax.random.split(key) if step_keys else (key, None)
        order = random_order(shuffle_key, jax.tree.leaves(batch)[0].shape[0])
        shuffled = jax.tree.map(lambda x: x[order].reshape(config.num_minibatches, -1, *x.shape[1:]), rows)
        keys = None if loss_key is None else jax.random.split(loss_key, config.num_minibatches)
        with jax.named_scope("minibatch"):
            return scan(packed_step, carry, (shuffled, keys))

    rows = pack_steps(batch, 1)
    with jax.named_scope("epoch"):
        carry, metrics = scan(epoch, stop.start(pack_params(shared)), jax.random.split(key, config.epochs))
    shared, metrics = stop.finish(carry, metrics)
    return unpack(shared), unpack(metrics)
