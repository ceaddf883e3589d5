import warnings

import jax
import numpy as np
import pytest

from stoix_like.envs import make, make_eval
from support import conformance, randomized
from support.lazily import Lazy

pytestmark = pytest.mark.slow
mujoco, brax_envs = map(Lazy, ("mujoco", "brax.envs"))


# The quickest to compile, apart from `fast`, which has no physics.
CHEAP = "inverted_pendulum"


def config(name=CHEAP, **changes):
    return conformance.env_config("brax", name, **changes)


def bare(name, **kwargs):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Brax System", UserWarning)
        return brax_envs.get_environment(name, **kwargs)


@pytest.mark.parametrize("name", [CHEAP, "reacher"])
def test_episode_equals_one_of_brax(name):
    env, reference = make_eval(config(name)), bare(name)
    # Weak actions: the pole falls within 3 steps of strong ones.
    actions = jax.random.uniform(jax.random.key(4), (20, 1, reference.action_size), minval=-0.2, maxval=0.2)
    steps, done = conformance.check_physics(env, reference, actions)
    np.testing.assert_array_equal(steps.terminated[: len(done), 0], done)
    assert not steps.truncated[: len(done), 0].any()
    assert len(done) >= 5


def test_frames_of_a_step_are_an_argument():
    for n_frames in (4, 8):
        env = make_eval(config("hopper", kwargs={"n_frames": n_frames}))
        assert env.unwrapped.env._env.dt == bare("hopper").sys.opt.timestep * n_frames


@pytest.mark.parametrize("backend", ["generalized", "mjx"])
def test_randomised_environments_equal_those_of_brax(backend):
    changes = {"randomization": "support.randomized.gravities", "randomize_evaluation": True}
    env = make_eval(config(kwargs={"backend": backend}, **changes))
    wrapper = brax_envs.wrappers.training.DomainRandomizationVmapWrapper
    inner = bare(CHEAP, backend=backend)
    randomized.assert_same_steps(env, lambda randomize: wrapper(inner, randomize), randomized.gravities)


@pytest.mark.parametrize("backend", ["spring", "positional", "mjx"])
def test_other_backends_run(backend):
    _, _, steps = conformance.rollout(make(config(kwargs={"backend": backend})), 5)
    assert np.isfinite(steps.observation.agent_view).all()
    conformance.check_carry(make_eval(config(kwargs={"backend": backend})))
