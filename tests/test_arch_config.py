import re

import pytest

from stoix_like.arch_config import PBTConfig, PopulationConfig, step_unit
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from support.composed import compose_config


def arch(*overrides):
    return parse_config(compose_config(overrides)).arch


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mode": "grid"}, True),
        ({"mode": "zip"}, False),
        ({"mode": "zip", "paired": True}, True),
        ({"mode": "grid", "paired": False}, False),
        # Members that are replaced change their settings.
        ({"mode": "grid", "pbt": PBTConfig(every_evals=2)}, False),
        ({"mode": "grid", "paired": True, "hyperparams": None}, False),
    ],
)
def test_settings_of_a_grid_have_the_same_seeds(changes, expected):
    population = PopulationConfig(**{"size": 4, "hyperparams": {"gamma": [0.9, 0.99]}, "seeds": 1, **changes})
    assert population.is_paired == expected


@pytest.mark.parametrize(
    ("distributed", "message"),
    [
        ("automatic", "arch.distributed=automatic is not known"),
        ("{coordinator: host, num_processes: 2, process_id: 0}", "must be an address and a port"),
        ("{coordinator: 'host:1', num_processes: 2, process_id: 2}", "arch.distributed.process_id=2 must be less than"),
        ("{coordinator: 'host:1', num_processes: 2}", "'arch.distributed.process_id' is not set"),
    ],
)
def test_wrong_processes_are_refused(distributed, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        arch(f"arch.distributed={distributed}")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], None),
        (["arch.num_devices=5"], 5),
        (["arch.num_devices=5", "arch.distributed=auto"], 5),
        # Each of two processes has three devices, of which one is left over.
        (["arch.num_devices=5", "arch.distributed={coordinator: 'host:1', num_processes: 2, process_id: 0}"], 3),
        (["arch=sebulba", "arch.actor.device_ids=[0,3]", "arch.learner.device_ids=[1,2]"], 4),
    ],
)
def test_devices_that_a_process_needs(overrides, expected):
    assert arch(*overrides).devices_needed == expected


def test_a_budget_counts_steps_of_environments_unless_none_is_stepped():
    # `another`: of a version that knows more of them.
    for name, unit in (("anakin", "env steps"), ("offline", "gradient steps"), ("another", "env steps")):
        assert step_unit({"arch": {"architecture_name": name}}) == unit
