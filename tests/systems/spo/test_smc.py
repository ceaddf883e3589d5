import jax
import jax.numpy as jnp
import numpy as np
import pytest
from distrax import Normal

from stoix_like.base_types import EpisodeMetrics, Model, Observation, RolloutState, TimeStep
from stoix_like.networks.distributions import Categorical
from stoix_like.systems.spo.smc import ParticleSearch, draw_systematically
from stoix_like.utils.loss import mpo_temperature_loss
from support.compiled import run
from support.set_ups import config_of

GAMMA, VALUE, K = 0.5, 10.0, 64


def counting_model(terminates, truncates):
    """Return a model whose state counts steps: actions are rewards, and the second step ends the episode, or none."""

    def step(keys, state, action):
        assert len(keys) == len(state) == len(action)
        state = state + 1
        ends, nothing = state == 2, jnp.zeros(state.shape)
        view = Observation(state[:, None].astype(jnp.float32))
        metrics = EpisodeMetrics(nothing, state, ends)
        # What follows the end is undefined.
        reward = jnp.where(state > 2, jnp.nan, action) if terminates or truncates else action
        return state, TimeStep(view, reward.astype(jnp.float32), ends & terminates, ends & truncates, view, metrics)

    return Model(lambda env_state: env_state, step)


def networks(observation):
    """Return a uniform policy over the actions 0 and 1, and a constant value."""
    shape = observation.agent_view.shape[:1]
    return Categorical(logits=jnp.zeros((*shape, 2))), jnp.full(shape, VALUE)


def search(*overrides, terminates=False, truncates=False, temperature=1.0, greedy=False, given=networks, scale=1.0):
    config = config_of("system=spo/ff_spo", *(f"system.{key}" for key in overrides)).system
    model = counting_model(terminates, truncates)
    searcher = ParticleSearch(config.smc, model, GAMMA, scale)
    nothing, no = jnp.zeros((3,)), jnp.zeros((3,), bool)
    view = Observation(jnp.zeros((3, 1)))
    first = TimeStep(view, nothing, no, no, view, EpisodeMetrics(nothing, nothing.astype(jnp.int32), no))
    state = RolloutState(jnp.zeros((3,), jnp.int32), first, ())

    @jax.jit
    def run(key):
        return searcher(given, jnp.float32(temperature), key, state, view, K, greedy)

    return run(jax.random.key(0))


def first_actions(found):
    return np.asarray(found.candidates)


@pytest.mark.parametrize("kind", ["continuing", "truncated", "terminated"])
def test_advantages_bootstrap_at_truncations_and_not_at_terminations(kind):
    """Without resampling, a particle with the rewards a, b, c has the temporal differences

        a + 5 - 10, then b + 5 - 10 or, of a terminated step, b - 10; then c + 5 - 10, or nothing after the end,

    which count 1, 1/2 and 1/4; the advantages of all continuations of a first action lie between two bounds.
    """
    ends = {"terminates": kind == "terminated", "truncates": kind == "truncated"}
    _, found = search("search_depth=3", "resample_period=9", **ends)
    a = first_actions(found)
    second = -10.0 if kind == "terminated" else -5.0
    last = {-1.25, -1.0} if kind == "continuing" else {0.0}
    allowed = np.asarray([0.5 * (b + second) + end for b in (0.0, 1.0) for end in last])
    rest = np.asarray(found.advantages) - (a - 5.0)
    assert np.isclose(rest[..., None], allowed).any(-1).all()
    assert all(np.isclose(rest, value).any() for value in allowed)


