from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation, Trajectory, Transition
from stoix_like.systems.parts.mixing import Mixing, make_mixer
from stoix_like.systems.q_learning.anakin.ff_pqn import PQNTransition
from stoix_like.systems.q_learning.anakin.ff_pqn_vdn import ValueDecomposition
from support.compiled import run

NETWORK = SimpleNamespace(apply=lambda params, observation: SimpleNamespace(preferences=observation.agent_view))
CONFIG = SimpleNamespace(reward_scale=1.0, gamma=0.5, q_lambda=0.0)
SUM = make_mixer(Mixing(), 2)
# Two games of two agents: the rows of a game stand together.
SUCCESSOR = jnp.asarray([[1.0, 3.0], [5.0, 2.0], [7.0, 0.0], [1.0, 1.0]])
ENDS = jnp.asarray([False, False, True, True])
OWN, NEVER = [1.0, 2.0, 3.0, 4.0], jnp.zeros(4, bool)


@pytest.mark.parametrize(
    ("team_reward", "reward", "terminated", "second"),
    [(False, OWN, ENDS, 7.0), (True, [3.0, 3.0, 7.0, 7.0], ENDS, 7.0), (False, OWN, NEVER, 11.0)],
    ids=["own", "team", "truncated"],
)
def test_targets_are_those_of_teams(team_reward, reward, terminated, second):
    """With lambda 0: 1 + 2 + (3 + 5) / 2 = 7 for the first game; 3 + 4 for the second, which terminated.

    Truncated, it bootstraps from the true successor: 3 + 4 + (7 + 1) / 2 = 11.
    """
    system = ValueDecomposition(CONFIG, Axes(), NETWORK, None, None, None, 2, team_reward, SUM)
    view, never = Observation(SUCCESSOR[None]), NEVER[None]
    truncated = (ENDS & ~terminated)[None]
    steps = Transition(view, never.astype(int), jnp.asarray([reward]), terminated[None], truncated, view, never, ())
    assert run(system.evaluate, None, Trajectory(steps, ())).target.tolist() == [[7.0, 7.0], [second, second]]


def test_the_loss_is_that_of_sums():
    """Values of the actions (0, 0) and (1, 1): 1 + 5 = 6 and 0 + 1 = 1, targets 7 and 4: (1 / 2 + 9 / 2) / 2 = 2.5."""
    system = ValueDecomposition(CONFIG, Axes(), NETWORK, None, None, None, 2, False, SUM)
    target = jnp.asarray([[7.0, 7.0], [4.0, 4.0]])
    batch = PQNTransition(Observation(SUCCESSOR.reshape(2, 2, 2)), jnp.asarray([[0, 0], [1, 1]]), target)
    loss, metrics = run(system.loss, None, batch)
    assert loss == 2.5
    assert metrics["q_value"] == 3.5


@pytest.mark.slow
def test_targets_and_losses_mix_values_by_qmix():
    """The target of the first game is its reward, 3, plus half the mixed value of the best actions of its successor."""
    mixer = make_mixer(Mixing("qmix", 4), 2)
    params = mixer.init({"params": {}}, jax.random.key(0), SUCCESSOR)
    system = ValueDecomposition(CONFIG, Axes(), NETWORK, None, None, None, 2, False, mixer)
    view, never = Observation(SUCCESSOR[None]), jnp.zeros((1, 4), bool)
    reward = jnp.asarray([[1.0, 2.0, 3.0, 4.0]])
    steps = Transition(view, never.astype(int), reward, ENDS[None], never, view, never, ())
    best = mixer.mix(params, jnp.max(SUCCESSOR, axis=-1), SUCCESSOR, 0)
    target = system.evaluate(params, Trajectory(steps, ())).target
    np.testing.assert_allclose(target[:, 0], [3.0 + 0.5 * best[0], 7.0], rtol=1e-6)
    batch = PQNTransition(Observation(SUCCESSOR.reshape(2, 2, 2)), jnp.zeros((2, 2), int), target)
    loss, _ = system.loss(params, batch)
    chosen = mixer.mix(params, SUCCESSOR[:, 0], SUCCESSOR, 0)
    np.testing.assert_allclose(loss, 0.5 * jnp.mean((chosen - target[:, 0]) ** 2), rtol=1e-6)
    gradient = jax.grad(lambda params: system.loss(params, batch)[0])(params)["params"]["mixer"]
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))
