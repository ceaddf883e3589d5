import dataclasses
import math
from types import SimpleNamespace

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Agent, Trajectory
from stoix_like.systems.awr.anakin.ff_awr import AWR
from stoix_like.systems.on_policy.actor_critic import OnPolicyShared


def with_parts(kind=AWR, **parts):
    return kind(**dict.fromkeys(field.name for field in dataclasses.fields(kind)) | parts)


def test_actions_weigh_what_their_advantages_say_up_to_the_largest_weight():
    """With beta = 2, advantages of 2 ln 2 and 100 weigh 2 and 3, the largest; log-probabilities are -ln 2 and -ln 4.

    The loss is (2 ln 2 + 3 ln 4) / 2 = 4 ln 2.
    """
    awr = with_parts(config=SimpleNamespace(beta=2.0, weight_max=3.0))
    pi = distrax.Categorical(probs=jnp.asarray([[0.5, 0.5], [0.75, 0.25]]))
    batch = SimpleNamespace(action=jnp.asarray([0, 1]), advantage=jnp.asarray([2.0 * math.log(2.0), 100.0]))
    loss, metrics = jax.jit(lambda pi: awr.policy_loss(pi, batch))(pi)
    assert (float(loss), metrics) == (pytest.approx(4.0 * math.log(2.0), rel=1e-5), {})


def test_targets_come_from_the_parameters_of_each_step():
    """The target is the parameter plus one, and a step adds it: 1, 2 and 4 lead from 0 to 7, with a mean of 7 / 3."""

    class Counting(AWR):
        def targets(self, agent, trajectory, key):
            return agent, trajectory.transitions + agent.shared.params, {}

        def improve(self, shared, batch, key):
            return shared._replace(params=shared.params + batch), {"target": batch}

    replay = SimpleNamespace(sample_steps=lambda local, key: local)
    awr = with_parts(Counting, replay=replay, config=SimpleNamespace(replay=SimpleNamespace(epochs=3)))
    agent = Agent(OnPolicyShared(jnp.zeros(()), (), (), updates=jnp.asarray(5)), jnp.ones(()))
    agent, metrics = jax.jit(lambda agent: awr.update(agent, None, jax.random.key(0)))(agent)
    assert (float(agent.shared.params), float(metrics["target"])) == (7.0, pytest.approx(7 / 3))
    # An update is one, however many steps it takes; the buffer stays.
    assert (int(agent.shared.updates), float(agent.local)) == (6, 1.0)


def test_a_rollout_goes_to_the_buffer_and_to_the_statistics_and_windows_come_back():
    replay = SimpleNamespace(
        add=lambda local, trajectory: (*local, trajectory),
        sample_steps=lambda local, key: SimpleNamespace(observation=jnp.arange(12).reshape(3, 2, 2)),
    )
    normalizer = SimpleNamespace(update=lambda statistics, observation: (*statistics, observation))
    awr = with_parts(replay=replay, normalizer=normalizer)
    rollout = Trajectory(SimpleNamespace(observation="seen"), ())
    agent = awr.observe(Agent(OnPolicyShared(None, None, ()), ()), rollout)
    assert (agent.shared.statistics, agent.local) == (("seen",), (rollout,))
    # Windows of three steps, two of them, side by side.
    assert awr.observations(agent, rollout, None).tolist() == np.arange(12).reshape(6, 2).tolist()
