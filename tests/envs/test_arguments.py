import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.arguments import check_names, check_scenario, construct, fit_params
from stoix_like.errors import ConfigError

DEFAULTS = {"gravity": 9.8, "max_steps_in_episode": 500, "wind": np.zeros(2, np.float32), "sparse": False}


class Corridor:
    def __init__(self, size=3):
        assert size > 0, "size must be positive"
        self.size = size


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_scenario("probe", "valeu", ["value", "policy"]), "'valeu' is not a scenario of probe: .*value"),
        (lambda: check_names("env.kwargs", {"sise": 3}, ["size"], "Maze"), "kwargs.sise=3 is not a parameter of Maze"),
        (lambda: check_names("env.kwargs", {"size": 3}, [], "Maze"), "of Maze: it has none"),
        (lambda: construct(Corridor, {"size": 0}, "Corridor"), "kwargs={'size': 0} is invalid .*: size must be pos"),
        (lambda: construct(Corridor, {"size": float("nan")}, "Corridor"), "env.kwargs.size=nan .*must be a number"),
        (lambda: construct(Corridor, {"length": 2}, "Corridor"), "env.kwargs.length=2 is not a parameter of Corridor"),
        (lambda: fit_params(DEFAULTS, {"gravity": "low"}, "Maze"), "env.params.gravity='low' .* such as 9.8"),
        (lambda: fit_params({"goal": jnp.int32(5)}, {"goal": 4.5}, "Maze"), "goal=4.5 .*: use a value such as 5$"),
        (lambda: fit_params(DEFAULTS, {"gravity": float("inf")}, "Maze"), "env.params.gravity=inf is invalid for Maze"),
        (lambda: fit_params(DEFAULTS, {"wind": [1.0]}, "Maze"), r"env.params.wind=\[1.0\] is invalid for Maze"),
        (lambda: fit_params(DEFAULTS, {"max_steps_in_episode": 0}, "Maze"), "steps_in_episode=0 must be at least 1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(check, message):
    with pytest.raises(ConfigError, match=message):
        check()


def test_parameters_take_the_types_of_their_defaults():
    fitted = fit_params(DEFAULTS, {"gravity": 10, "max_steps_in_episode": 20.0, "wind": [1, 2], "sparse": True}, "Maze")
    assert {name: type(value) for name, value in fitted.items()} == {
        "gravity": float,
        "max_steps_in_episode": int,
        "wind": np.ndarray,
        "sparse": bool,
    }
    assert (fitted["gravity"], fitted["max_steps_in_episode"], fitted["wind"].tolist()) == (10.0, 20, [1.0, 2.0])
    assert construct(Corridor, {"size": 5}, "Corridor").size == 5


def test_parameters_take_the_dtypes_of_scalar_arrays():
    defaults = {"goal": jnp.int32(5), "speed": np.float32(1.0), "sparse": jnp.bool_(False)}
    fitted = fit_params(defaults, {"goal": 4.0, "speed": 2, "sparse": True}, "Maze")
    assert {name: (value.dtype.name, value.item()) for name, value in fitted.items()} == {
        "goal": ("int32", 4),
        "speed": ("float32", 2.0),
        "sparse": ("bool", True),
    }
