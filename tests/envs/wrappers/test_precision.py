import jax
import jax.numpy as jnp

from stoix_like.envs import factory
from stoix_like.envs.wrappers import Wrapper
from support.set_ups import config_of


class Multiply(Wrapper):
    def on_start(self, env_state, timestep):
        return env_state, timestep._replace(reward=timestep.reward + multiply())

    def step(self, keys, state, action):
        state, timestep = super().step(keys, state, action)
        return state, timestep._replace(reward=timestep.reward + multiply())


def multiply():
    return (jnp.ones((2, 2)) @ jnp.ones((2, 2))).sum()


def test_products_of_an_environment_have_the_precision_it_is_made_with():
    own = Multiply(factory.make_scenario(config_of("env=gymnax/cartpole").env))
    config = factory.EnvConfig(env_name="own")
    keys = jax.random.split(jax.random.key(0), 2)

    def products(env):
        def play():
            state, timestep = env.reset(keys)
            state = env.start_rollout(keys[0], state)
            return timestep, env.step(keys, state, jnp.zeros(2, jnp.int32))

        program = str(jax.make_jaxpr(play)())
        return program.count("dot_general["), program.count("Precision.HIGHEST, Precision.HIGHEST")

    for make in (factory.make, factory.make_eval):
        number, highest = products(make(config, own))
        assert number >= 2
        assert highest == 0
        assert products(make(config, own, "highest")) == (number, number)
    assert jax.config.jax_default_matmul_precision is None
