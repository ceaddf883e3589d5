"""Measure mctx alone: its Gumbel search in environments that gymnax or pgx step, with two multilayer perceptrons.

The settings are JSON: `suite`, `name`, `num_envs`, `num_steps` and `num_simulations`, see `scenarios.py`.
"""

import itertools
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import mctx
from worker import serve, timed

warnings.filterwarnings("ignore", category=DeprecationWarning)
GAMMA = 0.99


class Step(NamedTuple):
    """What follows an action in N environments: states, views, legal actions, rewards, signed discounts, ends."""

    state: Any
    view: jax.Array
    legal: jax.Array
    reward: jax.Array
    discount: jax.Array
    done: jax.Array


class Networks(nn.Module):
    """A policy and a value, each a multilayer perceptron of 64 and 64 tanh units."""

    num_actions: int

    @nn.compact
    def __call__(self, view: jax.Array) -> tuple[jax.Array, jax.Array]:
        outputs = []
        for size in (self.num_actions, 1):
            x = view.reshape(len(view), -1)
            for _ in range(2):
                x = nn.tanh(nn.Dense(64)(x))
            outputs.append(nn.Dense(size)(x))
        return outputs[0], outputs[1][:, 0]


def main() -> None:
    """Compile, then search from other start states for every line of standard input."""
    settings = json.loads(sys.argv[1])
    num_envs, num_steps, num_simulations = (settings[f"num_{name}"] for name in ("envs", "steps", "simulations"))
    start, step = {"gymnax": gymnax, "pgx": pgx}[settings["suite"]](settings["name"], num_envs)
    first = jax.eval_shape(start, jax.random.PRNGKey(0))
    networks = Networks(first.legal.shape[-1])
    params = networks.init(jax.random.PRNGKey(0), jnp.zeros(first.view.shape))

    def evaluate(params: Any, at: Step) -> tuple[jax.Array, jax.Array]:
        logits, value = networks.apply(params, at.view)
        return jnp.where(at.legal, logits, jnp.finfo(logits.dtype).min), value

    def recurrent(params: Any, key: jax.Array, action: jax.Array, state: Any) -> tuple[Any, Any]:
        after = step(key, state, action)
        logits, value = evaluate(params, after)
        output = mctx.RecurrentFnOutput(reward=after.reward, discount=after.discount, prior_logits=logits, value=value)
        return output, after.state

    def play(carry: tuple[Step, Any], key: jax.Array) -> tuple[tuple[Step, Any], None]:
        (at, params), keys = carry, jax.random.split(key, 3)
        logits, value = evaluate(params, at)
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=at.state)
        chosen = mctx.gumbel_muzero_policy(params, keys[0], root, recurrent, num_simulations, ~at.legal)
        after, fresh = step(keys[1], at.state, chosen.action), start(keys[2])

        def pick(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(after.done.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        return (jax.tree.map(pick, fresh, after), params), None

    def program(params: Any, key: jax.Array) -> Any:
        return jax.lax.scan(play, (start(key), params), jax.random.split(key, num_steps))[0][0].view

    with timed() as compiling:
        compiled = jax.jit(program).lower(params, jax.random.PRNGKey(0)).compile()
    seeds = itertools.count()

    def run() -> dict[str, Any]:
        key = jax.random.PRNGKey(next(seeds))
        with timed() as clock:
            jax.block_until_ready(compiled(params, key))
        return {"wall": clock.wall, "cpu": clock.cpu, "steps": num_envs * num_steps * num_simulations}

    serve(run, compile=compiling.wall, jax=jax.__version__, device=jax.devices()[0].device_kind)


def gymnax(name: str, num_envs: int) -> tuple[Callable[[Any], Step], Callable[..., Step]]:
    """Return the start and the step of gymnax."""
    import gymnax as suite

    env, params = suite.make(name)
    legal = jnp.ones((num_envs, env.num_actions), bool)

    def start(key: jax.Array) -> Step:
        view, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(key, num_envs), params)
        nothing = jnp.zeros((num_envs,))
        return Step(state, view, legal, nothing, nothing, nothing > 0)

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        inputs = jax.random.split(key, num_envs), state, action, params
        view, state, reward, terminated, _ = jax.vmap(env.step_env, (0, 0, 0, None))(*inputs)
        truncated = jax.vmap(env.is_truncated, (0, None))(state, params)
        return Step(state, view, legal, reward, GAMMA * (1.0 - terminated), terminated | truncated)

    return start, step


def pgx(name: str, num_envs: int) -> tuple[Callable[[Any], Step], Callable[..., Step]]:
    """Return the start and the step of a game of pgx for two, each move by the same networks."""
    import pgx as suite

    env = suite.make(name)

    def at(state: Any, reward: jax.Array) -> Step:
        discount = jnp.where(state.terminated, 0.0, -GAMMA)
        view = state.observation.astype(jnp.float32)
        return Step(state, view, state.legal_action_mask, reward, discount, state.terminated)

    def start(key: jax.Array) -> Step:
        return at(jax.vmap(env.init)(jax.random.split(key, num_envs)), jnp.zeros((num_envs,)))

    def step(key: jax.Array, state: Any, action: jax.Array) -> Step:
        del key
        mover = state.current_player
        after = jax.vmap(env.step)(state, action)
        return at(after, after.rewards[jnp.arange(num_envs), mover])

    return start, step


if __name__ == "__main__":
    main()
