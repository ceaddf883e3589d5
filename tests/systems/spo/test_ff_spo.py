import dataclasses

import jax
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation, RolloutState
from stoix_like.systems.spo.smc import SearchedStep
from stoix_like.utils.replay import SequenceBatch, Step
from support.algorithms import make_algorithm
from support.compiled import run
from support.off_policy_runs import timestep
from support.set_ups import setup_of

SMALL = [
    *("system=spo/ff_spo", "arch.total_num_envs=4", "arch.num_devices=1", "system.num_particles=4"),
    *("system.rollout_length=4", "system.sequence_length=4", "system.sequence_period=4", "system.warmup_steps=4"),
    *("system.total_batch_size=4", "system.epochs=1", "system.total_buffer_size=64"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[8]" for name in ("actor", "critic")),
]


def prepare(*overrides):
    setup = setup_of(*SMALL, "env=probe/policy", *overrides)
    return make_algorithm(setup, axes=Axes()), setup


def test_losses_are_those_of_the_weights_and_of_lambda_returns():
    """A network of zeros has a uniform policy, of cross-entropy log 2, and values of 0; those of the targets are 1.

    With lambda 1 and gamma 0.5, the returns of the rewards 1 and 4 are 1 + 4.5/2 and 4 + 1/2; where the first step is
    truncated, that is 1 + 1/2. Equal advantages leave the loss of the temperature at epsilon times the temperature,
    0.5.
    """
    spo, _ = prepare("system.gamma=0.5", "system.gae_lambda=1", "system.epsilon=0.5")
    shared = run(spo.init, jax.random.key(0), timestep([0] * 4, [False] * 4)).shared
    zero = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shared.params.networks)
    # Values of 1 for the targets.
    layers = zero.target.critic_params["params"]
    dense = layers["critic_head"]["Dense_0"]
    head = {"critic_head": {"Dense_0": dense | {"bias": dense["bias"] + 1.0}}}
    zero = zero._replace(target=zero.target._replace(critic_params={"params": layers | head}))
    shared = shared._replace(params=shared.params._replace(networks=zero))
    nothing, no = np.zeros((2, 1), np.float32), np.zeros((2, 1), bool)
    found = SearchedStep(np.array([[[0, 1, 1]]] * 2), np.full((2, 1, 3), 1.0 / 3.0), np.zeros((2, 1, 3)))
    view = Observation(np.zeros((2, 1, 1)))
    compute = jax.jit(spo.loss)
    for truncated, squares in ((False, 3.25**2 + 4.5**2), (True, 1.5**2 + 4.5**2)):
        steps = Step(view, nothing, np.array([[1.0], [4.0]]), no, np.array([[truncated], [False]]), view, found)
        batch = SequenceBatch(steps, no, (), np.ones((1, 1)), None)
        loss, metrics = compute((zero.online, shared.params.duals), shared, batch, jax.random.key(1))
        assert float(metrics["value_loss"]) == pytest.approx(0.25 * squares)
        # The penalty is zero, and the multiplier costs its bound.
        bound = spo.config.duals.init_alpha * spo.config.duals.epsilon_policy
        assert float(metrics["policy_loss"]) == pytest.approx(np.log(2.0) + bound, rel=1e-4)
        assert float(loss) == pytest.approx(np.log(2.0) + bound + 0.5 + 0.25 * squares, rel=1e-4)


def test_searches_normalise_observations():
    spo, _ = prepare("system.normalize_observations=true")
    spo = dataclasses.replace(
        spo, searcher=lambda networks, temperature, key, state, observation, *_: networks(observation)
    )
    state = RolloutState(None, timestep([1] * 4, [False] * 4), ())
    seen = state.timestep.observation

    @jax.jit
    def search(key):
        shared = spo.init(key, state.timestep).shared
        views = Observation(3.0 + 5.0 * jax.random.normal(key, (8, *seen.agent_view.shape)))
        shared = shared._replace(statistics=spo.normalizer.update(shared.statistics, views))
        observation = spo.normalizer.apply(shared.statistics, seen)
        value = spo.networks.value(shared.params.networks.online, observation)
        return spo.search(shared, state, key, 4)[1], value, observation.agent_view

    found, value, view = search(jax.random.key(0))
    np.testing.assert_allclose(found, value, rtol=1e-5)
    assert np.abs(np.asarray(view) - np.asarray(seen.agent_view)).min() > 0.1


def test_evaluations_without_particles_act_by_the_policy():
    spo, setup = prepare("system.evaluation_particles=0")
    system = setup.build_system()
    assert system.search is None
    state = RolloutState(None, timestep([0] * 4, [False] * 4), ())

    @jax.jit
    def act(key):
        shared = spo.init(key, state.timestep).shared
        policy = system.inspect(shared, state.timestep.observation).policy
        return *system.eval_act(shared, state, key)[1:], policy.mode()

    action, extras, expected = act(jax.random.key(0))
    np.testing.assert_array_equal(action, expected)
    assert extras == ()
