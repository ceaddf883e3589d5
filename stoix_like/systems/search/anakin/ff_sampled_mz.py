"""MuZero over sampled actions (Hubert et al. 2021, arXiv:2104.06303), with feed-forward networks.

MuZero whose nodes hold a few actions that the policy samples, so that it fits continuous actions and large discrete
choices. The policy learns the probabilities that the search found for the samples of the root.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import mctx

from stoix_like.base_types import SearchOutput, System, SystemSpec
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.schema import between
from stoix_like.systems.launch import entry_points
from stoix_like.systems.search.anakin import ff_mz
from stoix_like.systems.search.planner import Found, assemble
from stoix_like.systems.search.sampled import over_samples, sampled_policy_loss, sampled_root, take_action
from stoix_like.systems.search.tree import describe, expected_value


@dataclass(frozen=True, kw_only=True)
class Config(ff_mz.Config):
    """Hyperparameters of MuZero over sampled actions.

    Attributes:
        action_spaces: action spaces that the system supports.
        num_samples: actions that the policy samples in every node, K.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Box, Discrete, MultiDiscrete)
    num_samples: Annotated[int, between(2, 2**16)]


class SampledMuZero(ff_mz.MuZero[Config]):
    """MuZero whose actions are those of a node's samples that the search chooses by their index."""

    def describe(self, root: mctx.RootFnOutput, output: mctx.PolicyOutput[Any]) -> SearchOutput:
        """Describe what a search found about the samples of the root."""
        candidates = root.embedding.actions
        found = describe(root, output, take_action(candidates, output.action), candidates)
        return found._replace(value=expected_value(found))

    def policy_loss(self, pi: Any, found: Found) -> jax.Array:
        """Compute cross-entropies to the probabilities that the search found for samples (section 5.2)."""
        assert found.candidates is not None
        return sampled_policy_loss(pi, found.candidates, found.weights)


def build(config: Config, spec: SystemSpec) -> System:
    """Build MuZero over sampled actions; the floats of the hyperparameters may be traced."""
    space, num_samples = spec.action_space, config.num_samples
    action = jax.eval_shape(space.sample, jax.random.key(0))
    candidates = jnp.zeros((num_samples, *action.shape), action.dtype)
    found = Found(candidates, jnp.zeros((num_samples,)), jnp.zeros(()))
    make_root, over_actions = partial(sampled_root, space, num_samples), partial(over_samples, space, num_samples)
    return assemble(SampledMuZero(**ff_mz.make_parts(config, spec, found, make_root, over_actions)), spec)


run_experiment, hydra_entry_point = entry_points("search/ff_sampled_mz", build)

if __name__ == "__main__":
    hydra_entry_point()
