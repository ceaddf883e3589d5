"""The systems of this package and what they declare; a new one enters every test that reads them here."""

import functools

import yaml

from stoix_like.composition import config_dir, group_choices
from stoix_like.config import import_build, schema_of
from stoix_like.envs import Discrete
from stoix_like.schema import flat_hints
from stoix_like.systems.offline.anakin.bc import BaseConfig as BehaviourCloningConfig

SYSTEMS = group_choices("system")


@functools.cache
def schema(system):
    module = yaml.safe_load((config_dir() / f"system/{system}.yaml").read_text())["module"]
    return schema_of(import_build(module))


def needs_examples(system):
    """Return whether a system imitates recorded data or a teacher, and refuses to learn from its own actions."""
    return issubclass(schema(system), BehaviourCloningConfig)


def takes_discrete(system):
    return Discrete in getattr(schema(system), "action_spaces", (Discrete,))


def has_replay(system):
    return "total_buffer_size" in flat_hints(schema(system))


def environment(system):
    """Return the override of an environment whose actions a system takes, with goals if it needs them."""
    if schema(system).needs_goals:
        return "env=goals/point_maze"
    return f"env=gymnax/{'cartpole' if takes_discrete(system) else 'pendulum'}"


def networks(system):
    """Return the names of the networks that a system has heads in, `actor_network` and others."""
    return {path.partition(".")[0] for path in schema(system).network_heads}
