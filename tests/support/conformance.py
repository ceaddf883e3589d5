"""What every adapter must do, whatever its suite."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from stoix_like.envs import make, make_eval
from stoix_like.envs.check import element_faults, mask_faults
from stoix_like.envs.factory import EnvConfig, ScenarioConfig
from stoix_like.envs.scenes.base import RecordedEpisode

NUM_ENVS = 3


def env_config(suite, name, **changes):
    """Return the configuration of a scenario without wrappers that change actions."""
    return EnvConfig(suite, ScenarioConfig(name), **{"rescale_actions": False, "clip_actions": False, **changes})


def rollout(env, num_steps, seed=0, num_envs=NUM_ENVS):
    """Play random legal actions; return the first time step `[N, ...]`, and actions and time steps `[T, N, ...]`."""
    return player(env, num_steps, num_envs)(jax.random.key(seed))


def player(env, num_steps, num_envs=NUM_ENVS):
    """Return a compiled function of a key that plays random legal actions, as `rollout` does."""
    sample = jax.vmap(env.action_space.sample)

    @jax.jit
    def draw(key):
        reset_key, steps_key = jax.random.split(key)
        action_keys, step_keys = keys_of_steps(steps_key, num_steps)
        split = jax.vmap(lambda key: jax.random.split(key, num_envs))
        # Programs that call the host are compiled anew by each process: as little as possible is part of them.
        draws = split(action_keys) if masked else jax.vmap(sample)(split(action_keys))
        return jax.random.split(reset_key, num_envs), (draws, split(step_keys))

    @jax.jit
    def play(reset_keys, draws):
        def step(carry, drawn):
            state, timestep = carry
            action = sample(drawn[0], timestep.observation.action_mask) if masked else drawn[0]
            state, timestep = env.step(drawn[1], state, action)
            return (state, timestep), (action, timestep)

        state, first = env.reset(reset_keys)
        return first, *jax.lax.scan(step, (state, first), draws)[1]

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), num_envs))
    masked = jax.eval_shape(env.reset, keys)[1].observation.action_mask is not None
    return lambda key: jax.tree.map(np.asarray, play(*draw(key)))


def keys_of_steps(key, num_steps):
    """Return the keys of the actions and of the steps of `player`, before they are split over the environments."""
    return jnp.moveaxis(jax.vmap(jax.random.split)(jax.random.split(key, num_steps)), 1, 0)


def check_elements(space, values, batch_dims, name="agent_view"):
    assert list(element_faults(space, values, batch_dims, name)) == []


def check(suite, name, num_steps=2000, **changes):
    """Assert that the training environments of a scenario follow the protocol; return what `rollout` returns."""
    config = env_config(suite, name, **changes)
    env = make(config)
    play, key = player(env, num_steps), jax.random.key(0)
    first, actions, steps = play(key)
    check_elements(env.observation_space, first.observation.agent_view, 1)
    for observation in (steps.observation, steps.next_observation):
        check_elements(env.observation_space, observation.agent_view, 2)
        check_mask(env.action_space, observation.action_mask)
    check_elements(env.action_space, actions, 2, "action")
    ended = steps.terminated | steps.truncated
    assert not (steps.terminated & steps.truncated).any()
    assert np.isfinite(steps.reward).all()
    assert steps.reward.dtype == np.float32
    assert steps.terminated.dtype == steps.truncated.dtype == bool
    assert not (first.terminated | first.truncated).any()
    if env.truncates_after is not None:
        assert (steps.episode.episode_length[steps.truncated] >= env.truncates_after).all()
    # Within an episode the observation is the successor; at its end, the first observation of the next episode.
    for found, successor in zip(
        jax.tree.leaves(steps.observation), jax.tree.leaves(steps.next_observation), strict=True
    ):
        np.testing.assert_array_equal(found[~ended], successor[~ended])
    if ended.any():
        pairs = zip(jax.tree.leaves(steps.observation), jax.tree.leaves(steps.next_observation), strict=True)
        assert any((found[ended] != successor[ended]).any() for found, successor in pairs)
    # Returns and lengths are those of the rewards since the episode began.
    total, length = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, int)
    for t in range(num_steps):
        total, length = total + steps.reward[t], length + 1
        np.testing.assert_allclose(steps.episode.episode_return[t], total, rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(steps.episode.episode_length[t], length)
        total, length = np.where(ended[t], 0, total), np.where(ended[t], 0, length)
    for found, expected in zip(jax.tree.leaves(play(key)), jax.tree.leaves((first, actions, steps)), strict=True):
        np.testing.assert_array_equal(found, expected)
    check_carry(make_eval(config))
    return first, actions, steps


def check_games(suite, name, num_steps, **changes):
    """Assert that two games of several agents follow the protocol, and that the rows of a game end together.

    Return the environments, the actions `[T, 2 * A, ...]`, and the time steps `[T, 2, A, ...]`.
    """
    env = make(env_config(suite, name, **changes))
    first, actions, steps = player(env, num_steps, 2 * env.num_agents)(jax.random.key(0))
    check_elements(env.observation_space, first.observation.agent_view, 1)
    check_elements(env.observation_space, steps.next_observation.agent_view, 2)
    check_mask(env.action_space, steps.next_observation.action_mask)
    assert not (steps.terminated & steps.truncated).any()
    assert np.isfinite(steps.reward).all()
    by_game = jax.tree.map(lambda leaf: leaf.reshape(num_steps, 2, env.num_agents, *leaf.shape[2:]), steps)
    for rows in (by_game.terminated, by_game.truncated, *[by_game.reward] * env.team_reward):
        np.testing.assert_array_equal(rows, np.broadcast_to(rows[..., :1], rows.shape))
    return env, actions, by_game


def check_mask(action_space, mask):
    """Assert that a mask has an entry per action, of which one is legal."""
    assert list(mask_faults(action_space, mask, "action_mask")) == []


def check_carry(env):
    """Assert that states keep shapes, dtypes and weak types, as a scan requires."""
    keys = jax.random.split(jax.random.key(0), NUM_ENVS * env.num_agents)
    action = jax.eval_shape(jax.vmap(env.action_space.sample), keys)
    before = jax.eval_shape(env.reset, keys)
    after = jax.eval_shape(env.step, keys, before[0], action)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (old.shape, old.dtype, old.weak_type) == (new.shape, new.dtype, new.weak_type)
    assert jax.tree.structure(before) == jax.tree.structure(after)


def check_time_limit(suite, name, limit, actions=None, num_envs=NUM_ENVS, **changes):
    """Assert that episodes which nothing else ends are truncated after `limit` steps, and not terminated.

    `actions`: a function of time steps, or an action that all environments take; random ones by default.
    """
    env = make(env_config(suite, name, **changes))
    assert env.truncates_after in (None, limit)

    def play(key):
        state, timestep = env.reset(jax.random.split(key, num_envs))

        def step(carry, t):
            keys = jax.random.split(jax.random.fold_in(key, t), num_envs)
            if actions is None:
                chosen = jax.vmap(env.action_space.sample)(keys)
            elif callable(actions):
                chosen = jnp.asarray(actions(carry[1]))
            else:
                chosen = jnp.full((num_envs, *env.action_space.shape), actions)
            state, timestep = env.step(keys, carry[0], chosen)
            return (state, timestep), timestep

        return jax.lax.scan(step, (state, timestep), jnp.arange(limit))[1]

    steps = jax.tree.map(np.asarray, jax.jit(play)(jax.random.key(0)))
    assert not steps.terminated.any()
    assert not steps.truncated[:-1].any()
    assert steps.truncated[-1].all()


def side_by_side(env, reset, step, num_actions, num_steps, seed=0):
    """Take random actions in an environment and in a bare one, with the same keys; return the steps of both.

    `reset` returns the view and the state of the bare environment for a key, and `step` what is compared and the state
    for a key, a state and an action.
    """

    def typed(leaf, dtype):
        return leaf if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.asarray(leaf, dtype)

    def both(key):
        reset_key, *keys = jax.random.split(key, num_steps + 1)
        state, first = env.reset(reset_key[None])
        view, inner = reset(reset_key)

        def step_both(carry, key):
            action = jax.random.randint(key, (), 0, num_actions)
            state, ours = env.step(key[None], carry[0], action[None])
            theirs, after = step(key, carry[1], action)
            return (state, jax.tree.map(lambda leaf, old: typed(leaf, old.dtype), after, carry[1])), (ours, theirs)

        inner = jax.tree.map(lambda leaf: typed(leaf, jnp.result_type(leaf)), inner)
        return first, view, *jax.lax.scan(step_both, (state, inner), jnp.stack(keys))[1]

    with jax.numpy_rank_promotion("allow"):
        return jax.tree.map(np.asarray, jax.jit(both)(jax.random.key(seed)))


def walk(env, *actions):
    """Take actions in one environment; return the first and the last time step."""
    keys, step = jax.random.split(jax.random.key(0), 1), jax.jit(env.step)
    state, first = jax.jit(env.reset)(keys)
    for action in actions:
        state, timestep = step(keys, state, jnp.full((1,), action))
    return first, timestep


def check_episode(env, reset, step, num_actions, num_steps, seed=0, reward_rtol=0.0, return_rtol=1e-7):
    """Assert that the first episode equals that of the bare suite, up to its end; return its time steps.

    The steps of the suite return views, rewards, ends and terminations; see `side_by_side`.
    """
    first, view, ours, (views, rewards, ended, terminated) = side_by_side(
        env, reset, step, num_actions, num_steps, seed
    )
    end = int(np.argmax(ended)) + 1
    assert 1 < end < num_steps
    ours = jax.tree.map(lambda leaf: leaf[:end, 0], ours)
    np.testing.assert_array_equal(first.observation.agent_view[0], view)
    np.testing.assert_array_equal(ours.next_observation.agent_view, views[:end])
    np.testing.assert_allclose(ours.reward, rewards[:end], rtol=reward_rtol)
    np.testing.assert_array_equal(ours.terminated, terminated[:end])
    np.testing.assert_array_equal(ours.truncated, (ended & ~terminated)[:end])
    np.testing.assert_allclose(ours.episode.episode_return[-1], rewards[:end].sum(), rtol=return_rtol)
    return ours


def draw_start(env, num_envs=1):
    """Return the picture `[H, W, 3]` of a start state, and what the agent observes then."""
    state, timestep = jax.jit(env.reset)(jax.random.split(jax.random.key(0), num_envs))
    states, view = jax.tree.map(np.asarray, (env.native_state(state), timestep.observation.agent_view))
    axes = plt.figure().add_subplot()
    env.scene().draw(axes, RecordedEpisode(np.arange(1), states, view, np.zeros(1), np.ones(1, bool)))(0)
    shown = np.asarray(axes.images[0].get_array())
    plt.close("all")
    return shown, view


def check_atari(config):
    """Assert that Breakout with `reward_clip=0.5`, ended by lost lives, is preprocessed; return the training steps."""
    _, _, training = rollout(make(config), 300, num_envs=2)
    _, _, evaluation = rollout(make_eval(config), 300, num_envs=2)
    views = training.observation.agent_view
    assert views.shape[1:] == (2, 84, 84, 4)
    assert views.dtype == np.uint8
    # Within an episode each view has the last three frames of the one before, and a new one.
    continues = ~(training.terminated | training.truncated)[1:]
    np.testing.assert_array_equal(views[1:][continues][..., :3], views[:-1][continues][..., 1:])
    # Each of five lives is a training episode, but evaluation plays whole games.
    assert training.terminated.sum() >= 8
    assert evaluation.terminated.sum() <= 4
    assert training.reward.max() == 0.5
    assert evaluation.reward.max() == 1.0
    return training


def check_physics(env, reference, actions):
    """Assert that an episode equals that of a simulation with brax's interface, up to rounding.

    Returns the steps, and the `done` of the simulation up to the first end.
    """
    keys = jax.random.split(jax.random.key(3), 1)

    @jax.jit
    def ours():
        state, first = env.reset(keys)
        return first, jax.lax.scan(lambda state, action: env.step(keys, state, action), state, actions)[1]

    first, steps = ours()
    done, total = [], 0.0
    with jax.numpy_rank_promotion("allow"):
        state, step = jax.jit(reference.reset)(jax.random.key_data(keys[0])), jax.jit(reference.step)
        np.testing.assert_allclose(first.observation.agent_view[0], state.obs, atol=1e-6)
        for t, action in enumerate(actions[:, 0]):
            state = step(state, action)
            total += state.reward
            np.testing.assert_allclose(steps.next_observation.agent_view[t, 0], state.obs, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(steps.reward[t, 0], state.reward, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(steps.episode.episode_return[t, 0], total, rtol=1e-3, atol=1e-3)
            done.append(bool(state.done))
            if done[-1]:
                break
    return steps, np.asarray(done)
