"""Training of one shard: rollouts, updates, and the metric sums of an interval."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.architectures.acting import Act, random_act, start_episodes
from stoix_like.architectures.episodes import add_episodes, no_episodes, reduce_episodes
from stoix_like.architectures.rollout import rollout
from stoix_like.architectures.sums import add_float, sum_nothing
from stoix_like.architectures.types import IntervalMetrics, LearnerState, MetricSums, ProgramSpec, Shard
from stoix_like.base_types import Agent, Axes, EpisodeMetrics, Metrics, RolloutState, System, Trajectory
from stoix_like.envs.environment import VectorEnvironment


class ShardProgram(NamedTuple):
    """A system with its environments and mapped axes.

    Attributes:
        system: the system.
        env: environments with automatic reset.
        axes: the axes that a batch is spread over.
        spec: sizes.
    """

    system: System
    env: VectorEnvironment
    axes: Axes
    spec: ProgramSpec

    def init_shard(self, key: jax.Array, shard_key: jax.Array) -> LearnerState:
        """Initialise one shard, and run the warm-up.

        Args:
            key: key of the agent, the same for every shard.
            shard_key: key of this shard.

        Returns:
            The state, without a shard axis.
        """
        reset_key, warmup_key, shard_key = jax.random.split(shard_key, 3)
        state = start_episodes(self.env, self.system, jax.random.split(reset_key, self.spec.num_envs))
        # The shared state must not depend on the observations of this shard.
        agent = self.system.init(key, jax.tree.map(jnp.zeros_like, state.timestep))
        if self.spec.warmup_steps:
            keys = jax.random.split(warmup_key, self.spec.warmup_steps // self.spec.rollout_length)
            (agent, state), _ = jax.lax.scan(self._warm_up, (agent, state), keys)
        shard = Shard(agent.local, state, shard_key, no_episodes())
        _, _, metrics = jax.eval_shape(self._update, agent.shared, shard)
        sums = MetricSums(
            metrics={name: sum_nothing(metric.shape) for name, metric in metrics.items()},
            healthy_updates=jnp.zeros((), jnp.int32),
            bad_metrics=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), metrics),
        )
        return LearnerState(agent.shared, shard, jnp.ones((), bool), sums)

    def train_shard(
        self, state: LearnerState, num_updates: jax.Array, new_interval: jax.Array
    ) -> tuple[LearnerState, IntervalMetrics]:
        """Train one shard.

        Args:
            state: the state of this shard.
            num_updates: a traced scalar, so that intervals of different lengths share one program.
            new_interval: bool scalar, whether to reset the sums first.

        Returns:
            The next state, and the metrics of the interval so far.
        """

        def reset(sums: Any, zeros: Any) -> Any:
            return jax.tree.map(partial(jnp.where, new_interval), zeros, sums)

        state = state._replace(
            sums=reset(state.sums, jax.tree.map(jnp.zeros_like, state.sums)),
            shards=state.shards._replace(episodes=reset(state.shards.episodes, no_episodes())),
        )
        state = jax.lax.fori_loop(0, num_updates, lambda _, state: self._healthy_update(state), state)
        totals, healthy_updates, bad_metrics = state.sums
        # 0 / 0 = NaN without a healthy update.
        metrics = {name: metric.total / healthy_updates for name, metric in totals.items()}
        episodes = reduce_episodes(state.shards.episodes, self.axes)
        return state, IntervalMetrics(metrics, episodes, healthy_updates, bad_metrics)

    def _warm_up(self, carry: tuple[Agent, RolloutState], key: jax.Array) -> tuple[tuple[Agent, RolloutState], None]:
        agent, state = carry
        state, trajectory, _ = self._rollout(random_act(self.system.act, self.env), agent.shared, state, key)
        return (self.system.observe(agent, trajectory), state), None

    def _rollout(
        self, act: Act, shared: Any, state: RolloutState, key: jax.Array
    ) -> tuple[RolloutState, Trajectory, EpisodeMetrics]:
        return rollout(self.env, act, shared, state, key, self.spec.rollout_length, self.spec.hoist_randomness)

    def _update(self, shared: Any, shard: Shard) -> tuple[Any, Shard, Metrics]:
        """Roll out, observe and update once."""
        key, rollout_key, update_key = jax.random.split(shard.key, 3)
        state, trajectory, episodes = self._rollout(self.system.act, shared, shard.rollout_state, rollout_key)
        agent = self.system.observe(Agent(shared, shard.local), trajectory)
        agent, metrics = self.system.update(agent, trajectory, update_key)
        sums = add_episodes(shard.episodes, episodes)
        return agent.shared, Shard(agent.local, state, key, sums), self.axes.mean(metrics)

    def _healthy_update(self, state: LearnerState) -> LearnerState:
        """Update once, and check that all metrics and parameters are finite."""
        shared, shard, metrics = self._update(state.shared, state.shards)
        bad = jax.tree.map(lambda metric: ~jnp.isfinite(metric), metrics)
        healthy = state.healthy
        if not self.spec.on_nan_ignore:
            healthy &= ~jnp.any(jnp.stack(jax.tree.leaves(bad))) & _all_finite(shared)
        if self.spec.num_members > 1 and not self.spec.on_nan_ignore:
            # A diverged member keeps its last finite state while the other members continue.
            shared = jax.tree.map(partial(jnp.where, healthy), shared, state.shared)
        failed_now = state.healthy & ~healthy
        before = state.sums
        sums = MetricSums(
            metrics={
                name: add_float(before.metrics[name], jnp.where(healthy, metric, 0.0))
                for name, metric in metrics.items()
            },
            healthy_updates=before.healthy_updates + healthy,
            bad_metrics=jax.tree.map(lambda seen, new: seen | (failed_now & new), before.bad_metrics, bad),
        )
        return LearnerState(shared, shard, healthy, sums)


def _all_finite(tree: Any) -> jax.Array:
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    # A sum is finite only if all of its terms are.
    return jnp.isfinite(sum((jnp.sum(leaf) for leaf in floats), start=jnp.zeros(())))
