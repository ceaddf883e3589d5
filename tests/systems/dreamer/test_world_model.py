import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs.spaces import Box, Dict, Discrete, Mixed, MultiDiscrete
from stoix_like.networks.distributions import DiscreteValuedTfpDistribution
from stoix_like.systems.dreamer.returns import imagined_returns, replayed_returns
from stoix_like.systems.dreamer.world_model import make_world_model, no_action
from stoix_like.systems.parts.action_vectors import action_vector
from stoix_like.systems.parts.critic_outputs import two_hot_loss
from stoix_like.utils.replay import Stream
from support.compiled import run
from support.set_ups import setup_of
from support.tiny_dreamer import TINY

OBSERVATION, STARTS = Observation(jnp.ones((2, 4))), jnp.array([False, True])


@pytest.fixture(scope="module")
def tiny():
    """A tiny model of CartPole, with random parameters."""
    setup = setup_of(*TINY, "env=gymnax/cartpole")
    model = make_world_model(setup.config.system.model, setup.spec)
    shapes, draw = jax.eval_shape(model.init, jax.random.key(1), OBSERVATION), np.random.default_rng(1)
    return model, jax.tree.map(lambda leaf: 0.3 * draw.standard_normal(leaf.shape, np.float32), shapes)


@pytest.mark.slow
def test_episodes_start_without_a_memory_of_others(tiny):
    """Two pasts with equal observations; the episode of the first row continues, that of the second one starts."""
    model, params = tiny
    step = jax.jit(lambda latent, action: model.step(params, latent, action, OBSERVATION, STARTS, None).deterministic)
    zeros = model.initial((2,))
    first, second = step(zeros, jnp.array([0, 0])), step(jax.tree.map(lambda x: x + 1.0, zeros), jnp.array([1, 1]))
    assert float(jnp.abs(first[0] - second[0]).max()) > 1e-3
    np.testing.assert_array_equal(first[1], second[1])


def test_latents_come_back_from_the_replay_buffer(tiny):
    model, _ = tiny
    drawn = jax.random.randint(jax.random.key(0), (3, 4), 0, 4)
    latent = model.initial((3,))._replace(stochastic=jax.nn.one_hot(drawn, 4))
    jax.tree.map(np.testing.assert_array_equal, model.restored(model.stored(latent)), latent)


# By hand, two atoms 0 and 2 with logits (0, ln 3): log-probabilities ln 1/4 and ln 3/4. The target 1 has (1/2, 1/2),
# and the target 2 has (0, 1): -(ln 1/4 + ln 3/4) / 2 - 3 ln 3/4.
def test_losses_of_several_targets_are_added_with_their_weights():
    distribution = DiscreteValuedTfpDistribution(jnp.array([0.0, 2.0]), jnp.array([[0.0, math.log(3.0)]]))
    loss = run(two_hot_loss, distribution, jnp.ones(1), jnp.full(1, 2.0), weights=(1.0, 3.0))
    np.testing.assert_allclose(loss, -(math.log(0.25) + math.log(0.75)) / 2 - 3 * math.log(0.75), rtol=1e-6)


@pytest.mark.parametrize(
    "space",
    [
        Discrete(3),
        MultiDiscrete((2, 3)),
        Box(1.0, 4.0, (2,)),
        Box(-np.inf, np.inf, (2,)),
        Mixed(Dict({"force": Box(0.0, 1.0, (1,)), "gear": Discrete(3)})),
    ],
    ids=lambda space: type(space).__name__,
)
def test_no_action_is_a_vector_of_zeros(space):
    action, like = no_action(space), jax.eval_shape(space.sample, jax.random.key(0))
    assert (action.shape, action.dtype) == (like.shape, like.dtype)
    assert not run(action_vector, space, action).any()


def test_imagined_returns_and_weights_follow_the_probability_to_continue():
    """Values 1, 2, 4, rewards 1, 3 and continuations 1, 1/2 behind the start; gamma and lambda are 1/2.

    Discounts 1/2 and 1/4: R_1 = 3 + 4 / 4 = 4, and R_0 = 1 + (2 / 2 + R_1 / 2) / 2 = 2.5. The second step counts as
    much as the first discount, and nothing follows a terminated start.
    """
    reward, continues, value = ([[[x] * 2] for x in column] for column in ([1.0, 3.0], [1.0, 0.5], [1.0, 2.0, 4.0]))
    reward, continues, value = (jnp.array(column)[:, 0] for column in (reward, continues, value))
    returns, weight = run(imagined_returns, reward, continues, value, jnp.array([False, True]), 0.5, 0.5)
    np.testing.assert_allclose(returns, [[2.5, 2.5], [4.0, 4.0]])
    np.testing.assert_allclose(weight, [[1.0, 0.0], [0.5, 0.0]])


@pytest.mark.parametrize(("terminated", "expected"), [(False, [4.5, 7.0, 13.0]), (True, [2.0, 2.0, 13.0])])
def test_replayed_returns_bootstrap_where_an_episode_is_truncated(terminated, expected):
    """Rewards 1, 2 and the end of an episode; then the first entry of another one, and a reward of 3.

    gamma is 1/2, lambda 1, the values of the entries are 9, 9, 10, 9, 20. The last step: 3 + 20 / 2 = 13. Truncated:
    2 + 10 / 2 = 7 and 1 + 7 / 2 = 4.5; terminated: 2 and 1 + 2 / 2 = 2. The last entry of an episode has no return.
    """
    columns = [1, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0.0, 1.0, 2.0, 0.0, 3.0], [9.0, 9.0, 10.0, 9.0, 20.0]
    is_first, is_last, reward, value = (jnp.array(column)[:, None] for column in columns)
    is_last = is_last.astype(bool)
    entries = Stream(Observation(None), None, reward, is_first.astype(bool), is_last, is_last & terminated)
    returns, counts = run(replayed_returns, entries, value, 0.5, 1.0)
    np.testing.assert_array_equal(counts[:, 0], [True, True, False, True])
    np.testing.assert_allclose(returns[counts], expected)
