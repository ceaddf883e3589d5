import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Agent, Axes, Observation, SearchOutput
from stoix_like.networks.distributions import Categorical
from stoix_like.systems.search.anakin.ff_mz import LatentNode, MuZero
from stoix_like.systems.search.candidates import Found
from stoix_like.systems.search.planner import SearchShared
from stoix_like.utils.replay import SequenceBatch, Step
from support.algorithms import make_algorithm
from support.compiled import run
from support.set_ups import setup_of

SMALL = [
    *("system.unroll_steps=3", "system.n_step=2", "system.gamma=0.5", "system.total_batch_size=8"),
    "system.normalize_observations=false",
    *(f"network.{name}_network.pre_torso.layer_sizes=[8]" for name in ("representation", "dynamics", "reward")),
    *(f"network.{name}_network.pre_torso.layer_sizes=[8]" for name in ("actor", "critic")),
]


def small_setup(*overrides, system="search/ff_mz", env="gymnax/cartpole"):
    return setup_of(f"system={system}", f"env={env}", *SMALL, *overrides)


@pytest.fixture(scope="module")
def muzero():
    return make_algorithm(small_setup(), axes=Axes())


def batch_of(terminated, truncated, values=(10.0, 20.0, 30.0, 40.0, 50.0)):
    """Return one sequence with the rewards 1, 2, 4, 8, 16; `values` are those of the successors."""
    rewards = [1.0, 2.0, 4.0, 8.0, 16.0]
    length = len(rewards)
    flags = (np.array([[step in ends] for step in range(length)]) for ends in (terminated, truncated))
    found = Found(None, np.full((length, 1, 2), 0.5), np.array(values)[:, None])
    view = Observation(np.zeros((length, 1, 4)))
    steps = Step(view, np.zeros((length, 1), np.int32), np.array(rewards)[:, None], *flags, None, found)
    return jax.device_put(SequenceBatch(steps, np.zeros((length, 1), bool), (), np.ones((1, 1)), None))


