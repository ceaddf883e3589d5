import itertools
import re
import resource
import time
import typing

import pytest
from omegaconf import OmegaConf

from stoix_like.arch_config import ActorConfig, AnakinConfig, PopulationConfig, SebulbaConfig
from stoix_like.config import CheckpointConfig
from stoix_like.envs.factory import EnvConfig
from stoix_like.errors import ConfigError
from stoix_like.run.set_up import memory_estimate
from stoix_like.schema import Range, flat_hints
from support import disco, systems
from support.composed import compose_config
from support.set_ups import setup_of
from support.systems import SYSTEMS, needs_examples


def whole_numbers(schema):
    hints = flat_hints(schema)
    plain = {name: (typing.get_args(hint) or (hint,))[0] for name, hint in hints.items()}
    return {name: hints[name] for name, hint in plain.items() if hint in (int, int | None)}


@pytest.mark.parametrize(
    "schema", [AnakinConfig, SebulbaConfig, ActorConfig, PopulationConfig, CheckpointConfig, EnvConfig, *SYSTEMS]
)
def test_every_whole_number_has_an_upper_bound(schema):
    found = whole_numbers(systems.schema(schema) if isinstance(schema, str) else schema)
    assert found
    for name, hint in found.items():
        (constraint,) = typing.get_args(hint)[1:]
        assert isinstance(constraint, Range), name
        # Beyond 32 bits, no more than a double counts exactly.
        assert constraint.high <= 2**53, name
        assert constraint.high <= 2**32 or name in ("total_timesteps", "total_buffer_size"), name


DQN = "system=q_learning/ff_dqn"
# With 1 GiB of memory: the key, its value, and what the arithmetic below leaves for it.
TOO_LARGE = {
    "evaluation": (["arch.num_eval_episodes=1e9"], "evaluation"),
    "rollout": (["system.rollout_length=1e8", "arch.total_timesteps=1e12"], "rollout"),
    "environments": (
        [
            *("arch.total_num_envs=5e8", "arch.total_timesteps=1e12"),
            *("system.rollout_length=1", "system.num_minibatches=1"),
        ],
        "environments",
    ),
    "start states": (["env.pool_size=16777216", "env.auto_reset=pool", "env=gymnax/breakout"], "start states"),
    "replay": ([DQN, "system.total_buffer_size=1e9"], "replay buffer"),
    "replay rows": (
        ["system=q_learning/ff_rainbow", "env=gymnax/breakout", "network=cnn_rainbow", "system.total_buffer_size=16e6"],
        "replay buffer",
    ),
    "members": (["arch.population.size=1e6"], "member"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_run_that_cannot_fit_is_refused_with_the_size_that_fits(monkeypatch, name):
    monkeypatch.setattr(memory_estimate, "memory_of", lambda device: 2**30)
    overrides, part = TOO_LARGE[name]
    with pytest.raises(ConfigError, match=r"only 1 GiB is available.* use at most \d+") as refused:
        setup_of(*overrides)
    message = str(refused.value)
    assert part in message
    key, value = re.match(r"([a-z_.]+)=(\d+) ", message).groups()
    fitting = int(re.search(r"use at most (\d+)", message)[1])
    assert 0 < fitting < int(value)
    # What is said to fit does; one part in a hundred more does not. A sum tree grows by powers of two.
    kept = [override for override in overrides if not override.startswith(key)]
    setup_of(*kept, f"{key}={fitting}")
    more = fitting * 4 if name == "replay rows" else int(fitting * 1.01)
    with pytest.raises(ConfigError, match="only 1 GiB is available"):
        setup_of(*kept, f"{key}={more}")


@pytest.mark.slow
def test_tens_of_thousands_of_members_are_set_up_within_seconds():
    started = time.process_time()
    setup = setup_of("arch.population.seeds=1e4", "arch.population.hyperparams={clip_eps: [0.1, 0.2, 0.3]}")
    assert setup.population.num_members == 30_000
    assert setup.population.strata[-1] == 2
    assert time.process_time() - started < 5


EXTREMES = (-1, 0, 2**31 - 1, 2**31, 10**9, 10**18)
GROUPS = {"arch": AnakinConfig, "arch.population": PopulationConfig, "checkpoint": CheckpointConfig, "env": EnvConfig}


class Fuzzed(typing.NamedTuple):
    """A whole number to vary, and a system that has the key."""

    system: str
    key: str
    is_list: bool


def numeric_keys(node, path):
    """Every key below `node` whose value in the yaml files is a whole number, a list of them, or null."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from numeric_keys(value, f"{path}.{key}")
    elif isinstance(node, list) and node and all(isinstance(item, int) for item in node):
        yield path, True
    elif isinstance(node, int) and not isinstance(node, bool):
        yield path, False


def fuzzed():
    for group, schema in GROUPS.items():
        yield from (Fuzzed("ppo/ff_ppo", f"{group}.{name}", False) for name in whole_numbers(schema))
    # Those that imitate need data; their whole numbers are those of other systems.
    for system in itertools.filterfalse(needs_examples, SYSTEMS):
        yield from (Fuzzed(system, f"system.{name}", False) for name in whole_numbers(systems.schema(system)))
        network = OmegaConf.to_container(compose_config([f"system={system}"]).network)
        yield from (Fuzzed(system, *found) for found in numeric_keys(network, "network"))


def refused(overrides):
    try:
        setup_of(*overrides)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("value", EXTREMES)
def test_every_extreme_whole_number_is_set_up_or_refused_by_name(value):
    """Set-up takes seconds and little memory whatever the value is; refusals name the key, or the larger group."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for system, key, is_list in fuzzed():
        written = f"[{value}]" if is_list else str(value)
        sign = "++" if key in ("system.warmup_steps", "system.n_step") else ""
        started = time.process_time()
        changed = f"{sign}{key}={written}"
        refusal = refused([f"system={system}", systems.environment(system), *disco.overrides(system), changed])
        named = key.rpartition(".")[2] in refusal or (key.startswith("network") and "network" in refusal)
        assert named or not refusal, f"{system} {key}={written}: {refusal}"
        assert time.process_time() - started < 20, f"{system} {key}={written}"
    # In KiB: 4 GiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * 2**20
