import jax
import jax.numpy as jnp
import numpy as np

from support.algorithms import make_algorithm
from support.compiled import run
from support.off_policy_runs import timestep
from support.set_ups import setup_of

SMALL = [
    *("network.actor_network.pre_torso.layer_sizes=[8]", "arch.num_devices=1", "arch.total_num_envs=4"),
    *("system.rollout_length=8", "system.num_minibatches=2", "arch.total_timesteps=512"),
]


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(params))])


def test_gradients_of_policy_and_value_reach_one_shared_torso():
    algorithm = make_algorithm(setup_of(*SMALL, "network=mlp_shared"))
    step = timestep([0, 0], [False, False])
    observation = step.observation._replace(agent_view=jnp.ones((2, 4)))
    params = jax.jit(algorithm.init)(jax.random.key(0), step._replace(observation=observation)).shared.params
    assert set(params.critic_params["params"]) == {"critic_head"}
    grads = run(jax.grad(lambda params: algorithm.networks.value(params, observation).sum()), params)
    assert np.abs(flat(grads.actor_params["params"]["torso"])).max() > 0.0
    assert np.abs(flat(grads.actor_params["params"]["action_head"])).max() == 0.0
    assert np.abs(flat(grads.critic_params)).max() > 0.0


def test_policy_and_value_pass_through_one_shared_torso_once():
    """A torso of one layer and two heads have three products of matrices; one by one, they have four."""
    networks = make_algorithm(setup_of(*SMALL, "network=mlp_shared")).networks
    observation = timestep([0, 0], [False, False]).observation._replace(agent_view=jnp.asarray(np.ones((2, 4))))
    params = run(networks.init, jax.random.key(0), observation)

    def one_by_one(params):
        return networks.policy(params, observation).logits, networks.value(params, observation)

    def at_once(params):
        pi, value = networks.both(params, observation)
        return pi.logits, value

    assert [str(jax.make_jaxpr(f)(params)).count("dot_general") for f in (one_by_one, at_once)] == [4, 3]
    sums = (lambda params, f=f: sum(jnp.sum(jnp.square(x)) for x in f(params)) for f in (one_by_one, at_once))
    np.testing.assert_allclose(*(flat(run(jax.grad(f), params)) for f in sums), rtol=1e-5, atol=1e-6)
