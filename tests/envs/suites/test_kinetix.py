import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import make_eval
from stoix_like.envs.factory import make_drawn
from stoix_like.envs.spaces import Discrete, MultiDiscrete
from support.conformance import check, draw_start, env_config
from support.lazily import Lazy

pytestmark = pytest.mark.slow

kinetix = Lazy("stoix_like.envs.suites.kinetix")
LEVEL = "s_h4_thrust_aim"


def test_random_levels_differ_between_episodes():
    first, _, _ = check("kinetix", "s_random", 20, params={"max_timesteps": 8})
    assert (first.observation.agent_view[0] != first.observation.agent_view[1]).any()


def test_an_episode_equals_one_of_the_suite():
    """A random policy reaches the goal within a few episodes, before the time limit."""
    num_envs, num_steps = 32, 256
    env = make_eval(env_config("kinetix", LEVEL))
    level = kinetix.load(LEVEL)
    suite = kinetix.suite
    kinds = suite.ActionType.MULTI_DISCRETE, suite.ObservationType.SYMBOLIC_FLAT
    bare = suite.make_kinetix_env(*kinds, None, level.params, level.sizes, auto_reset=False)

    def both(key):
        keys = jax.random.split(key, num_envs)
        state, first = env.reset(keys)
        start = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), level.start)
        inner = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_envs, *leaf.shape)), start)

        def step(carry, key):
            state, inner = carry
            keys = jax.random.split(key, num_envs)
            action = jax.vmap(env.action_space.sample)(keys)
            state, ours = env.step(keys, state, action)
            step_env = jax.vmap(bare.step_env, (0, 0, 0, None))
            view, after, reward, end, _ = step_env(keys, inner, action, level.params)
            inner = jax.tree.map(lambda leaf, old: jnp.asarray(leaf, old.dtype), after, inner)
            return (state, inner), (ours, (view, reward, end))

        view = jax.vmap(bare.get_obs)(inner)
        return first, view, jax.lax.scan(step, (state, inner), jax.random.split(key, num_steps))[1]

    with jax.numpy_rank_promotion("allow"):
        first, view, (ours, (views, rewards, ends)) = jax.jit(both)(jax.random.key(0))
    np.testing.assert_array_equal(first.observation.agent_view, view)
    before = np.cumsum(ends, 0) - ends == 0
    np.testing.assert_allclose(ours.next_observation.agent_view[before], views[before], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours.reward[before], rewards[before], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal((ours.terminated | ours.truncated)[before], ends[before])
    assert ours.terminated[before].any()
    assert (np.abs(ours.reward[before & ours.terminated]) > 0.5).all()
    np.testing.assert_array_equal(ours.truncated[before], (before & ends & ~ours.terminated)[before])
    assert not ours.truncated[: num_steps - 1][before[: num_steps - 1]].any()


def test_spaces_and_legends():
    def build(**kwargs):
        return make_eval(env_config("kinetix", LEVEL, kwargs=kwargs))

    env = build()
    assert env.observation_space.shape == (140,)
    assert isinstance(env.action_space, MultiDiscrete)
    assert env.action_space.nvec == (3, 3, 3, 3, 2, 2)
    assert env.legend().actions == ("motor 1", "motor 2", "motor 3", "motor 4", "thruster 1", "thruster 2")
    discrete = build(action="discrete", observation="entities")
    assert isinstance(discrete.action_space, Discrete)
    assert len(discrete.legend().actions) == discrete.action_space.n == 11
    assert discrete.observation_space.spaces["circles"].shape == (2, 19)


def test_a_level_is_drawn_by_the_suite():
    env = make_drawn(env_config("kinetix", LEVEL))
    shown, _ = draw_start(env)
    assert shown.shape == (250, 250, 3)
    # The floor is at the bottom.
    assert (shown[-5:].std((0, 1)) < shown.std((0, 1))).all()


def test_what_only_its_own_training_needs_is_not_imported():
    code = "import sys, stoix_like.envs.suites.kinetix; print({'grain', 'wandb', 'zarr', 'seaborn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
