"""AlphaZero over sampled actions, so also continuous ones (Hubert et al. 2021, arXiv:2104.06303); see `candidates`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from stoix_like.base_types import SystemSpec
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.schema import between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.search.anakin import ff_az
from stoix_like.systems.search.candidates import samples_of_the_policy


@dataclass(frozen=True, kw_only=True)
class Config(ff_az.Config):
    """Hyperparameters of AlphaZero over sampled actions."""

    action_spaces: ClassVar[tuple[type, ...]] = (Box, Discrete, MultiDiscrete)
    num_samples: Annotated[int, between(2, 2**16)]  # actions that the policy samples in every node, K


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build AlphaZero over sampled actions; the floats of the hyperparameters may be traced."""
    return ff_az.make_algorithm(config, spec, samples_of_the_policy(spec.action_space, config.num_samples))


build, run_experiment, hydra_entry_point = entry_points("search/ff_sampled_az", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
