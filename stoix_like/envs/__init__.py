"""Environments: the protocol, spaces, wrappers, automatic resets, and adapters for suites."""

from typing import TYPE_CHECKING

from stoix_like.interpreter import on_first_use

if TYPE_CHECKING:
    from stoix_like.envs.check import check_environment
    from stoix_like.envs.environment import Environment, VectorEnvironment, Vectorize
    from stoix_like.envs.factory import EnvConfig, ScenarioConfig, make, make_eval
    from stoix_like.envs.opponents import find_opponent
    from stoix_like.envs.spaces import (
        ActionSpace,
        Box,
        Dict,
        Discrete,
        Mixed,
        MultiDiscrete,
        ObservationSpace,
        Space,
        Tuple,
    )
    from stoix_like.envs.suites import list_scenarios
else:
    # Algorithms need the spaces alone.
    __getattr__, __dir__ = on_first_use(__name__, "spaces", "environment", "suites", "factory", "opponents", "check")

__all__ = [
    "ActionSpace",
    "Box",
    "Dict",
    "Discrete",
    "EnvConfig",
    "Environment",
    "Mixed",
    "MultiDiscrete",
    "ObservationSpace",
    "ScenarioConfig",
    "Space",
    "Tuple",
    "VectorEnvironment",
    "Vectorize",
    "check_environment",
    "find_opponent",
    "list_scenarios",
    "make",
    "make_eval",
]
