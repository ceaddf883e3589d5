"""MuZero with feed-forward networks (Schrittwieser et al. 2020, arXiv:1911.08265), by Gumbel search.

It is AlphaZero with a learned model: searches start from the latent state of an observation, and step it by the
dynamics. Illegal actions are masked only at the root, because the model does not know them elsewhere; the policy
learns that they have no weight. The model learns nothing of time limits, either: behind a truncated step, its latent
state has the value of the true successor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from stoix_like.base_types import Agent, Observation, PyTree, RolloutState, SearchOutput, SystemConfig, SystemSpec
from stoix_like.envs.spaces import Discrete
from stoix_like.errors import ConfigError, multiples_near
from stoix_like.schema import INT32_MAX, above, at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.normalizer import Normalizer
from stoix_like.systems.parts.optimiser import Gradients, make_optimiser
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.search.anakin.ff_az import AlphaZero, Losses
from stoix_like.systems.search.candidates import Candidates, Found, all_actions, take_action
from stoix_like.systems.search.planner import SearchShared, make_parts
from stoix_like.systems.search.simulation import Simulation
from stoix_like.systems.search.tree import SearchConfig, expected_value
from stoix_like.systems.search.unrolled import Targets, unrolled_targets
from stoix_like.systems.search.world_model import NETWORK_HEADS, LatentModel, LatentModelConfig, make_latent_model
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.jax_utils import Scalar, scale_gradient
from stoix_like.utils.replay import PrioritisedBlockConfig, SequenceBatch


@dataclass(frozen=True, kw_only=True)
class MuZeroReplay(PrioritisedBlockConfig):
    """Hyperparameters of the replay buffer, without next observations."""

    store_next_observation: Literal[False] = False
    unroll_steps: Annotated[int, between(1, 2**10)]  # steps that the dynamics are unrolled for in the loss, K
    total_reanalyse_size: Annotated[int, between(0, INT32_MAX)]

    @property
    def num_steps(self) -> int:
        """Number of consecutive steps per sequence, W; a new search finds the last bootstrap value one step later."""
        return self.unroll_steps + self.n_step + (self.total_reanalyse_size > 0)

    @property
    def learned_steps(self) -> int:
        """Those before and after each step of the dynamics."""
        return self.unroll_steps + 1

    @property
    def searched_steps(self) -> np.ndarray:
        """Steps that need a new search: to learn its policy, or to bootstrap from its value."""
        learned = np.arange(self.learned_steps)
        return np.union1d(learned, self.n_step + learned)

    @property
    def length_keys(self) -> str:
        return f"system.unroll_steps={self.unroll_steps} and system.n_step={self.n_step}"

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check that sequences to search again divide over the shards."""
        size = self.total_reanalyse_size
        if size > self.total_batch_size:
            raise ConfigError(
                f"system.total_reanalyse_size={size} exceeds system.total_batch_size={self.total_batch_size}: use at"
                " most that"
            )
        if size % num_shards:
            raise ConfigError(
                f"system.total_reanalyse_size={size} must be a multiple of {num_shards}, the number of shards: use"
                f" {multiples_near(size, num_shards)}"
            )
        super().check(config, num_envs, num_shards)


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of MuZero."""

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    policy_hyperparams: ClassVar = {"evaluation_simulations": 0}
    plays_both_seats: ClassVar[bool] = True
    needs_successors: ClassVar[bool] = False
    network_heads: ClassVar = NETWORK_HEADS
    search: SearchConfig
    atoms: LatentModelConfig
    replay: MuZeroReplay
    gradients: Gradients
    resets: PeriodicResets
    lr: Annotated[float, above(0.0)]  # Adam learning rate
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    vf_coef: Annotated[float, at_least(0.0)]  # weight of the value loss
    reward_coef: Annotated[float, between(0.0, 1e6)]  # weight of the reward loss
    ent_coef: Annotated[float, at_least(0.0)]  # weight of the entropy bonus
    normalize_observations: bool  # whether observations are normalised by their running mean and standard deviation


@dataclass(frozen=True)
class MuZero(AlphaZero[Config]):
    """AlphaZero in a learned model, which learns rewards, too; `reanalyse_size` is per shard."""

    model: LatentModel
    reanalyse_size: int

    def describe(self, root: mctx.RootFnOutput, output: mctx.PolicyOutput) -> SearchOutput:
        """Describe what a search found; the value of a state is the value of the policy found.

        The mean over all simulations would be lower, because many explore.
        """
        found = super().describe(root, output)
        return found._replace(value=expected_value(found))

    def sample(self, agent: Agent, key: jax.Array, importance_exponent: Scalar) -> SequenceBatch:
        """Sample a batch of sequences, and search in some of them again."""
        sample_key, search_key = jax.random.split(key)
        batch = super().sample(agent, sample_key, importance_exponent)
        return self.reanalyse(agent.shared, batch, search_key) if self.reanalyse_size else batch

    def reanalyse(self, shared: SearchShared, batch: SequenceBatch, key: jax.Array) -> SequenceBatch:
        """Replace what the search found in some sequences of a batch `[W, B]`, in the steps that targets read."""
        size, steps, searched = self.reanalyse_size, batch.steps, self.config.replay.searched_steps
        rows = jnp.arange(size)
        if self.config.replay.prioritised:
            # Priorities draw in the order of the buffer: the first rows always belong to the first environments.
            rows_key, key = jax.random.split(key)
            rows = jax.random.permutation(rows_key, batch.weight.size)[:size]
        places = (searched[:, None], rows)
        observation = jax.tree.map(lambda x: x[places].reshape(-1, *x.shape[2:]), steps.observation)
        shared = shared._replace(params=unpack(shared.params))
        output = self.describe(*self.tree(shared, None, observation, key, self.config.search.num_simulations))
        found = Found(output.candidates, output.weights, output.value)
        found = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), found)
        extras = jax.tree.map(lambda new, old: old.at[places].set(new), found, steps.extras)
        assert steps.truncated is not None
        # The value of a true successor is found in the next step, unless the episode was truncated.
        before, old = (searched[1:, None] - 1, rows), steps.extras.value
        value = old.at[before].set(jnp.where(steps.truncated[before], old[before], found.value[1:]))
        return batch._replace(steps=steps._replace(extras=extras._replace(value=value)))

    def loss(self, params: PyTree, statistics: PyTree, batch: SequenceBatch, key: jax.Array) -> Losses:
        """Compute the losses of all heads on unrolled sequences; also the absolute errors `[1, B]` of root values."""
        config, num_unrolled = self.config, self.config.replay.unroll_steps
        observation = jax.tree.map(lambda x: x[: num_unrolled + 1], batch.steps.observation)
        first = self.normalizer.apply(statistics, jax.tree.map(lambda x: x[0], observation))
        latent = self.unroll(params, first, batch.steps.action[:num_unrolled])
        targets, found = self.targets(batch), jax.tree.map(lambda x: x[: num_unrolled + 1], batch.steps.extras)
        # As in the search, the mask of legal actions is known only at the root.
        mask = None if observation.action_mask is None else observation.action_mask.at[1:].set(True)
        pi, value = self.model.policy_at(params, latent, mask), self.model.value_at(params, latent[:1])
        # Equation 1, where the loss of each unrolled step has the weight 1 / K (appendix G).
        share = jnp.full((num_unrolled + 1, 1), 1.0 / num_unrolled).at[0].set(1.0) * batch.weight
        num_sequences = batch.weight.size

        def total(losses: jax.Array, chosen: jax.Array, share: jax.Array = share) -> jax.Array:
            return jnp.sum(share * jnp.where(chosen, losses, 0.0)) / num_sequences

        policy_loss = total(self.policy_loss(pi, found), targets.has_policy)
        value_loss = total(self.model.value_loss(params, latent, targets.value), targets.has_value)
        reward_losses = self.model.reward_loss(params, latent[1:], targets.reward)
        reward_loss = total(reward_losses, targets.has_reward, share[1:])
        entropy = pi.entropy(seed=key)
        loss = policy_loss + config.vf_coef * value_loss + config.reward_coef * reward_loss
        loss -= config.ent_coef * total(entropy, targets.has_policy)
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "reward_loss": reward_loss}
        clipped = jnp.mean(self.model.clipped(params, latent[:1], targets.value[:1]))
        metrics |= {"entropy": jnp.mean(entropy[0]), "value": jnp.mean(value), "clipped_targets": clipped}
        return loss, (metrics, jnp.abs(targets.value[:1] - value))

    def unroll(self, params: PyTree, observation: Observation, actions: jax.Array) -> jax.Array:
        """Return the latent state of observations `[B, ...]`, and after it those after actions: `[K + 1, B, D]`."""

        def step(latent: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
            # Appendix G: the gradient at the start of the dynamics is halved.
            latent = self.model.step(params, scale_gradient(latent, 0.5), action)
            return latent, latent

        first = self.model.represent(params, observation)
        return jnp.concatenate([first[None], jax.lax.scan(step, first, actions)[1]])

    def targets(self, batch: SequenceBatch) -> Targets:
        """Compute the targets of rewards and values."""
        steps, successor_value = batch.steps, batch.steps.extras.value
        return unrolled_targets(steps, successor_value, self.value_target(batch), self.config.replay.unroll_steps)


class LatentNode(NamedTuple):
    """A node of a search tree: a latent state `[B, D]`, and its candidates `[B, K, ...]`."""

    latent: jax.Array
    actions: jax.Array | None


def make_simulation(model: LatentModel, normalizer: Normalizer, candidates: Candidates, discount: Scalar) -> Simulation:
    """Build the functions with which mctx searches in a learned model."""

    def root(params: PyTree, _: RolloutState | None, observation: Observation, key: jax.Array) -> mctx.RootFnOutput:
        latent = model.represent(params[0], normalizer.apply(params[1], observation))
        prior, actions = candidates.choose(model.policy_at(params[0], latent, observation.action_mask), key)
        value = model.value_at(params[0], latent)
        return mctx.RootFnOutput(prior_logits=prior, value=value, embedding=LatentNode(latent, actions))

    def step(params: PyTree, key: jax.Array, index: jax.Array, node: LatentNode) -> tuple[PyTree, LatentNode]:
        params, latent = params[0], model.step(params[0], node.latent, take_action(node.actions, index))
        prior, actions = candidates.choose(model.policy_at(params, latent), jax.random.split(key)[1])
        reward, value = model.reward_at(params, latent), model.value_at(params, latent)
        output = mctx.RecurrentFnOutput(
            reward=reward, discount=jnp.full_like(reward, discount), prior_logits=prior, value=value
        )
        return output, LatentNode(latent, actions)

    return Simulation(root, step)


def make_algorithm(config: Config, spec: SystemSpec, candidates: Candidates | None = None) -> Algorithm:
    """Build MuZero; its searches consider all actions in each node, or some candidates."""
    candidates = candidates or all_actions(cast(Discrete, spec.action_space))
    parts, model = make_parts(config, spec, candidates), make_latent_model(config.atoms, spec)
    return MuZero(
        **parts,
        networks=model,
        model=model,
        optim=make_optimiser(config, spec, config.lr),
        simulation=make_simulation(model, parts["normalizer"], candidates, parts["discount"]),
        reanalyse_size=config.replay.total_reanalyse_size // spec.num_shards,
    )


build, run_experiment, hydra_entry_point = entry_points("search/ff_mz", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
