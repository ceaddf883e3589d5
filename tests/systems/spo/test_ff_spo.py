import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation, RolloutState
from stoix_like.systems.spo.smc import SearchedStep
from stoix_like.utils.replay import SequenceBatch, Step
from support.algorithms import make_algorithm
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
    shared = spo.init(jax.random.key(0), timestep([0] * 4, [False] * 4)).shared
    zero = jax.tree.map(jnp.zeros_like, shared.params.networks)
    # Values of 1 for the targets.
    layers = zero.target.critic_params["params"]
    dense = layers["critic_head"]["Dense_0"]
    head = {"critic_head": {"Dense_0": dense | {"bias": dense["bias"] + 1.0}}}
    zero = zero._replace(target=zero.target._replace(critic_params={"params": layers | head}))
    shared = shared._replace(params=shared.params._replace(networks=zero))
    nothing, no = jnp.zeros((2, 1)), jnp.zeros((2, 1), bool)
    found = SearchedStep(jnp.asarray([[[0, 1, 1]]] * 2), jnp.full((2, 1, 3), 1.0 / 3.0), jnp.zeros((2, 1, 3)))
    view = Observation(jnp.zeros((2, 1, 1)))
    compute = jax.jit(spo.loss)
    for truncated, squares in ((False, 3.25**2 + 4.5**2), (True, 1.5**2 + 4.5**2)):
        ends = no.at[0].set(truncated)
        steps = Step(view, nothing, jnp.asarray([[1.0], [4.0]]), no, ends, view, found)
        batch = SequenceBatch(steps, no, (), jnp.ones((1, 1)), None)
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
    shared = spo.init(jax.random.key(0), state.timestep).shared
    views = Observation(
        3.0 + 5.0 * jax.random.normal(jax.random.key(1), (8, *state.timestep.observation.agent_view.shape))
    )
    shared = shared._replace(statistics=spo.normalizer.update(shared.statistics, views))
    _, value = spo.search(shared, state, jax.random.key(2), 4)
    observation = spo.normalizer.apply(shared.statistics, state.timestep.observation)
    np.testing.assert_allclose(value, spo.networks.value(shared.params.networks.online, observation), rtol=1e-5)
    assert abs(observation.agent_view - state.timestep.observation.agent_view).min() > 0.1


def test_evaluations_without_particles_act_by_the_policy():
    spo, setup = prepare("system.evaluation_particles=0")
    system = setup.build_system()
    assert system.search is None
    state = RolloutState(None, timestep([0] * 4, [False] * 4), ())
    shared = spo.init(jax.random.key(0), state.timestep).shared
    _, action, extras = system.eval_act(shared, state, jax.random.key(1))
    np.testing.assert_array_equal(action, system.inspect(shared, state.timestep.observation).policy.mode())
    assert extras == ()
