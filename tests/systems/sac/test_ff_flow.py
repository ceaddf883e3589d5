from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from stoix_like.base_types import Observation, OnlineAndTarget
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.systems.sac.sac_types import SACParams
from stoix_like.utils.replay import Batch
from support.algorithms import make_algorithm
from support.compiled import run
from support.off_policy_runs import algorithm, set_up_small
from support.set_ups import trained

OBSERVATION = Observation(jnp.zeros((3, 1)))
PARAMS = SACParams(0.0, OnlineAndTarget(0.0, 0.0), 0.0)


def flow_of(critic, *overrides):
    """Return the system with a flow of velocity zero and critics of the action alone."""
    sizes = ["system.autotune=false", "system.ent_coef=0.5", "system.flow_steps=2", *overrides]
    return replace(
        algorithm("sac/ff_flow", *sizes),
        actor=SimpleNamespace(apply=lambda params, observation, inputs: 0.0 * inputs["action"][:, :1]),
        critics=SimpleNamespace(
            apply=lambda params, observation, inputs, rngs: critic(inputs["action"]) + jnp.zeros((1, 2))
        ),
    )


@pytest.mark.slow
def test_origins_are_normal_around_the_place_within_the_bounds():
    """From x at t: around x / t with the deviation (1 - t) / t."""
    place, time = jnp.asarray([[0.2], [-1.5], [0.5]]), jnp.asarray([[0.25], [0.5], [0.8]])
    flow = flow_of(lambda action: 0.0 * action, "system.num_samples=4000")
    drawn = run(flow.draw_origins, jax.random.key(0), place, time)[..., 0]
    centre, deviation = place[:, 0] / time[:, 0], (1 - time[:, 0]) / time[:, 0]
    exact = scipy.stats.truncnorm((-1 - centre) / deviation, (1 - centre) / deviation, centre, deviation)
    np.testing.assert_allclose(drawn.mean(0), exact.mean(), atol=0.03)
    np.testing.assert_allclose(drawn.std(0), exact.std(), atol=0.03)


@pytest.mark.parametrize("temperature", [0.5, 0.0])
def test_the_flow_learns_the_mean_of_weighted_actions(temperature):
    """Values of 200 at actions above 0.5, at a low temperature, leave only these: the loss is that of their mean."""
    sizes = "system.num_samples=2000", f"system.ent_coef={temperature}"
    flow = flow_of(lambda action: 200.0 * (action > 0.5), *sizes)
    key, ones = jax.random.key(1), jnp.asarray([1.0, 0.0, 2.0])
    batch = Batch(OBSERVATION, jnp.zeros((3, 1)), ones, ones, OBSERVATION, ones, None)
    loss, _ = run(flow.actor_loss, 0.0, PARAMS, batch, key)
    keys = jax.random.split(key, 5)
    action = np.clip(jax.random.normal(keys[0], (3, 1)), -1, 1)
    time = np.asarray(jax.random.uniform(keys[1], (3,), None, 1e-3, 1 - 1e-3))[:, None]
    place = (1 - time) * np.asarray(jax.random.normal(keys[2], (3, 1))) + time * action
    drawn = np.asarray(run(flow.draw_origins, keys[3], place, time))
    above = drawn > 0.5
    mean = (drawn * above).sum(0) / above.sum(0)
    np.testing.assert_allclose(loss, np.mean(np.asarray(ones)[:, None] * ((mean - place) / (1 - time)) ** 2), rtol=1e-4)


def test_a_greedy_policy_takes_an_action_where_the_density_is_large():
    """Two steps of the velocity sign(x) / 2 - x end at (x + 3 sign(x) / 2) / 4: two modes, and nothing between them."""
    flow = flow_of(None, "system.num_candidates=64")

    def velocity(params, observation, inputs):
        place = inputs["action"][:, :1]
        return jnp.sign(place) / 2 - place

    flow = replace(flow, actor=SimpleNamespace(apply=velocity))
    mode = np.asarray(run(lambda: flow.pi(PARAMS, OBSERVATION).mode()))
    assert (mode == mode[:1]).all()
    assert 0.375 < abs(mode[0, 0]) < 0.375 + 0.125


def test_actions_without_bounds_are_refused():
    with pytest.raises(ConfigError, match="system=sac/ff_flow draws .* use system=sac/ff_sac, or set bounds"):
        make_algorithm(set_up_small("sac/ff_flow"), action_space=Box(-np.inf, np.inf, (1,)))


@pytest.mark.learn
@pytest.mark.parametrize(("system", "low", "high"), [("flow", 0.8, 1.0), ("sac", 0.0, 0.55)])
def test_two_goals_need_a_policy_with_two_modes(system, low, high):
    """The best return is 15/16, and the best of a squashed normal distribution 1/2."""
    loop = trained("+experiment=flow_two_goals", f"system={'sac/ff_' + system}")
    assert low < loop.history[-1]["eval/episode_return_mean"] < high