def test_weights_are_exponentials_of_advantages():
    """One step: the action 1 has e^(1 / temperature) times the weight of the action 0. It is not resampled after it."""
    output, found = search("search_depth=1", "resample_period=1", temperature=0.5)
    share = first_actions(found).mean(-1)
    expected = np.exp(2.0) * share / (np.exp(2.0) * share + 1.0 - share)
    np.testing.assert_allclose((found.weights * found.candidates).sum(-1), expected, rtol=1e-5)
    np.testing.assert_allclose(output.value, VALUE + (found.weights * found.advantages).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(output.prior_value, VALUE)
    np.testing.assert_array_equal(output.visits, 1)
    # A weight that rounds to 0 leaves the value of a visited action: the advantage is a + 5 - 10.
    output, found = search("search_depth=1", "resample_period=1", temperature=0.005)
    np.testing.assert_allclose(output.action_values, VALUE + first_actions(found) - 5.0, rtol=1e-5)


def test_advantages_are_of_scaled_rewards_and_decay_with_lambda():
    """Two steps with lambda 0: the temporal difference of the first alone, 2 a + 5 - 10."""
    _, found = search("search_depth=2", "resample_period=9", "search_lambda=0", scale=2.0)
    np.testing.assert_allclose(found.advantages, 2.0 * first_actions(found) - 5.0)


@pytest.mark.parametrize("overrides", [["resample_period=1"], ["resampling=ess", "resample_threshold=0.9"]])
def test_resampling_multiplies_particles_of_large_weight(overrides):
    """At a low temperature, all particles after the first step descend from those that took the action 1."""
    output, found = search("search_depth=2", *overrides, temperature=0.05)
    a = first_actions(found)
    assert (np.asarray(output.visits)[a == 0] == 0).all()
    np.testing.assert_array_equal(output.visits.sum(-1), K)
    np.testing.assert_allclose((found.weights * a).sum(-1), 1.0, rtol=1e-5)
    assert np.isnan(np.asarray(output.action_values)[a == 0]).all()
    assert np.isfinite(np.asarray(output.action_values)[np.asarray(output.visits) > 0]).all()


def test_resampling_leaves_the_advantages_that_the_temperature_learns_from():
    """Each place has the gain of its own first action, and half of that of whoever took its second: 0 - 5 or 1 - 5."""
    output, found = search("search_depth=2", "resample_period=1", temperature=0.05)
    a = first_actions(found)
    assert (np.asarray(output.visits)[a == 0] == 0).all()
    rest = np.asarray(found.advantages) - (a - 5.0)
    assert np.isclose(rest[..., None], [-2.5, -2.0]).any(-1).all()
    # The weights of the last step stay: first actions that only the action 0 follows have e^-10 times those of others.
    assert (np.asarray(found.weights)[output.visits > 0] < 1e-5).any()
    np.testing.assert_allclose(np.nansum(found.weights * output.action_values, axis=-1), output.value, rtol=1e-6)
    # The values are those of the survivors, who all took the action 1.
    assert ((np.asarray(output.value) - VALUE >= -4.0 - 2.5) & (np.asarray(output.value) - VALUE <= -4.0 - 2.0)).all()


@pytest.mark.slow
def test_the_learned_temperature_keeps_the_bound():
    """First actions are standard normal and are their own advantages, so that weights diverge by 1 / (2 eta^2) nats.

    The bound of 0.5 nats asks for the temperature 1, or a little less for 16 particles. They diverge a little more,
    because survivors are whole numbers. Their advantages alone would drive the temperature to zero.
    """

    def step(keys, state, action):
        nothing, no = jnp.zeros(state.shape), jnp.zeros(state.shape, bool)
        view, reward = Observation(nothing[:, None]), jnp.where(state == 0, action, 0.0)
        return state + 1, TimeStep(view, reward, no, no, view, None)

    def standard_normal(observation):
        zero = jnp.zeros(observation.agent_view.shape[:1])
        return Normal(zero, jnp.ones_like(zero)), zero

    config = config_of("system=spo/ff_spo", "system.resample_period=2", "system.epsilon=0.5").system
    model = Model(lambda env_state: env_state, step)
    searcher = ParticleSearch(config.smc, model, 1.0, 1.0)
    view, nothing, no = Observation(jnp.zeros((256, 1))), jnp.zeros((256,)), jnp.zeros((256,), bool)
    state = RolloutState(jnp.zeros((256,), jnp.int32), TimeStep(view, nothing, no, no, view, None), ())

    def learn(temperature, key):
        _, found = searcher(standard_normal, temperature, key, state, view, config.smc.num_particles, False)
        dual = lambda eta: mpo_temperature_loss(found.advantages.T, eta, config.duals.epsilon)[0]  # noqa: E731
        return temperature * jnp.exp(-0.2 * jax.grad(dual)(temperature)), found.weights

    learned, weights = jax.jit(lambda keys: jax.lax.scan(learn, jnp.float32(1.0), keys))(
        jax.random.split(jax.random.key(0), 60)
    )
    assert 0.8 < float(learned) < 1.0
    last = np.asarray(weights[-1])
    divergence = np.mean(np.sum(last * np.log(np.maximum(last * config.smc.num_particles, 1e-9)), axis=-1))
    assert 0.5 < divergence < 0.8


def test_particles_of_similar_weights_are_not_resampled():
    output, _ = search("search_depth=2", "resampling=ess", temperature=100.0)
    np.testing.assert_array_equal(output.visits, 1)


def test_a_greedy_search_takes_the_action_of_the_largest_weight_in_all():
    """The weights of equal actions add up: a strong preference of the policy for 0 outweighs the advantage of 1."""

    def prefers_zero(observation):
        shape = observation.agent_view.shape[:1]
        return Categorical(logits=jnp.tile(jnp.asarray([[3.0, 0.0]]), (*shape, 1))), jnp.full(shape, VALUE)

    output, found = search("search_depth=1", greedy=True, given=prefers_zero)
    assert (first_actions(found) == 1).any()
    np.testing.assert_array_equal(output.action, 0)
    np.testing.assert_array_equal(search("search_depth=1", greedy=True)[0].action, 1)


def test_systematic_draws_are_proportional():
    weight = jnp.asarray([[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0], [0.3, 0.3, 0.3, 0.1]])
    for seed in range(5):
        drawn = run(draw_systematically, jax.random.key(seed), weight)
        counts = np.asarray([[np.sum(row == i) for i in range(4)] for row in np.asarray(drawn)])
        np.testing.assert_array_equal(counts[:2], [[2, 1, 1, 0], [0, 0, 4, 0]])
        assert (np.abs(counts[2] - 4 * np.asarray(weight[2])) < 1.0).all()
