import dataclasses
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation, OnlineAndTarget
from stoix_like.envs.spaces import Box
from stoix_like.networks.distributions import Categorical
from stoix_like.systems.sac.sac_types import SACParams, TargetCritics, make_ensemble
from stoix_like.utils.loss import sac_actor_loss, sac_critic_loss
from support.off_policy_runs import algorithm, equal, random_batch, timestep, trained

UNMASKED = Observation(jnp.zeros((1, 1)))


FAST = ["system.actor_lr=1e-2", "system.q_lr=1e-2", "system.alpha_lr=1e-2"]


@pytest.fixture(scope="module")
def run():
    """Train a short run with a learned temperature."""
    return trained("sac/ff_sac", *FAST, "arch.total_timesteps=16000", "arch.num_devices=1")


@pytest.mark.slow
def test_policy_reaches_the_optimal_return_and_the_target_entropy(run):
    """The target is -1 nat, the entropy of a uniform distribution on an interval of length e^-1 = 0.37."""
    metrics = run.history[-1]
    assert metrics["eval/episode_return_mean"] == pytest.approx(0.0, abs=0.05)
    assert run.advance(50)["train/entropy"] == pytest.approx(-1.0, abs=0.4)


def test_temperature_decreases_above_the_target_entropy_and_increases_below():
    """A gradient step lowers the temperature where the gradient is positive."""
    sac = algorithm("sac/ff_sac")
    for entropy, sign in ((0.5, 1.0), (-3.0, -1.0)):
        target = sac.target_entropy(UNMASKED)
        gradient, _ = jax.grad(sac.config.temperature.dual_loss, has_aux=True)(
            jnp.zeros(()), jnp.asarray(entropy), target
        )
        assert float(gradient) * sign > 0.0


@pytest.mark.slow
def test_losses_equal_those_of_the_paper(run):
    """With weights of zero for the second half of the batch, the losses are half of the paper's for the first half."""
    sac, params, batch, key = algorithm("sac/ff_sac"), run.state.shared.params, random_batch(32), jax.random.key(4)
    alpha = sac.temperature(params)
    half = jax.tree.map(lambda x: x[:16], batch)
    batch = batch._replace(weight=jnp.where(jnp.arange(32) < 16, 1.0, 0.0))

    def sampled(observation, q_params):
        action, log_prob = sac.actor.apply(params.actor_params, observation).sample_and_log_prob(seed=key)
        q = sac.critics.apply(q_params, observation, {"action": action})
        return q[:16], log_prob[:16]

    q_t, log_prob_t = sampled(batch.next_observation, params.q_params.target)
    q_tm1 = sac.critics.apply(params.q_params.online, half.observation, {"action": half.action})
    expected = sac_critic_loss(q_tm1, half.reward, half.discount, q_t, log_prob_t, alpha)
    # The mean is over all 32 items.
    loss, _ = sac.critic_loss(params.q_params.online, params, batch, key)
    assert float(loss) == pytest.approx(float(expected) / 2, rel=1e-4)

    q, log_prob = sampled(batch.observation, params.q_params.online)
    loss, _ = sac.actor_loss(params.actor_params, params, batch, key)
    assert float(loss) == pytest.approx(float(sac_actor_loss(log_prob, q, alpha)) / 2, rel=1e-4)


def test_target_entropy_scales_with_the_action_range():
    """The target is -1 nat on [-1, 1]; in a range k times as wide, the same policy has log k nats more."""
    assert algorithm("sac/ff_sac").target_entropy(UNMASKED) == pytest.approx(-1.0)
    wide = ["env=gymnax/pendulum", "env.rescale_actions=false"]
    # Torques are in [-2, 2].
    assert algorithm("sac/ff_sac", *wide).target_entropy(UNMASKED) == pytest.approx(-1.0 + math.log(2.0))
    # Unbounded actions have unit 1, like those in [-1, 1].
    unbounded = dataclasses.replace(algorithm("sac/ff_sac"), action_space=Box(-np.inf, np.inf, (2,)))
    assert float(unbounded.target_entropy(UNMASKED)) == -2.0


