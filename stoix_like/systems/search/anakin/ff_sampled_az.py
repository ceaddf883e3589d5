"""AlphaZero over sampled actions (Hubert et al. 2021, arXiv:2104.06303), with feed-forward networks.

AlphaZero whose nodes hold a few actions that the policy samples, so that it fits continuous actions and large discrete
choices. The policy learns the probabilities that the search found for the samples of the root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import mctx

from stoix_like.base_types import ActorCriticParams, Observation, SearchOutput, System, SystemSpec
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.schema import between
from stoix_like.systems.actor_critic import ActorCriticNetworks
from stoix_like.systems.launch import entry_points
from stoix_like.systems.search.anakin import ff_az
from stoix_like.systems.search.planner import Found, assemble
from stoix_like.systems.search.sampled import sample_actions, sampled_policy_loss, sampled_prior, take_action
from stoix_like.systems.search.simulation import Expansion
from stoix_like.systems.search.tree import describe
from stoix_like.utils.packing import unpack


@dataclass(frozen=True, kw_only=True)
class Config(ff_az.Config):
    """Hyperparameters of AlphaZero over sampled actions.

    Attributes:
        action_spaces: action spaces that the system supports.
        num_samples: actions that the policy samples in every node, K.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Box, Discrete, MultiDiscrete)
    num_samples: Annotated[int, between(2, 2**16)]


class SampledAlphaZero(ff_az.AlphaZero[Config]):
    """AlphaZero whose actions are those of a node's samples that the search chooses by their index."""

    def describe(self, root: mctx.RootFnOutput, output: mctx.PolicyOutput[Any]) -> SearchOutput:
        """Describe what a search found about the samples of the root."""
        candidates = unpack(root.embedding).actions
        return describe(root, output, take_action(candidates, output.action), candidates)

    def policy_loss(self, pi: Any, found: Found) -> jax.Array:
        """Compute cross-entropies to the probabilities that the search found for samples (section 5.2)."""
        assert found.candidates is not None
        return sampled_policy_loss(pi, found.candidates, found.weights)


def build(config: Config, spec: SystemSpec) -> System:
    """Build AlphaZero over sampled actions; the floats of the hyperparameters may be traced."""
    space, num_samples = spec.action_space, config.num_samples

    def expand(networks: ActorCriticNetworks) -> Any:
        def samples(params: ActorCriticParams, observation: Observation, key: jax.Array) -> Expansion:
            pi, value = networks.both(params, observation)
            actions = sample_actions(pi, num_samples, key)
            return Expansion(sampled_prior(space, actions), value, actions)

        return samples

    action = jax.eval_shape(space.sample, jax.random.key(0))
    candidates = jnp.zeros((num_samples, *action.shape), action.dtype)
    found = Found(candidates, jnp.zeros((num_samples,)), jnp.zeros(()))
    return assemble(SampledAlphaZero(**ff_az.make_parts(config, spec, found, expand)), spec)


run_experiment, hydra_entry_point = entry_points("search/ff_sampled_az", build)

if __name__ == "__main__":
    hydra_entry_point()