# With three unrolled steps, two rewards per target and gamma = 1/2, G_k = r_k + r_{k+1} / 2 + v_{k+1} / 4.
TARGETS = {
    # 1 + 1 + 5, 2 + 2 + 7.5, 4 + 4 + 10, 8 + 8 + 12.5
    "no end": ((), (), [7.0, 11.5, 18.0, 28.5], [1, 1, 1, 1], [1, 2, 4], [1, 1, 1], [1, 1, 1, 1]),
    # G_1 = 2, G_0 = 1 + 2 / 2, and nothing after it, in an absorbing state that is learned.
    "terminated": ((1,), (), [2.0, 2.0, 0.0, 0.0], [1, 1, 1, 1], [1, 2, 0], [1, 1, 1], [1, 1, 0, 0]),
    # G_1 = 2 + 20 / 2, G_0 = 1 + G_1 / 2, and the true successor has the value 20; behind it nothing is learned.
    "truncated": ((), (1,), [7.0, 12.0, 20.0, None], [1, 1, 1, 0], [1, 2, None], [1, 1, 0], [1, 1, 0, 0]),
    # The first end counts: what comes after it belongs to other episodes.
    "both": ((0,), (2,), [1.0, 0.0, 0.0, 0.0], [1, 1, 1, 1], [1, 0, 0], [1, 1, 1], [1, 0, 0, 0]),
    "truncated first": ((1,), (0,), [6.0, 10.0, None, None], [1, 1, 0, 0], [1, None, None], [1, 0, 0], [1, 0, 0, 0]),
    # A value after the last unrolled step: G_3 = 8 + 40 / 2, G_2 = 4 + G_3 / 2.
    "last": ((), (3,), [7.0, 11.5, 18.0, 28.0], [1, 1, 1, 1], [1, 2, 4], [1, 1, 1], [1, 1, 1, 1]),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_end_with_the_episode(muzero, name):
    terminated, truncated, value, has_value, reward, has_reward, has_policy = TARGETS[name]
    targets = jax.device_get(run(muzero.targets, batch_of(terminated, truncated)))
    np.testing.assert_array_equal(targets.has_value[:, 0], np.asarray(has_value, bool))
    np.testing.assert_array_equal(targets.has_reward[:, 0], np.asarray(has_reward, bool))
    np.testing.assert_array_equal(targets.has_policy[:, 0], np.asarray(has_policy, bool))
    for actual, expected in ((targets.value, value), (targets.reward, reward)):
        learned = [(float(x), y) for x, y in zip(actual[:, 0], expected, strict=True) if y is not None]
        assert [x for x, _ in learned] == pytest.approx([y for _, y in learned])


def test_values_change_sign_where_players_take_turns(muzero):
    """G_0 = 1 - 2 / 2 + 20 / 4, and the successor of a truncated step is the other player's: 2 - 20 / 2 = -8."""
    turns = dataclasses.replace(muzero, discount=-muzero.discount)
    first, cut = (np.asarray(run(turns.targets, batch_of((), ends)).value) for ends in ((), (1,)))
    assert first[0, 0] == pytest.approx(5.0)
    assert cut[:3, 0].tolist() == pytest.approx([1.0 + 4.0, -8.0, 20.0])


@pytest.mark.slow
def test_games_for_two_have_a_negative_discount():
    setup = small_setup()
    muzero = make_algorithm(setup, num_players=2)
    assert muzero.discount == -0.5
    params = run(muzero.model.init, jax.random.key(1), Observation(jnp.ones((3, 4))))
    node = LatentNode(jnp.ones((3, 8)), None)
    output, _ = run(muzero.simulation.step, (params, ()), jax.random.key(0), jnp.zeros(3, jnp.int32), node)
    np.testing.assert_allclose(output.discount, -0.5)


class Known:
    """A model of latent states `[..., 1]` whose losses are known: 1, 2, 3, … in the unrolled states."""

    def represent(self, params, observation):
        return params * jnp.ones((len(observation.agent_view), 1))

    def step(self, params, latent, action):
        return latent

    def policy_at(self, params, latent, mask):
        return Categorical(logits=jnp.zeros((*latent.shape[:-1], 2)))

    def value_at(self, params, latent):
        return latent[..., 0]

    def value_loss(self, params, latent, target):
        return latent[..., 0] * jnp.arange(1.0, len(target) + 1)[:, None]

    def clipped(self, params, latent, target):
        return jnp.zeros(target.shape)

    def reward_loss(self, params, latent, target):
        return 0.0 * self.value_loss(params, latent, target) + 1.0


def known_loss(muzero, params, batch):
    stub = dataclasses.replace(muzero, model=Known())
    return run(stub.loss, params, (), batch, jax.random.key(0))


def test_unrolled_losses_have_the_weight_of_one_step_together(muzero):
    """Value losses of 1, 2, 3 and 4 count 1 + (2 + 3 + 4) / 3 = 4, three rewards 1, and four policies 2 log 2."""
    _, (metrics, errors) = known_loss(muzero, 1.0, batch_of((), ()))
    assert float(metrics["value_loss"]) == pytest.approx(4.0)
    assert float(metrics["reward_loss"]) == pytest.approx(1.0)
    assert float(metrics["policy_loss"]) == pytest.approx(2.0 * np.log(2.0))
    assert errors.tolist() == [[pytest.approx(6.0)]]
    halved = batch_of((), ())._replace(weight=jnp.asarray([[0.5]]))
    _, (metrics, _) = known_loss(muzero, 1.0, halved)
    assert [float(metrics[name]) for name in ("value_loss", "reward_loss")] == pytest.approx([2.0, 0.5])
    assert float(metrics["policy_loss"]) == pytest.approx(np.log(2.0))
    # Behind the truncated step 1 is one value, that of its successor; two of three rewards and of four policies stay.
    _, (metrics, _) = known_loss(muzero, 1.0, batch_of((), (1,)))
    assert float(metrics["value_loss"]) == pytest.approx(1.0 + (2.0 + 3.0) / 3.0)
    assert float(metrics["reward_loss"]) == pytest.approx(2.0 / 3.0)
    assert float(metrics["policy_loss"]) == pytest.approx(np.log(2.0) * 4.0 / 3.0)


@pytest.mark.slow
def test_unrolled_policies_know_the_legal_actions_of_the_root_alone(muzero):
    """As in the search: what is never legal later would otherwise never be learned to be so."""
    masks = []

    class Masked(Known):
        def policy_at(self, params, latent, mask):
            masks.append(mask)
            return super().policy_at(params, latent, mask)

    batch = batch_of((), ())
    view = batch.steps.observation._replace(action_mask=jnp.asarray([[[True, False]]] * 5))
    batch = batch._replace(steps=batch.steps._replace(observation=view))
    dataclasses.replace(muzero, model=Masked()).loss(1.0, (), batch, jax.random.key(0))
    np.testing.assert_array_equal(masks[0][:, 0], [[True, False], [True, True], [True, True], [True, True]])


def test_the_gradient_is_halved_at_each_step_of_the_dynamics(muzero):
    """The value losses p, 2 p, 3 p, 4 p have the gradients 1, 2 / 2, 3 / 4 and 4 / 8, the last three divided by 3."""
    gradient = jax.grad(lambda params: known_loss(muzero, params, batch_of((), ()))[0])(1.0)
    assert float(gradient) == pytest.approx(muzero.config.vf_coef * (1.0 + (1.0 + 0.75 + 0.5) / 3.0))


def test_unrolled_states_start_at_the_representation(muzero):
    def unrolled(key):
        observation = Observation(10.0 * jax.random.normal(key, (16, 4)))
        params = muzero.model.init(key, observation)
        latent = muzero.unroll(params, observation, jnp.zeros((3, 16), jnp.int32))
        return muzero.model.represent(params, observation), latent

    first, latent = jax.device_get(run(unrolled, jax.random.key(0)))
    assert latent.shape == (4, 16, 8)
    np.testing.assert_allclose(latent[0], first)
    np.testing.assert_allclose(latent.min(-1), 0.0)
    np.testing.assert_allclose(latent.max(-1), 1.0)


class Searched(MuZero):
    """A search whose policy is the view, and whose value is 1000 times the view."""

    def tree(self, shared, state, observation, key, num_simulations, greedy=False):
        return observation.agent_view[:, 0], None

    def describe(self, root, output):
        return SearchOutput(None, None, None, jnp.stack([root, 1.0 - root], -1), None, None, None, 1000.0 * root)


def two_sequences():
    """Return a batch of two equal sequences, truncated in step 2, whose views are a tenth of the step."""
    batch = jax.tree.map(lambda x: np.concatenate([x, x], axis=1), batch_of((), (2,)))
    views = 0.1 * np.arange(5.0)[:, None, None] * np.ones((5, 2, 4))
    return jax.device_put(batch._replace(steps=batch.steps._replace(observation=Observation(views))))


def searched_again(muzero, **replay):
    """Return MuZero with windows of 5 steps, of one sequence per batch that is searched again."""
    fields = {field.name: getattr(muzero, field.name) for field in dataclasses.fields(muzero)}
    replay = {"unroll_steps": 1, "n_step": 3, "total_reanalyse_size": 1} | replay
    config = dataclasses.replace(muzero.config, replay=dataclasses.replace(muzero.config.replay, **replay))
    assert config.replay.num_steps == 5
    return Searched(**{**fields, "config": config, "reanalyse_size": 1})


@pytest.mark.slow
def test_reanalysed_sequences_have_new_targets(muzero):
    """The first of two sequences is searched again: values are those found in the next step, but after truncation.

    Policies of steps 0 and 1 are learned, and their returns of three rewards end with the values of steps 3 and 4.
    """
    batch = two_sequences()
    replay = SimpleNamespace(sample=lambda local, key, exponent: batch)
    searched = dataclasses.replace(searched_again(muzero), replay=replay)
    found = searched.sample(Agent(SearchShared((), (), (), ()), ()), jax.random.key(0), 1.0).steps.extras
    # Steps 1 and 4 have the values 100 and 400; that of the truncated step 2 stays, and step 2 is not searched.
    np.testing.assert_allclose(found.value[:, 0], [100.0, 20.0, 30.0, 400.0, 50.0], rtol=1e-6)
    np.testing.assert_allclose(found.value[:, 1], [10.0, 20.0, 30.0, 40.0, 50.0])
    np.testing.assert_allclose(found.weights[:, 0, 0], [0.0, 0.1, 0.5, 0.3, 0.4], rtol=1e-6)
    np.testing.assert_allclose(found.weights[:, 1], 0.5)


@pytest.mark.parametrize(("num_unrolled", "n_step"), [(1, 3), (2, 2), (3, 1)])
def test_targets_read_only_steps_that_are_searched_again(muzero, num_unrolled, n_step):
    """Targets are the same whatever was stored: they read the values and policies of the new search alone."""
    searched, batch = searched_again(muzero, unroll_steps=num_unrolled, n_step=n_step), batch_of((), ())

    @jax.jit
    def targets(stored):
        extras = jax.tree.map(lambda x: jnp.full_like(x, stored), batch.steps.extras)
        old = batch._replace(steps=batch.steps._replace(extras=extras))
        new = searched.reanalyse(SearchShared((), (), (), ()), old, jax.random.key(0))
        return searched.targets(new).value, new.steps.extras.weights[: num_unrolled + 1]

    jax.tree.map(np.testing.assert_array_equal, targets(0.0), targets(1e6))


def test_sequences_drawn_by_priority_are_reanalysed_wherever_they_stand(muzero):
    """A batch that is drawn by priority has the order of the buffer: which sequences are searched again is random."""
    batch, searched = two_sequences(), searched_again(muzero, prioritised=True)
    chosen, reanalyse = set(), jax.jit(functools.partial(searched.reanalyse, SearchShared((), (), (), ()), batch))
    for seed in range(16):
        new = np.asarray(reanalyse(jax.random.key(seed)).steps.extras.value)[0] == 100.0
        assert new.sum() == 1
        chosen.add(int(new.argmax()))
    assert chosen == {0, 1}


@pytest.mark.slow
def test_the_root_alone_knows_the_legal_actions(muzero):
    """In the tree, the policy of a latent state has no mask."""
    observation = Observation(jnp.ones((3, 4)), jnp.asarray([[True, False]] * 3))
    params = muzero.model.init(jax.random.key(1), observation)
    root = muzero.simulation.root((params, ()), None, observation, jax.random.key(0))
    assert (root.prior_logits[:, 1] <= jnp.finfo(jnp.float32).min).all()
    output, _ = run(muzero.simulation.step, (params, ()), jax.random.key(0), jnp.zeros(3, jnp.int32), root.embedding)
    assert (output.prior_logits > -10.0).all()
    np.testing.assert_allclose(output.discount, 0.5)
