"""Measure steps of a suite of environments with random actions, by the suite's own vmap and automatic reset.

The settings are JSON: `suite`, `name`, `num_envs` and `num_steps`, see `scenarios.py`.
"""

import itertools
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from worker import serve, timed

warnings.filterwarnings("ignore", category=DeprecationWarning)

Reset = Callable[[jax.Array], Any]
Step = Callable[[jax.Array, Any], Any]


def main() -> None:
    """Compile, then step from other start states for every line of standard input."""
    settings = json.loads(sys.argv[1])
    num_envs, num_steps = settings["num_envs"], settings["num_steps"]
    reset, step = SUITES[settings["suite"]](settings["name"], num_envs)

    def play(state: Any, key: jax.Array) -> Any:
        return jax.lax.scan(lambda state, key: (step(key, state), None), state, jax.random.split(key, num_steps))[0]

    start = jax.jit(reset)(jax.random.PRNGKey(0))
    with timed() as compiling:
        program = jax.jit(play).lower(start, jax.random.PRNGKey(0)).compile()
    seeds = itertools.count()

    def run() -> dict[str, Any]:
        key = jax.random.PRNGKey(next(seeds))
        with timed() as clock:
            jax.block_until_ready(program(start, key))
        return {"wall": clock.wall, "cpu": clock.cpu, "steps": num_envs * num_steps}

    serve(run, compile=compiling.wall, jax=jax.__version__, device=jax.devices()[0].device_kind)


