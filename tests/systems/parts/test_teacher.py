from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Axes, Observation, SystemSpec
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.networks.distributions import Categorical, Deterministic
from stoix_like.systems.parts.teacher import Kickstarting, Teacher, make_lessons
from support.compiled import run


def policy(params, observation):
    """Prefer action 1 by `params` times the view."""
    logit = params * observation.agent_view[:, 0]
    return Categorical(jnp.stack([jnp.zeros_like(logit), logit], axis=-1))


def lessons(**values):
    spec = SystemSpec(Box(0, 1, (1,)), Discrete(2), SimpleNamespace(), Axes(), 4, 2, 1, True)
    config = Kickstarting(**{"teacher": "runs/teacher", "teacher_coef": 2.0, "final_teacher_coef": 1.0, **values})
    return make_lessons(config, spec._replace(teacher=Teacher(policy, jnp.asarray(50.0), Discrete(2))))


VIEWS = Observation(jnp.asarray([[1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]])[..., None])


def test_actions_are_those_of_the_teacher_and_weights_follow_the_run():
    """After one of four updates, a quarter of the way from 2 to 1."""
    taught = lessons()
    count, (action, weight) = run(taught.ask, taught.init() + 1, VIEWS, jax.random.key(0))
    assert count == 2
    assert np.array_equal(action, [[1, 0], [0, 0], [1, 1]])
    assert np.all(np.asarray(weight) == 1.75)
    assert run(taught.ask, jnp.asarray(9), VIEWS, jax.random.key(0))[1][1][0, 0] == 1.0


def test_the_loss_has_the_cross_entropy_of_its_actions():
    """With probabilities 1/4 and 3/4 of the actions 1 and 0: (2 log 4 + 1 log(4/3)) / 2."""
    student = Categorical(jnp.log(jnp.asarray([[0.75, 0.25], [0.75, 0.25]])))
    loss, metrics = lessons().add(jnp.asarray(1.0), {}, student, (jnp.asarray([1, 0]), jnp.asarray([2.0, 1.0])))
    np.testing.assert_allclose(loss, 1.0 + (2 * np.log(4) + np.log(4 / 3)) / 2, rtol=1e-6)
    np.testing.assert_allclose(metrics["teacher_cross_entropy"], (np.log(4) + np.log(4 / 3)) / 2, rtol=1e-6)


def test_labels_are_the_most_likely_actions():
    teacher = Teacher(policy, jnp.asarray(0.01), Discrete(2))
    assert np.array_equal(teacher.actions(VIEWS), [[1, 0], [0, 0], [1, 1]])


def test_labels_are_actions_as_the_environment_takes_them():
    """A most likely action of 3 and -1 in a space from -2 to 2, whose environment clips it."""
    space = Box(-2.0, 2.0, (1,))
    teacher = Teacher(lambda _, observation: Deterministic(observation.agent_view), (), space)
    views = Observation(jnp.asarray([[[3.0], [-1.0]]]))
    np.testing.assert_array_equal(teacher.labels(views), [[[2.0], [-1.0]]])
