"""The environments of a run as a model, for systems that plan with them."""

from __future__ import annotations

from stoix_like.base_types import Model
from stoix_like.config import RunConfig
from stoix_like.envs import factory
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError


def find_model(config: RunConfig, env: VectorEnvironment) -> Model | None:
    """Return the model that a system plans with.

    Args:
        config: the typed configuration.
        env: the environments of training.

    Returns:
        The model; None for systems without one.

    Raises:
        ConfigError: the system needs a model, and the environments run on the host.
    """
    if not config.system.needs_model:
        return None
    model = factory.make_model(env)
    if model is None:
        raise ConfigError(
            f"system={config.system_name} steps the environment inside its search, and {config.environment_name} runs"
            " on the host: use an environment written in JAX, or a system that learns its model, system=search/ff_mz"
        )
    return model
