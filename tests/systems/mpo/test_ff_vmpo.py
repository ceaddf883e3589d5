import math

import jax
import jax.numpy as jnp
import pytest

from stoix_like.base_types import Axes
from stoix_like.systems.on_policy.networks import OnPolicyTransition
from support.algorithms import make_algorithm
from support.off_policy_runs import timestep
from support.set_ups import setup_of

RUN = [
    *("system=mpo/ff_vmpo", "env=probe/policy", "arch.total_num_envs=4", "arch.num_devices=1"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[4]" for name in ("actor", "critic")),
    *("system.num_minibatches=1", "system.init_temperature=1", "system.epsilon=0.1", "system.vf_coef=0.5"),
    *("system.init_alpha=5", "system.epsilon_policy=0.001", "system.ent_coef=0"),
]


@pytest.mark.slow
def test_the_better_half_of_the_actions_is_imitated():
    """Of the advantages 1, 2, 3 and 4 the last two count, with weights 1 / (1 + e) and e / (1 + e) at temperature 1.

    The temperature loss is 0.1 + log((e^3 + e^4) / 2), and values that are off by 2 everywhere have a loss of 2. The
    current policy is the behaviour policy, so that its bound adds no more than the dual term 5 x 0.001.
    """
    vmpo = make_algorithm(setup_of(*RUN), axes=Axes())
    step = timestep([0] * 4, [False] * 4)
    shared = jax.jit(vmpo.init)(jax.random.key(0), step).shared
    advantage, action = jnp.asarray([1.0, 4.0, 3.0, 2.0]), jnp.asarray([0, 1, 0, 1])
    value = vmpo.networks.value(shared.params, step.observation)
    log_prob = vmpo.networks.policy(shared.params, step.observation).log_prob(action)
    batch = OnPolicyTransition(step.observation, action, log_prob, value, advantage, value + 2.0)
    loss, metrics = jax.jit(vmpo.vmpo_loss)((shared.params, shared.own.duals), shared, batch, jax.random.key(1))
    policy_loss = -(math.e * log_prob[1] + log_prob[2]) / (1.0 + math.e) + 5.0 * 0.001
    temperature_loss = 0.1 + math.log((math.exp(3) + math.exp(4)) / 2)
    assert float(metrics["policy_loss"]) == pytest.approx(float(policy_loss), rel=1e-4)
    assert float(metrics["temperature"]) == pytest.approx(1.0)
    assert float(metrics["value_loss"]) == pytest.approx(2.0)
    assert float(loss) == pytest.approx(float(policy_loss) + temperature_loss + 0.5 * 2.0, rel=1e-4)