def gymnax(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of gymnax."""
    import gymnax

    env, params = gymnax.make(name)
    return _with_params(env, params, num_envs)


def craftax(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of craftax."""
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(name, auto_reset=True)
    return _with_params(env, env.default_params, num_envs)


def _with_params(env: Any, params: Any, num_envs: int) -> tuple[Reset, Step]:
    def reset(key: jax.Array) -> Any:
        return step(key, jax.vmap(env.reset, (0, None))(jax.random.split(key, num_envs), params))

    def step(key: jax.Array, carry: Any) -> Any:
        # All outputs are carried, so that XLA cannot eliminate rewards and flags.
        action = jax.random.randint(key, (num_envs,), 0, env.action_space(params).n)
        return jax.vmap(env.step, (0, 0, 0, None))(jax.random.split(key, num_envs), carry[1], action, params)

    return reset, step


def brax(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of brax."""
    from brax import envs

    env = envs.create(name, episode_length=1000, auto_reset=True)
    return _physics(env, num_envs)


def playground(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of MuJoCo Playground."""
    from mujoco_playground import dm_control_suite, wrapper

    limit = dm_control_suite.get_default_config(name).episode_length
    env = dm_control_suite.load(name, config_overrides={"impl": "jax"})
    env = wrapper.wrap_for_brax_training(env, episode_length=limit)

    def reset(key: jax.Array) -> Any:
        return env.reset(jax.random.split(key, num_envs))

    def step(key: jax.Array, state: Any) -> Any:
        return env.step(state, jax.random.uniform(key, (num_envs, env.action_size), minval=-1.0))

    return reset, step


def _physics(env: Any, num_envs: int) -> tuple[Reset, Step]:
    def reset(key: jax.Array) -> Any:
        return jax.vmap(env.reset)(jax.random.split(key, num_envs))

    def step(key: jax.Array, state: Any) -> Any:
        return jax.vmap(env.step)(state, jax.random.uniform(key, (num_envs, env.action_size), minval=-1.0))

    return reset, step


def jaxtari(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of JAXtari, from objects, with four frames per action and no-op starts."""
    import jaxtari.wrappers as suite

    from stoix_like.envs.suites.jaxtari import build_game

    game = suite.AtariWrapper(build_game(name), sticky_actions=0.0, episodic_life=False, first_fire=False)
    env = suite.ObjectCentricWrapper(game, frame_stack_size=2, frame_skip=4, clip_reward=False)

    def reset(key: jax.Array) -> Any:
        return step(key, jax.vmap(env.reset)(jax.random.split(key, num_envs)))

    def step(key: jax.Array, carry: Any) -> Any:
        action = jax.random.randint(key, (num_envs,), 0, env.action_space().n)
        return jax.vmap(env.step)(carry[1], action)

    return reset, step


def jumanji(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of jumanji, with actions that are legal."""
    import jumanji as suite
    from jumanji.wrappers import VmapAutoResetWrapper

    env = VmapAutoResetWrapper(suite.make(name))

    def reset(key: jax.Array) -> Any:
        return env.reset(jax.random.split(key, num_envs))

    def step(key: jax.Array, carry: Any) -> Any:
        state, timestep = carry
        return env.step(state, draw_legal(key, timestep.observation.action_mask))

    return reset, step


def kinetix(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of Kinetix, from vectors, with six choices per action."""
    from stoix_like.envs.suites.kinetix import load, suite

    level = load(name)
    env = suite.make_kinetix_env(
        suite.ActionType.MULTI_DISCRETE,
        suite.ObservationType.SYMBOLIC_FLAT,
        lambda key: level.start,
        level.params,
        level.sizes,
    )

    def reset(key: jax.Array) -> Any:
        return step(key, jax.vmap(env.reset, (0, None))(jax.random.split(key, num_envs), level.params))

    def step(key: jax.Array, carry: Any) -> Any:
        keys = jax.random.split(key, num_envs)
        action = jax.vmap(env.action_type.random_action)(keys)
        return jax.vmap(env.step, (0, 0, 0, None))(keys, carry[1], action, level.params)

    return reset, step


def mjx(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of MJX for a task of gymnasium, without observations and episodes."""
    import gymnasium as suite
    from mujoco import mjx as physics

    native = suite.make(name).unwrapped
    model = physics.put_model(native.model, impl="jax")
    low, high = native.action_space.low, native.action_space.high

    def reset(key: jax.Array) -> Any:
        start = physics.make_data(model, impl="jax").replace(qpos=jnp.asarray(native.init_qpos, jnp.float32))
        return jax.vmap(lambda x: start.replace(qvel=x))(0.1 * jax.random.normal(key, (num_envs, native.model.nv)))

    def one(data: Any, action: jax.Array) -> Any:
        data = data.replace(ctrl=action)
        return jax.lax.fori_loop(0, native.frame_skip, lambda _, data: physics.step(model, data), data)

    def step(key: jax.Array, data: Any) -> Any:
        return jax.vmap(one)(data, jax.random.uniform(key, (num_envs, len(low)), minval=low, maxval=high))

    return reset, step


def navix(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of navix."""
    import navix as suite

    env = suite.make(name)

    def reset(key: jax.Array) -> Any:
        return jax.vmap(env.reset)(jax.random.split(key, num_envs))

    def step(key: jax.Array, state: Any) -> Any:
        return jax.vmap(env.step)(state, jax.random.randint(key, (num_envs,), 0, 7))

    return reset, step


def octax(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of Octax, which has no automatic reset of its own for gymnax 1."""
    from octax.environments import create_environment

    env = create_environment(name)[0]

    def reset(key: jax.Array) -> Any:
        return step(key, jax.vmap(env.reset)(jax.random.split(key, num_envs)))

    def one(key: jax.Array, state: Any, action: jax.Array) -> Any:
        state, view, reward, terminated, truncated, _ = env.step(state, action)
        fresh = env.reset(key)[:2]
        start = jax.tree.map(lambda new, old: jnp.where(terminated | truncated, new, old), fresh, (state, view))
        return *start, reward, terminated, truncated

    def step(key: jax.Array, carry: Any) -> Any:
        action = jax.random.randint(key, (num_envs,), 0, env.num_actions)
        return jax.vmap(one)(jax.random.split(key, num_envs), carry[0], action)

    return reset, step


def xminigrid(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of XLand-MiniGrid."""
    import xminigrid as suite
    from xminigrid.wrappers import GymAutoResetWrapper

    env, params = suite.make(name)
    env = GymAutoResetWrapper(env)

    def reset(key: jax.Array) -> Any:
        return jax.vmap(env.reset, (None, 0))(params, jax.random.split(key, num_envs))

    def step(key: jax.Array, state: Any) -> Any:
        action = jax.random.randint(key, (num_envs,), 0, env.num_actions(params))
        return jax.vmap(env.step, (None, 0, 0))(params, state, action)

    return reset, step


def pgx(name: str, num_envs: int) -> tuple[Reset, Step]:
    """Return the reset and the step of pgx for player 0 of a game of alternating moves, against random moves."""
    import pgx as suite
    from pgx.experimental import auto_reset

    env = suite.make(name)

    def reply(game: Any, key: jax.Array) -> Any:
        # A move changes nothing but the rewards where a game is over.
        after = env.step(game, draw_legal(key, game.legal_action_mask), key)
        return jax.lax.cond(game.current_player == 0, lambda: game, lambda: after)

    def start(key: jax.Array) -> Any:
        keys = jax.random.split(key)
        return reply(env.init(keys[0]), keys[1])

    def play(game: Any, action: jax.Array, key: jax.Array) -> Any:
        keys = jax.random.split(key)
        own = env.step(game, action, keys[0])
        after = reply(own, keys[1])
        return after.replace(rewards=own.rewards + after.rewards)

    def step(key: jax.Array, state: Any) -> Any:
        action = draw_legal(key, state.legal_action_mask)
        return jax.vmap(auto_reset(play, start))(state, action, jax.random.split(key, num_envs))

    return lambda key: jax.vmap(start)(jax.random.split(key, num_envs)), step


def draw_legal(key: jax.Array, mask: jax.Array) -> jax.Array:
    """Draw legal actions uniformly, with one random number for each.

    Args:
        key: a PRNG key.
        mask: `[..., A]` bool, True where an action is legal.

    Returns:
        The actions, `[...]`.
    """
    rank = jnp.floor(jax.random.uniform(key, mask.shape[:-1]) * mask.sum(-1))
    return jnp.argmax(jnp.cumsum(mask, -1) > rank[..., None], -1)


SUITES = {
    "brax": brax,
    "craftax": craftax,
    "gymnax": gymnax,
    "jaxtari": jaxtari,
    "jumanji": jumanji,
    "kinetix": kinetix,
    "mjx": mjx,
    "navix": navix,
    "octax": octax,
    "pgx": pgx,
    "playground": playground,
    "xminigrid": xminigrid,
}

if __name__ == "__main__":
    main()
