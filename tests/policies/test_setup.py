import dataclasses

import jax
import pytest

from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.inference.setup import set_up_inference
from stoix_like.run.programs.functions import run_programs
from stoix_like.run.set_up.setup import set_up
from support.composed import compose_config
from support.selections import select


def config(*overrides):
    return parse_config(compose_config(["system=ppo/ff_ppo", "arch.num_devices=1", *overrides]))


def products(program):
    """Return whether products of matrices, all or some, have the highest precision."""
    return {
        "Precision.HIGHEST" in product.partition("\n    ]")[0][:400]
        for product in str(program).split("dot_general[")[1:]
    }


@pytest.mark.parametrize(("given", "expected"), select([("null", False), ("highest", True)], quick=[("highest", True)]))
def test_every_program_and_every_policy_computes_in_the_precision_of_the_run(given, expected):
    chosen = config(f"arch.matmul_precision={given}", "env=gymnax/cartpole")
    programs = {program.name: program for program in run_programs(set_up(chosen))}
    for name in ("train", "evaluate"):
        assert products(programs[name].function.trace(*programs[name].args).jaxpr) == {expected}, name
    setup = set_up_inference(chosen)
    system, key = setup.build_system(), jax.random.key(0)
    _, timestep = setup.env.reset(key[None])
    agent = jax.eval_shape(system.init, key, timestep)
    inspected = jax.make_jaxpr(system.inspect)(agent.shared, timestep.observation)
    assert products(inspected) == {expected}
    assert jax.config.jax_default_matmul_precision is None


def test_physics_computes_in_full_precision_unless_told_otherwise():
    physics = config("env=brax/ant")
    assert physics.matmul_precision == "highest"
    assert config("env=brax/ant", "arch.matmul_precision=default").matmul_precision == "default"
    assert config("env=gymnax/cartpole").matmul_precision is None
    # The key itself stays as it was given, so that runs from before it was introduced can be resumed.
    assert physics.resolved["arch"]["matmul_precision"] is None


def test_networks_beside_physics_compute_in_the_precision_of_jax():
    parts = set_up_inference(config("env=gymnax/cartpole"))
    physics = parts.config._replace(env=dataclasses.replace(parts.config.env, env_name="brax"))
    assert physics.matmul_precision == "highest"
    system, key = parts._replace(config=physics).build_system(), jax.random.key(0)
    _, timestep = parts.env.reset(key[None])
    agent = jax.eval_shape(system.init, key, timestep)
    assert products(jax.make_jaxpr(system.inspect)(agent.shared, timestep.observation)) == {False}


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match="arch.matmul_precision"):
        config("arch.matmul_precision=exact")
