import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import factory
from stoix_like.envs.described import describe
from stoix_like.envs.environment import Vectorize
from stoix_like.envs.spaces import Box, Dict, Mixed, Tuple, bounds
from stoix_like.envs.wrappers import ClipActions, RecordEpisode, Wrapper
from stoix_like.storage.contents import read_json
from stoix_like.storage.files import write_json
from support.custom_envs import Spot
from support.selections import first
from support.set_ups import config_of


def make(*overrides):
    config = config_of("system=ppo/ff_ppo", *overrides)
    return config.env, factory.make_eval(config.env, config.custom_env, config.matmul_precision)


def reset_of(env):
    return jax.eval_shape(env.reset, jax.random.split(jax.random.key(0), 2 * env.num_agents))[1]


def described(config, env, path):
    write_json(path, factory.describe_episodes(config, env, reset_of(env).observation))
    return factory.make_described(config, read_json(path, 2**20))


def leaves(space):
    if isinstance(space, Dict | Tuple | Mixed):
        space = space if isinstance(space, Mixed) else Mixed(space)
        return dict(zip(space.names, space.parts, strict=True))
    return {"": space}


def assert_same_space(found, expected):
    assert type(found) is type(expected)
    ours, theirs = leaves(found), leaves(expected)
    assert ours.keys() == theirs.keys()
    for one, other in zip(ours.values(), theirs.values(), strict=True):
        assert (type(one), one.shape, jnp.dtype(one.dtype)) == (type(other), other.shape, jnp.dtype(other.dtype))
        assert getattr(one, "stacked", 1) == getattr(other, "stacked", 1)
        for pair in zip(bounds(one), bounds(other), strict=True):
            np.testing.assert_array_equal(*np.broadcast_arrays(*(np.asarray(bound, one.dtype) for bound in pair)))


@pytest.mark.parametrize(
    "overrides",
    first(
        4,
        [
            ["env=gymnax/cartpole", "env.step_count=true"],
            ["env=gymnax/pendulum"],
            ["env=gymnax/pendulum", "env.rescale_actions=false", "env.observe_last_action=true"],
            ["env=gymnax/breakout", "env.frame_stack=2"],
            ["env=probe/mixed_actions"],
            ["env=probe/multi_discrete"],
            ["env=gymnasium/hopper"],
            ["env=jumanji/snake"],
            ["env=gymnasium/pendulum", "env.clip_actions=false"],
            ["env=own", "env._target_=support.games.Match", "env.agent_ids=one_hot"],
        ],
    ),
    ids=lambda overrides: " ".join(overrides),
)
def test_a_description_is_all_that_policies_need(overrides, tmp_path):
    config, env = make(*overrides)
    found = described(config, env, tmp_path / "environment.json")
    assert_same_space(found.observation_space, env.observation_space)
    assert_same_space(found.action_space, env.action_space)
    assert_same_space(found.unwrapped.action_space, env.unwrapped.action_space)
    forms = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), reset_of(each)._replace(episode=()))
        for each in (found, env)
    ]
    assert forms[0] == forms[1]
    assert found.legend() == env.legend()
    own = ("on_host", "num_agents", "num_players", "team_reward")
    assert [getattr(found, name) for name in own] == [getattr(env, name) for name in own]
    actions = jax.vmap(env.action_space.sample)(jax.random.split(jax.random.key(1), 6))
    # Clipped where the environments clip.
    actions = actions * 1.5 if isinstance(env.action_space, Box) else actions
    native = [jax.tree.leaves(each.native_action(actions)) for each in (found, env)]
    jax.tree.map(np.testing.assert_array_equal, *native)


def test_conversions_of_their_own_are_not_described():
    config, env = make("env=gymnax/cartpole", "env.wrappers=[{_target_: support.custom_envs.AddReward, amount: 1.0}]")
    assert factory.describe_episodes(config, env, reset_of(env).observation) is None

    class Doubled(type(env.unwrapped)):
        def native_action(self, action):
            return 2 * action

    doubled = Doubled(env.unwrapped.env)
    assert describe(doubled, reset_of(doubled).observation) is None


class Half(Wrapper):
    def inner_action(self, action):
        return 0.5 * action


@pytest.mark.parametrize(("inside", "is_described"), [(Half, False), (ClipActions, False), (RecordEpisode, True)])
def test_conversions_inside_environments_of_a_users_own_are_not_described(inside, is_described):
    """A policy of the description would act on `Spot` with other actions than those that the run took."""
    config = factory.EnvConfig(env_name="own")
    env = factory.make_eval(config, lambda: inside(Vectorize(Spot())))
    assert (factory.describe_episodes(config, env, reset_of(env).observation) is not None) == is_described
