import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Agent, OnlineAndTarget, RolloutState, Trajectory, Transition
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.errors import ConfigError
from stoix_like.networks.distributions import Categorical
from stoix_like.systems.mpo.actions import check_bounded, excess, proposals
from support.algorithms import with_methods
from support.compiled import run
from support.off_policy_runs import algorithm, timestep

SMALL = ["system.rollout_length=4", "system.n_step=2", "system.total_batch_size=8"]


@pytest.mark.parametrize("random", [pytest.param(False, marks=pytest.mark.slow), True])
def test_random_actions_of_the_warmup_end_the_trace(random):
    """The policy's own actions keep their log-probabilities; those of a random rollout are unknown, and so infinite.

    One of them may be the policy's own action by chance.
    """
    mpo = algorithm("mpo/ff_mpo", *SMALL, "arch.total_num_envs=2")
    step = timestep([0, 0], [False, False])
    agent = jax.jit(mpo.init)(jax.random.key(0), step)
    keys = jax.random.split(jax.random.key(2), 2)
    _, action, extras = jax.jit(mpo.act)(agent.shared, RolloutState((), step, keys), jax.random.key(1))
    taken = action.at[1].add(0.5) if random else action
    flags = step.terminated
    steps = Transition(step.observation, taken, step.reward, flags, flags, step.observation, flags, extras)
    agent = jax.jit(mpo.observe)(Agent(*agent), Trajectory(jax.tree.map(lambda x: x[None], steps), ()))
    stored = np.asarray(agent.local.buffer.experience.extras)[:, 0]
    np.testing.assert_allclose(stored, [np.inf, np.inf] if random else extras[1])


@pytest.mark.slow
@pytest.mark.parametrize(("extras", "loss"), [([np.inf, 0.0], 5.3125), ([0.0, np.inf], 4.5)])
def test_critics_learn_the_retrace_returns_of_the_targets(extras, loss):
    """The successors have the value 3/4 * 0 + 1/4 * 4 = 1, and the actions 3, where the critic has 5.

    With gamma = lambda = 1, the last return is 1 + 1 = 2. The second action has the ratio 1/2: the first return is
    1 + 1 + 1/2 (2 - 3) = 3/2, and 2 where its probability is unknown. Half the mean of 3.5² and 3² is 5.3125, and that
    of 3² and 3² is 4.5.
    """
    steps = (2, 1)

    def each(*values):
        return jnp.broadcast_to(jnp.asarray(values)[:, None, None], (2, *steps))

    def evaluate_policy(self, actor_params, q_params, observation, key):
        assert (actor_params, q_params) == ("target", 3.0)
        return None, jnp.log(each(0.75, 0.25)), each(0.0, 4.0)

    mpo = with_methods(
        algorithm("mpo/ff_mpo", *SMALL, "system.gamma=1", "system.retrace_lambda=1"),
        evaluate_policy=evaluate_policy,
        q_value=lambda self, q_params, observation, action: jnp.full(steps, q_params),
    )
    half = SimpleNamespace(log_prob=lambda action: jnp.full(steps, np.log(0.5)))
    mpo = dataclasses.replace(mpo, actor=SimpleNamespace(apply=lambda params, observation: half))
    params = SimpleNamespace(actor_params=OnlineAndTarget("online", "target"), q_params=OnlineAndTarget(5.0, 3.0))
    never = jnp.zeros(steps, bool)
    flags = {"terminated": never, "truncated": never, "is_first": never}
    batch = Transition(None, None, jnp.ones(steps), **flags, next_observation=None, extras=jnp.asarray(extras)[:, None])
    assert float(mpo.critic_loss(5.0, params, batch, None)[0]) == pytest.approx(loss)


@pytest.mark.slow
def test_penalised_actions_lose_weight():
    """Four actions of equal value, one of them out of bounds: it has the least weight, and each objective sums to 1."""
    penalised = [*SMALL, "system.action_penalty=true", "system.init_temperature=0.1"]
    with pytest.raises(ConfigError, match="NormalAffineTanhDistributionHead draws none"):
        algorithm("mpo/ff_mpo", *penalised)
    head = "network.actor_network.action_head._target_=stoix_like.networks.heads.MultivariateNormalDiagHead"
    mpo = algorithm("mpo/ff_mpo", *penalised, head)
    duals = jax.jit(mpo.init)(jax.random.key(0), timestep([0], [False])).shared.params.duals
    action = jnp.asarray([0.1, -0.5, 0.9, 1.2])[:, None, None]
    loss, weights = mpo.weigh(duals, action, jnp.zeros((4, 1)), jnp.zeros((4, 1)))
    np.testing.assert_allclose(weights.sum(), 2.0, rtol=1e-5)
    # exp(-0.2 / 0.1) for the excess of 0.2.
    inside = 1.0 / (3.0 + np.exp(-2.0))
    np.testing.assert_allclose(weights[:, 0], 0.25 + inside * np.array([1.0, 1.0, 1.0, np.exp(-2.0)]), rtol=1e-4)
    assert np.isfinite(loss)


def test_all_discrete_actions_stand_for_a_policy_by_their_probabilities():
    probs = jnp.asarray([[0.2, 0.8], [1.0, 0.0]])
    action, log_prior = run(proposals, Discrete(2), Categorical(probs=probs), 16, jax.random.key(0))
    np.testing.assert_array_equal(action, [[0, 0], [1, 1]])
    np.testing.assert_allclose(jax.nn.softmax(log_prior, axis=0), probs.T, rtol=1e-6)


def test_the_penalty_is_the_distance_from_the_bounds_in_units_of_half_the_range():
    """In [-2, 2], (4, 0) is one half-width beyond; in (3, 4) of half-widths, the distance is 5."""
    space = Box(-2.0, 2.0, (2,))
    np.testing.assert_allclose(
        run(excess, space, jnp.asarray([[1.0, -2.0], [4.0, 0.0], [-8.0, 10.0]])), [0.0, 1.0, 5.0]
    )
    with pytest.raises(ConfigError, match="system.action_penalty=true needs continuous actions with bounds"):
        check_bounded(Discrete(2))
    with pytest.raises(ConfigError, match="use false"):
        check_bounded(Box(-np.inf, np.inf, (2,)))
