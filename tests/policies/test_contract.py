from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.legends import Legend
from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.errors import ConfigError
from stoix_like.policies import contract


def make_policy(**changes):
    """Return what `Exportable` has, for torques of Pendulum; `act_on` is only traced for its shapes."""
    parts = {
        **{"name": "ppo/ff_ppo on gymnax/Pendulum-v1", "env_steps": 128, "step_unit": "env steps", "selected": "last"},
        **{"member": 2, "agent": None, "greedy": True, "legend": Legend(actions=("torque (N m)",))},
        "observation_space": Box(np.array([-1.0, -1.0, -np.inf]), np.array([1.0, 1.0, np.inf]), (3,)),
        "action_space": Box(-2.0, 2.0, (1,)),
        "argument_shapes": {"agent_view": jax.ShapeDtypeStruct((3,), jnp.float32)},
        "result_names": ["action"],
        "act_on": lambda arrays, key: arrays[0][:, :1],
    }
    return SimpleNamespace(**parts | changes)


def write(path, format, **changes):
    path.write_bytes(b"exported")
    contract.write(make_policy(**changes), path, format, b"exported")
    return contract.read(path)


def test_a_description_has_names_shapes_and_bounds_and_where_the_policy_comes_from(tmp_path):
    described = write(tmp_path / "policy.npz", "npz")
    view = {"name": "agent_view", "shape": ["batch", 3], "dtype": "float32"}
    assert described["inputs"] == [view | {"low": [-1.0, -1.0, None], "high": [1.0, 1.0, None]}]
    assert described["outputs"] == [
        {"name": "action", "shape": ["batch", 1], "dtype": "float32", "low": -2.0, "high": 2.0}
    ]
    assert (described["file"], described["format"]) == ("policy.npz", "npz")
    assert (described["system"], described["environment"]) == ("ppo/ff_ppo", "gymnax/Pendulum-v1")
    assert (described["env_steps"], described["step_unit"], described["selected"]) == (128, "env steps", "last")
    assert (described["member"], described["agent"], described["greedy"]) == (2, None, True)
    assert described["actions"] == ["torque (N m)"]


def test_integers_have_their_numbers_and_first_values_and_stablehlo_draws_from_a_key(tmp_path):
    described = write(
        tmp_path / "policy",
        "stablehlo",
        observation_space=Discrete(3, start=1),
        action_space=MultiDiscrete((2, 4)),
        argument_shapes={"agent_view": jax.ShapeDtypeStruct((), jnp.int32)},
        act_on=lambda arrays, key: jnp.zeros((len(arrays[0]), 2), jnp.int32),
    )
    assert described["inputs"] == [
        {"name": "agent_view", "shape": ["batch"], "dtype": "int32", "n": 3, "start": 1},
        {"name": "key_data", "shape": [2], "dtype": "uint32"},
    ]
    expected = {"name": "action", "shape": ["batch", 2], "dtype": "int32", "nvec": [2, 4], "start": [0, 0]}
    assert described["outputs"] == [expected]


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    path = tmp_path / "policy.npz"
    write(path, "npz")
    path.write_bytes(b"changed")
    with pytest.raises(ConfigError, match=r"is not the file that policy\.npz\.json describes: export the policy again"):
        contract.read(path)
    path.with_name("policy.npz.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"policy\.npz\.json does not describe a policy"):
        contract.read(path)
    with pytest.raises(ConfigError, match=r"other\.npz: cannot read .*other\.npz\.json: No such file"):
        contract.read(tmp_path / "other.npz")