@pytest.mark.slow
def test_policy_updates_every_policy_frequency_steps_and_targets_at_every_step(run):
    sac = algorithm("sac/ff_sac", "system.policy_frequency=3")
    sgd_step, batch = jax.jit(sac.sgd_step), random_batch(32)
    states = [run.state.shared._replace(steps=jnp.zeros((), jnp.int32))]
    for step in range(4):
        states.append(sgd_step(states[-1], batch, jax.random.key(step))[0])
    changed = [
        [not equal(getattr(old.params, part), getattr(new.params, part)) for old, new in itertools.pairwise(states)]
        for part in ("q_params", "actor_params", "log_alpha")
    ]
    assert changed == [[True] * 4, [False, False, True, False], [False, False, True, False]]
    for old, new in itertools.pairwise(shared.params.q_params for shared in states):
        expected = jax.tree.map(lambda target, online: target + 0.05 * (online - target), old.target, new.online)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), new.target, expected)


def test_discrete_soft_values_match_hand_computed_values():
    """Two actions with probabilities 1/4 and 3/4, temperature 2.

    v = (1/4) min(1, 3) + (3/4) min(5, 2) + 2 h,   h = (1/4) log 4 + (3/4) log(4/3) = 0.5623
    = 0.25 + 1.5 + 1.1247 = 2.8747
    """
    fixed = ["system.autotune=false", "system.ent_coef=2.0", "system.target_entropy_scale=0.98"]
    sac = algorithm("sac/ff_sac_discrete", "env=probe/policy", *fixed)
    assert sac.target_entropy(UNMASKED) == pytest.approx(0.98 * math.log(2.0))

    class Constant:
        def __init__(self, output):
            self.apply = lambda params, observation, rngs=None: output

    q = jnp.asarray([[[1.0, 3.0], [5.0, 2.0]]])
    fixed = replace(
        sac,
        actor=Constant(Categorical(probs=jnp.asarray([[0.25, 0.75]]))),
        critics=Constant(SimpleNamespace(preferences=q)),
    )
    params = SimpleNamespace(actor_params=None)
    value, log_prob = fixed.evaluate_policy(params, None, None, jax.random.key(0))
    np.testing.assert_allclose(value, [[1.75, 1.75]])
    assert float(log_prob[0]) == pytest.approx(-0.56234, rel=1e-4)
    batch = SimpleNamespace(observation=None, weight=jnp.ones(1))
    params = SACParams(None, OnlineAndTarget(None, None), jnp.zeros(()))
    loss, _ = fixed.actor_loss(None, params, batch, jax.random.key(0))
    assert float(loss) == pytest.approx(-2.87467, rel=1e-4)
    taken = fixed.q_taken(None, SimpleNamespace(observation=None, action=jnp.asarray([1])), jax.random.key(0))
    assert taken.tolist() == [[5.0, 2.0]]


def test_targets_come_from_random_pairs_of_critics():
    """Three critics have three pairs, each drawn with probability 1/3; the policy then maximises their mean."""
    ensemble = make_ensemble(TargetCritics(num_target_critics=2), 3)
    q = jnp.asarray([[1.0, 2.0, 3.0], [6.0, 5.0, 4.0]])
    targets = jax.jit(jax.vmap(ensemble.target, in_axes=(None, 0)))(q, jax.random.split(jax.random.key(0), 3000))
    assert (targets == targets[..., :1]).all()
    # Critics 0 and 1, 0 and 2, or 1 and 2, the same for all rows of a batch.
    pairs, counts = np.unique(np.asarray(targets[..., 0]), axis=0, return_counts=True)
    assert pairs.tolist() == [[1.0, 4.0], [1.0, 5.0], [2.0, 4.0]]
    # The standard error of a share is sqrt(2 / 9 / 3000) = 0.009.
    np.testing.assert_allclose(counts / 3000, 1 / 3, atol=0.04)
    np.testing.assert_allclose(ensemble.policy(q), [[2.0], [5.0]])
    for config in (None, TargetCritics(num_target_critics=3)):
        every = make_ensemble(config, 3)
        assert every.target(q, jax.random.key(0)) is q
        assert every.policy(q) is q


@pytest.mark.slow
def test_critics_with_dropout_learn_with_other_masks_than_their_targets():
    """With zero discount and a batch of equal steps, only the dropout masks tell the values of rows apart."""
    sac = algorithm("sac/ff_sac", "network=mlp_droq", "network.q_network.pre_torso.dropout_rate=0.5")
    params = jax.jit(sac.init)(jax.random.key(0), timestep([0], [False])).shared.params
    batch = jax.tree.map(lambda x: jnp.repeat(x[:1], 8, axis=0), random_batch(8))
    key, observation = jax.random.key(1), batch.observation
    taken = sac.q_taken(params.q_params.online, batch, key)
    same = sac.q_values(params.q_params.online, observation, batch.action, key)
    assert len(np.unique(taken[:, 0])) > 1
    assert not np.allclose(taken, same)
