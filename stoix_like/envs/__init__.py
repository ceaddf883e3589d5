"""Environments: the protocol, spaces, wrappers, automatic resets, and adapters for suites."""

from stoix_like.envs.environment import Environment, VectorEnvironment, Vectorize
from stoix_like.envs.factory import EnvConfig, ScenarioConfig, list_scenarios, make, make_eval
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete, Space

__all__ = [
    "Box",
    "Discrete",
    "EnvConfig",
    "Environment",
    "MultiDiscrete",
    "ScenarioConfig",
    "Space",
    "VectorEnvironment",
    "Vectorize",
    "list_scenarios",
    "make",
    "make_eval",
]
