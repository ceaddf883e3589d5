"""Tests of the networks and the exploration of on-policy actor-critics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.loggers import MultiLogger
from stoix_like.run.set_up.setup import set_up
from stoix_like.run.training_loop import TrainingLoop
from support.algorithms import make_algorithm
from support.composed import compose_config
from support.off_policy_runs import timestep

SMALL = [
    "network.actor_network.pre_torso.layer_sizes=[8]",
    *("arch.compile_cache=false", "arch.absolute_metric=false", "arch.num_evaluation=1", "arch.num_devices=1"),
    *("arch.total_num_envs=4", "arch.num_eval_episodes=2", "system.rollout_length=8", "system.epochs=2"),
    *("system.num_minibatches=2", "arch.total_timesteps=512"),
]


def set_up_small(*overrides):
    return set_up(parse_config(compose_config([*SMALL, *overrides])))


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(params))])


def test_gradients_of_policy_and_value_reach_one_shared_torso():
    algorithm = make_algorithm(set_up_small("network=mlp_shared"))
    step = timestep([0, 0], [False, False])
    observation = step.observation._replace(agent_view=jnp.ones((2, 4)))
    params = jax.jit(algorithm.init)(jax.random.key(0), step._replace(observation=observation)).shared.params
    assert set(params.critic_params["params"]) == {"critic_head"}
    grads = jax.grad(lambda params: algorithm.networks.value(params, observation).sum())(params)
    assert np.abs(flat(grads.actor_params["params"]["torso"])).max() > 0.0
    assert np.abs(flat(grads.actor_params["params"]["action_head"])).max() == 0.0
    assert np.abs(flat(grads.critic_params)).max() > 0.0


def test_policy_and_value_pass_through_one_shared_torso_once():
    """A torso of one layer and two heads have three products of matrices; one by one, they have four."""
    networks = make_algorithm(set_up_small("network=mlp_shared")).networks
    observation = timestep([0, 0], [False, False]).observation._replace(agent_view=jnp.ones((2, 4)))
    params = networks.init(jax.random.key(0), observation)

    def one_by_one(params):
        return networks.policy(params, observation).logits, networks.value(params, observation)

    def at_once(params):
        pi, value = networks.both(params, observation)
        return pi.logits, value

    assert [str(jax.make_jaxpr(f)(params)).count("dot_general") for f in (one_by_one, at_once)] == [4, 3]
    sums = (lambda params, f=f: sum(jnp.sum(jnp.square(x)) for x in f(params)) for f in (one_by_one, at_once))
    np.testing.assert_allclose(*(flat(jax.grad(f)(params)) for f in sums), rtol=1e-5, atol=1e-6)


def test_a_torso_is_shared_as_a_whole_and_only_where_the_system_can():
    layer = "{_target_: stoix_like.networks.inputs.ArrayInput}"
    with pytest.raises(ConfigError, match=r"critic_network.pre_torso is not set, but system=ppo/ff_ppo needs it"):
        set_up_small("~network.critic_network.pre_torso", f"+network.critic_network.input_layer={layer}")


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo/ff_ppo", "vpg/ff_a2c"])
def test_held_noise_is_a_function_of_the_state_and_its_probability_is_exact(system, monkeypatch):
    """With a noise matrix per episode, the residuals of an episode of 6 steps are linear in 2 features.

    Log-probabilities are those of the current policy in the same state, so that the first ratio is one.
    """
    overrides = [*SMALL, f"system={system}", "env=gymnax/pendulum", "network=mlp_gsde", "system.sde_sample_freq=1000"]
    overrides = [o for o in overrides if system == "ppo/ff_ppo" or not o.startswith(("system.epochs", "system.num_m"))]
    overrides += ["network.actor_network.pre_torso.layer_sizes=[2]", "network.actor_network.action_head.min_scale=1e-6"]
    setup = set_up(parse_config(compose_config(overrides)))
    algorithm, batches = type(make_algorithm(setup)), []
    targets = algorithm.targets

    def spy(self, agent, trajectory, *args):
        pi = self.networks.policy(agent.shared.params, trajectory.transitions.observation)
        steps = trajectory.transitions
        log_prob = pi.log_prob(steps.action)
        jax.debug.callback(
            lambda *x: batches.append(x), steps.action - pi.mode(), pi._features, steps.extras, log_prob, pi.stddev()
        )
        return targets(self, agent, trajectory, *args)

    monkeypatch.setattr(algorithm, "targets", spy)
    TrainingLoop(setup, MultiLogger([])).advance(1)
    jax.effects_barrier()
    noise, features, stored, log_prob, scale = (np.asarray(x) for x in batches[0])
    np.testing.assert_allclose(stored, log_prob, atol=1e-4)
    normal = -0.5 * (noise / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(stored, normal.sum(-1), atol=1e-3)
    for env in range(noise.shape[1]):
        matrix, *_ = np.linalg.lstsq(features[:, env, :2], noise[:, env], rcond=None)
        np.testing.assert_allclose(features[:, env, :2] @ matrix, noise[:, env], atol=1e-4)
    # Each environment has a matrix of its own.
    assert np.abs(noise[0, 0] - noise[0, 1]) > 1e-3
