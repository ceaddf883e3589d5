"""Ranges of a sweep."""

import pytest

from stoix_like.errors import ConfigError
from stoix_like.lab.tuning.parameters import parse_space

KNOWN = ["system.actor_lr", "system.clip_eps", "system.epochs", "arch.seed", "network.actor_network.x"]


FLOATS = ["actor_lr", "clip_eps"]


def test_ranges_of_a_space():
    space = {
        "actor_lr": {"log_uniform": [1e-4, 1e-2]},
        "clip_eps": {"choice": [0.1, 0.3]},
        "epochs": {"int": [1, 3]},
        "network": {"choice": ["mlp", "cnn"]},
    }
    found = {parameter.key: parameter for parameter in parse_space(space, KNOWN, FLOATS)}
    assert [parameter.traced for parameter in found.values()] == [True, True, False, False]
    # Evenly spaced on the logarithmic scale: 1e-4, 1e-3, 1e-2.
    assert found["system.actor_lr"].grid(3) == pytest.approx([1e-4, 1e-3, 1e-2])
    assert found["system.epochs"].grid(5) == [1, 2, 3]
    assert found["network"].grid(5) == ["mlp", "cnn"]


@pytest.mark.parametrize("value", [True, "0.1"])
def test_a_choice_of_what_is_no_number_is_not_traced(value):
    (parameter,) = parse_space({"clip_eps": {"choice": [0.1, value]}}, KNOWN, FLOATS)
    assert not parameter.traced


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "sweep.space is empty"),
        ({"actr_lr": {"uniform": [0, 1]}}, "did you mean 'actor_lr'"),
        ({"actor_lr": {"unifrm": [0, 1]}}, "must be one of"),
        ({"actor_lr": [0.1, 0.2]}, "must be one of"),
        ({"actor_lr": {"uniform": [1, 0]}}, "two numbers, the lower one first"),
        ({"actor_lr": {"log_uniform": [0, 1]}}, "must start above 0"),
        ({"actor_lr": {"choice": []}}, "needs a list of values"),
        ({"epochs": {"uniform": [1, 4]}}, "use int, log_int or choice"),
        ({"epochs": {"int": [1, 2.5]}}, "needs two integers"),
        ({"epochs": {"choice": [1]}, "system.epochs": {"choice": (2,)}}, "system.epochs and epochs, which are one key"),
    ],
)
def test_spaces_that_make_no_sense_are_refused(space, message):
    with pytest.raises(ConfigError, match=message):
        parse_space(space, KNOWN, FLOATS)
