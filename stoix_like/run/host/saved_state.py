"""The state of a run as the items of a checkpoint, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.types import LearnerState, Shard


class Best(NamedTuple):
    """The best parameters of each member."""

    shared: Any  # copies of the shared state
    episode_return: np.ndarray  # their mean evaluation return, `[]` or `[P]`
    env_steps: np.ndarray  # the environment steps before that evaluation
    hyperparams: Mapping[str, np.ndarray]  # by name, the hyperparameters of that time

    def unless_better(
        self,
        before: Best | None,
        select: Callable[[Any, Any, np.ndarray], Any],
        untrained_steps: int,
        better: np.ndarray | None = None,
    ) -> Best:
        """Return these parameters, or `before` for each member that did not improve.

        `before`: the best parameters so far; None for none.
        `select`: `(candidate, best, better [P]) -> best`; it copies, for training donates its state.
        `better`: which members improved, booleans `[P]`; None: members with at least as high a return.
        """
        best = before or self._replace(episode_return=np.full(self.episode_return.shape, -np.inf))
        if better is None or before is None:
            # Any are better than those from before the first update.
            trained_returns = np.where(best.env_steps <= untrained_steps, -np.inf, best.episode_return)
            better = self.episode_return >= trained_returns
        if before is not None and not better.any():
            return before
        return Best(
            select(self.shared, best.shared, better),
            np.where(better, self.episode_return, best.episode_return),
            np.where(better, self.env_steps, best.env_steps),
            {name: np.where(better, values, best.hyperparams[name]) for name, values in self.hyperparams.items()},
        )

    def host_values(self) -> dict[str, Any]:
        """Return all but the parameters, in JSON values."""
        return {
            "episode_return": self.episode_return.tolist(),
            "env_steps": self.env_steps.tolist(),
            "hyperparams": {name: values.tolist() for name, values in self.hyperparams.items()},
        }

    @staticmethod
    def from_checkpoint(shared: Any, host_values: Mapping[str, Any]) -> Best:
        """Join what `host_values` returned and the parameters."""
        hyperparams = {name: np.asarray(values, np.float32) for name, values in host_values["hyperparams"].items()}
        returns, env_steps = np.asarray(host_values["episode_return"]), np.asarray(host_values["env_steps"])
        return Best(shared, returns, env_steps, hyperparams)


def to_items(state: LearnerState, best: Any, local: bool) -> dict[str, Any]:
    """Split the state into the items of a checkpoint, so that a policy can be read without the rest.

    `best`: the best parameters of each member, or their shapes; None if there are none.
    """
    shards = state.shards
    rest = {"rollout_state": shards.rollout_state, "key": shards.key, "episodes": shards.episodes}
    rest |= {"healthy": state.healthy, "sums": state.sums}
    return {"shared": state.shared, "rollout_state": rest, "local": shards.local if local else (), "best": best}


def to_state(shared: Any, rest: Mapping[str, Any], local: Any) -> LearnerState:
    """Join the items of a checkpoint; the inverse of `to_items`."""
    shard = Shard(local, rest["rollout_state"], rest["key"], rest["episodes"])
    return jax.tree.map(_copy_from_file, LearnerState(shared, shard, rest["healthy"], rest["sums"]))


def _copy_from_file(leaf: jax.Array) -> jax.Array:
    """Copy an array with a compiled program: a buffer that a file was read into must not be donated.

    Arrays on an accelerator were already copied there, and a second copy of a replay buffer might not fit.
    """
    if any(device.platform != "cpu" for device in leaf.devices()):
        return leaf
    copy = jax.jit(jnp.copy, out_shardings=leaf.sharding)(leaf)
    leaf.delete()
    return copy
