"""Tests of the default search spaces."""

import pytest
import yaml

from stoix_like.composition import config_dir, group_choices
from stoix_like.lab.tuning.default_space import FILE, configured_space, default_space
from stoix_like.lab.tuning.parameters import parse_space
from stoix_like.run.population.members import convert_values, float_fields
from stoix_like.schema import get_value
from support.selections import select
from support.set_ups import config_of, setup_of
from support.systems import needs_examples

SYSTEMS = group_choices("system")


def configured(system):
    return config_of(f"system={system}")


@pytest.mark.parametrize("system", select(SYSTEMS, quick=["ppo/ff_ppo", "sac/ff_sac"]))
def test_a_system_has_a_space_around_its_configuration(system):
    config = configured(system)
    space, floats = configured_space(config), float_fields(type(config.system))
    assert len(space) >= (1 if needs_examples(system) else 3)
    for parameter in parse_space(space, [f"system.{one}" for one in floats], floats):
        value = get_value(config.system, parameter.field)
        assert parameter.distribution.low <= value <= parameter.distribution.high, parameter
        assert len(convert_values(config.system, parameter.field, parameter.grid(2))) == 2


@pytest.mark.slow
def test_every_range_is_that_of_a_hyperparameter():
    configs = {system: configured(system) for system in SYSTEMS}
    for path in sorted((config_dir() / "system").rglob(FILE)):
        family = path.parent.relative_to(config_dir() / "system").as_posix()
        own = [config for name, config in configs.items() if family in (".", name.partition("/")[0])]
        known = {field for config in own for field in float_fields(type(config.system))}
        assert set(yaml.safe_load(path.read_text())) <= known, path


@pytest.mark.slow
def test_what_is_fixed_or_off_or_without_effect_is_not_searched():
    setup = setup_of("system=q_learning/ff_dqn", "system.gamma=0.5")
    space = default_space(setup, fixed=["gamma"])
    # Without prioritised replay, their exponent has no effect.
    assert "q_lr" in space
    assert not {"gamma", "priority_exponent"} & set(space)
    assert configured_space(setup.config)["gamma"] == {"uniform": [0.5, 0.999]}
    off = config_of("system=ppo/ff_ppo", "system.ent_coef=0.0")
    assert "ent_coef" not in configured_space(off)


def test_families_search_what_decides_in_them():
    """The noise of continuous PQN falls from where it is searched to 0.15; IQL has a learning rate of state values."""
    space = configured_space(configured("q_learning/ff_pqn_continuous"))
    assert space["exploration_noise"] == {"log_uniform": [0.2, 1.0]}
    assert {"value_lr", "expectile", "beta"} <= configured_space(configured("offline/ff_iql")).keys()
    assert "distillation_coef" in configured_space(configured("offline/ff_fql"))
