import dataclasses

import jax
import pytest

from stoix_like.architectures.types import Inputs
from stoix_like.assembly import inputs_of, set_up_inference
from stoix_like.run.programs.functions import run_programs
from stoix_like.run.set_up.setup import set_up
from support.selections import select
from support.set_ups import config_of


def config(*overrides):
    return config_of("system=ppo/ff_ppo", "arch.num_devices=1", *overrides)


def products(program):
    """Return whether products of matrices, all or some, have the highest precision."""
    return {
        "Precision.HIGHEST" in product.partition("\n    ]")[0][:400]
        for product in str(program).split("dot_general[")[1:]
    }


@pytest.mark.slow
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


def test_networks_beside_physics_compute_in_the_precision_of_jax():
    parts = set_up_inference(config("env=gymnax/cartpole"))
    physics = parts.config._replace(env=dataclasses.replace(parts.config.env, env_name="brax"))
    assert physics.matmul_precision == "highest"
    system, key = parts._replace(config=physics).build_system(), jax.random.key(0)
    _, timestep = parts.env.reset(key[None])
    agent = jax.eval_shape(system.init, key, timestep)
    assert products(jax.make_jaxpr(system.inspect)(agent.shared, timestep.observation)) == {False}


def test_a_system_is_built_for_a_member_a_call_and_other_inputs():
    built = []

    def build(config, spec):
        built.append((config.gamma, spec.evaluation_greedy, spec.data))
        return "system"

    parts = set_up_inference(config("env=gymnax/cartpole", "system.gamma=0.9", "arch.evaluation_greedy=true"))
    assert parts.name == "ppo/ff_ppo on gymnax/CartPole-v1"
    parts = parts._replace(config=parts.config._replace(build=build))
    assert parts.build_system() == parts.build_system({"gamma": 0.5}, False, Inputs(data="data")) == "system"
    assert built == [(0.9, True, None), (0.5, False, "data")]
    assert inputs_of(parts.spec) == Inputs()
