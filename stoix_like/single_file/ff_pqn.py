"""Parallelised Q-networks (Gallici et al. 2024, arXiv:2407.04811) in one file: no replay buffer, no target network.

    python ff_pqn.py --env_name Acrobot-v1 --seed 1

The whole run is one compiled program: environments, rollouts, updates and evaluations.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax


@dataclass(frozen=True)
class Config:
    """Settings; on the command line `--name value`."""

    env_name: str = "CartPole-v1"  # environment of gymnax with vectors as observations and discrete actions
    max_episode_steps: int | None = None  # steps after which an episode is truncated; None: those of the environment
    seed: int = 42
    total_timesteps: int = 500_000  # environment steps, over all environments; rounded down to whole updates
    num_envs: int = 8
    num_evaluations: int = 20  # after the one at step 0, at even intervals
    num_eval_episodes: int = 32

    layer_sizes: tuple[int, ...] = (64, 64)  # each with layer normalisation, which replaces the target network
    activation: str = "relu"  # name of a function in jax.nn

    rollout_length: int = 32  # steps per environment between two updates
    epochs: int = 4  # passes over each rollout
    num_minibatches: int = 4  # minibatches per pass, a divisor of the steps of a rollout

    q_lr: float = 5e-4
    decay_learning_rates: bool = True  # linearly to zero over the run
    max_grad_norm: float = 10.0  # clip the gradient to this global norm
    adam_eps: float = 1e-8

    gamma: float = 0.99  # discount factor per step
    q_lambda: float = 0.95  # lambda of the lambda-returns
    reward_scale: float = 1.0  # multiply rewards by this before learning

    initial_epsilon: float = 1.0  # probability of a random action in the first update
    training_epsilon: float = 0.05  # probability of a random action after the decay
    exploration_fraction: float = 0.2  # fraction of the run with linear decay

    @property
    def num_updates(self) -> int:
        """Updates within the budget."""
        return self.total_timesteps // (self.num_envs * self.rollout_length)


class Step(NamedTuple):
    """A step of all environments, `[N, ...]`; a truncated episode has a value beyond its end, others none."""

    obs: jax.Array  # to act on next; after the end of an episode the first of another one
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_obs: jax.Array  # the true successor, never the first observation of another episode


class Env(NamedTuple):
    """Environments that reset themselves."""

    reset: Callable[[jax.Array], tuple[Any, jax.Array]]  # (keys [N]) -> (state, obs)
    step: Callable[[jax.Array, Any, jax.Array], tuple[Any, Step]]  # (keys [N], state, action [N]) -> (state, step)
    num_actions: int


def make_env(name: str, max_episode_steps: int | None) -> Env:
    """Build environments of gymnax."""
    env, params = gymnax.make(name)
    params = params.replace(max_steps_in_episode=max_episode_steps or params.max_steps_in_episode)

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = env.reset_env(key, params)
        return state, jnp.asarray(obs, jnp.float32)

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Step]:
        obs, state, reward, terminated, _ = env.step_env(key, state, action, params)
        next_obs = jnp.asarray(obs, jnp.float32)
        truncated = env.is_truncated(state, params) & ~terminated
        first = reset(jax.random.fold_in(key, 0x5EED))
        state, obs = jax.tree.map(partial(jnp.where, terminated | truncated), first, (state, next_obs))
        return state, Step(obs, jnp.asarray(reward, jnp.float32), terminated, truncated, next_obs)

    return Env(jax.vmap(reset), jax.vmap(step), env.action_space(params).n)


class MLP(nn.Module):
    """Dense layers, each with layer normalisation, or not, and an activation."""

    layer_sizes: Sequence[int]
    activation: Callable[[jax.Array], jax.Array] = lambda x: x
    scale: float = math.sqrt(2.0)  # of the orthogonal initial weights
    normalize: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the output of the last layer."""
        for size in self.layer_sizes:
            x = nn.Dense(size, kernel_init=nn.initializers.orthogonal(self.scale))(x)
            x = self.activation(nn.LayerNorm()(x) if self.normalize else x)
        return x


class Network(nn.Module):
    """A torso and a linear head."""

    layer_sizes: Sequence[int]
    activation: Callable[[jax.Array], jax.Array]
    head: str  # its name
    num_outputs: int
    scale: float  # of the initial weights of the head

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        """Return the outputs `[..., num_outputs]`."""
        x = MLP(self.layer_sizes, self.activation, normalize=True, name="torso")(obs)
        return MLP([self.num_outputs], scale=self.scale, name=self.head)(x)


def make_optimiser(config: Config) -> optax.GradientTransformation:
    """Build rectified Adam, which clips gradients to g min(1, max_grad_norm / ||g||)."""
    limit = config.max_grad_norm
    clip = optax.stateless(lambda g, _: optax.tree.scale(jnp.minimum(1.0, limit / optax.tree.norm(g)), g))

    def decayed(count: jax.Array) -> jax.Array:
        update = count // (config.epochs * config.num_minibatches)
        return config.q_lr * jnp.maximum(0.0, 1.0 - update / config.num_updates)

    rate = decayed if config.decay_learning_rates else config.q_lr
    return optax.chain(clip, optax.radam(rate, eps=config.adam_eps))


class Learner(NamedTuple):
    """Everything that changes during a run."""

    params: Any
    opt_state: Any
    updates: jax.Array  # updates so far
    env_state: Any
    obs: jax.Array  # [N, ...]
    key: jax.Array


class Transition(NamedTuple):
    """One step of a rollout, `[T, N, ...]`."""

    obs: jax.Array
    action: jax.Array
    step: Step


class Batch(NamedTuple):
    """Data from which minibatches are drawn, `[T * N, ...]`."""

    obs: jax.Array
    action: jax.Array
    target: jax.Array


class PQN:
    """PQN with lambda-returns."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.env = make_env(config.env_name, config.max_episode_steps)
        layers = config.layer_sizes, getattr(jax.nn, config.activation)
        self.network: Any = Network(*layers, "action_head", self.env.num_actions, 1.0)
        self.optimiser = make_optimiser(config)

    def init(self, params_key: jax.Array, key: jax.Array) -> Learner:
        """Initialise parameters and environments."""
        reset_key, _, key = jax.random.split(key, 3)
        env_state, obs = self.env.reset(jax.random.split(reset_key, self.config.num_envs))
        params = self.network.init(params_key, obs)
        return Learner(params, self.optimiser.init(params), jnp.int32(0), env_state, obs, key)

    def act(self, learner: Learner, obs: jax.Array, key: jax.Array) -> jax.Array:
        """Draw the best action, or a random one with probability epsilon."""
        config, num_actions = self.config, self.env.num_actions
        left = jnp.maximum(0.0, 1.0 - learner.updates / max(config.exploration_fraction * config.num_updates, 1.0))
        change = config.initial_epsilon - config.training_epsilon if config.exploration_fraction > 0.0 else 0.0
        epsilon = config.training_epsilon + change * left
        best = jax.nn.one_hot(jnp.argmax(self.network.apply(learner.params, obs), axis=-1), num_actions)
        return jax.random.categorical(key, jnp.log(epsilon * (1.0 / num_actions) + (1.0 - epsilon) * best))

    def rollout(self, learner: Learner, key: jax.Array) -> tuple[Learner, Transition]:
        """Act for `rollout_length` steps in every environment."""
        length, num_envs = self.config.rollout_length, self.config.num_envs
        _, act_key, env_key = jax.random.split(key, 3)

        def act_and_step(carry: Any, keys: Any) -> tuple[Any, Transition]:
            (env_state, obs), (act_key, env_keys) = carry, keys
            action = self.act(learner, obs, act_key)
            env_state, step = self.env.step(env_keys, env_state, action)
            return (env_state, step.obs), Transition(obs, action, step)

        keys = jax.random.split(act_key, length), jax.random.split(env_key, (length, num_envs))
        (env_state, obs), steps = jax.lax.scan(act_and_step, (learner.env_state, learner.obs), keys)
        return learner._replace(env_state=env_state, obs=obs), steps

    def targets(self, params: Any, step: Step) -> jax.Array:
        """Compute lambda-returns `[T, N]`, which bootstrap from the best values of the true successors.

            G_t = r_t + gamma (1 - terminated_t) ((1 - lambda_t) max_a q(next_obs_t, a) + lambda_t G_{t+1})

        lambda_t is zero where the episode was truncated.
        """
        v_t = jnp.max(self.network.apply(params, step.next_obs), axis=-1)
        discount = self.config.gamma * (1.0 - step.terminated)
        trace = jnp.where(step.truncated, 0.0, self.config.q_lambda)
        known = step.reward * self.config.reward_scale + discount * (1.0 - trace) * v_t

        def backwards(later: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            target = inputs[0] + inputs[1] * later
            return target, target

        return jax.lax.scan(backwards, v_t[-1], (known, discount * trace), reverse=True)[1]

    def loss(self, params: Any, batch: Batch) -> jax.Array:
        """Compute half the squared error to the lambda-return (equation 10)."""
        q = self.network.apply(params, batch.obs)
        value = jnp.take_along_axis(q, batch.action[:, None], axis=-1)[:, 0]
        return jnp.mean(0.5 * jnp.square(batch.target - value))

    def update(self, learner: Learner) -> Learner:
        """Roll out, and train for several epochs of minibatches."""
        key, rollout_key, update_key = jax.random.split(learner.key, 3)
        learner, steps = self.rollout(learner._replace(key=key), rollout_key)
        rows = Batch(steps.obs, steps.action, self.targets(learner.params, steps.step))
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)

        def sgd_step(carry: Any, minibatch: Batch) -> tuple[Any, None]:
            params, opt_state = carry
            updates, opt_state = self.optimiser.update(jax.grad(self.loss)(params, minibatch), opt_state)
            return (optax.apply_updates(params, updates), opt_state), None

        def epoch(carry: Any, key: jax.Array) -> tuple[Any, None]:
            order = permutation(key, batch.action.size)
            shuffled = jax.tree.map(lambda x: x[order].reshape(self.config.num_minibatches, -1, *x.shape[1:]), batch)
            return jax.lax.scan(sgd_step, carry, shuffled)

        keys = jax.random.split(update_key, self.config.epochs)
        (params, opt_state), _ = jax.lax.scan(epoch, (learner.params, learner.opt_state), keys)
        return learner._replace(params=params, opt_state=opt_state, updates=learner.updates + 1)

    def evaluate(self, params: Any, key: jax.Array) -> jax.Array:
        """Return the mean return of complete episodes of the best actions."""
        num_episodes = self.config.num_eval_episodes
        reset_key, key = jax.random.split(key)
        env_state, obs = self.env.reset(jax.random.split(reset_key, num_episodes))

        def act_and_step(carry: Any) -> Any:
            env_state, obs, key, total, ended = carry
            key, _, env_key = jax.random.split(key, 3)
            action = jnp.argmax(self.network.apply(params, obs), axis=-1)
            env_state, step = self.env.step(jax.random.split(env_key, num_episodes), env_state, action)
            total = total + jnp.where(ended, 0.0, step.reward)
            return env_state, step.obs, key, total, ended | step.terminated | step.truncated

        first = env_state, obs, key, jnp.zeros(num_episodes), jnp.zeros(num_episodes, bool)
        return jnp.mean(jax.lax.while_loop(lambda carry: ~jnp.all(carry[-1]), act_and_step, first)[3])


def train(config: Config, seed: int | jax.Array) -> tuple[Learner, jax.Array]:
    """Train, and return the learner and the mean returns of the evaluations; to be jitted, or vmapped over seeds."""
    algorithm, num_evaluations = PQN(config), min(config.num_evaluations, config.num_updates)
    params_key, key, eval_key = split_seed(seed)
    ends = jnp.array([i * config.num_updates // num_evaluations for i in range(num_evaluations + 1)])

    def interval(learner: Learner, number: jax.Array) -> tuple[Learner, jax.Array]:
        start, end = ends[jnp.maximum(number - 1, 0)], ends[number]
        learner = jax.lax.fori_loop(start, end, lambda _, learner: algorithm.update(learner), learner)
        mean = algorithm.evaluate(learner.params, jax.random.split(jax.random.fold_in(eval_key, end))[0])
        steps = config.num_envs * config.rollout_length
        jax.debug.callback(lambda n, x: print(f"{int(n) * steps:>10} steps, mean return {x:.2f}"), end, mean)
        return learner, mean

    first = jax.custom_batching.sequential_vmap(algorithm.init)(params_key, key)  # batched QR decompositions may hang
    return jax.lax.scan(interval, first, jnp.arange(num_evaluations + 1))


# Nothing below is about reinforcement learning: random numbers as in stoix_like, and the command line.


def permutation(key: jax.Array, length: int) -> jax.Array:
    """Sort random bits that end with their positions; on CPUs several times faster than `jax.random.permutation`."""
    low = jnp.uint32((1 << (length - 1).bit_length()) - 1)
    tagged = (jax.random.bits(key, (length,)) & ~low) | jnp.arange(length, dtype=jnp.uint32)
    return (jnp.sort(tagged) & low).astype(jnp.int32)


def split_seed(seed: int | jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the keys of parameters, training and evaluation, split as in stoix_like, where runs are the same."""
    train_key, eval_key = jax.random.split(jax.random.key(seed))
    params_key, shards_key = jax.random.split(train_key)
    return params_key, jax.random.split(shards_key)[0], eval_key


def parse(arguments: Sequence[str] | None = None) -> Config:
    """Read settings from the command line; None and tuples as in Python, counts also as 1e6."""

    def value(field: Any, text: str) -> Any:
        low, high = (0, 2**32 - 1) if field.name == "seed" else (1, math.inf)
        with suppress(ArithmeticError, SyntaxError, TypeError, ValueError):
            match field.type, text if field.type == "str" else ast.literal_eval(text):
                case ("str", x) | ("bool", bool(x)) | ("float", int(x) | float(x)) | ("int | None", None as x):
                    return x
                case "int" | "int | None", int(x) | float(x) if type(x) is not bool and low <= x == int(x) <= high:
                    return int(x)
                case "tuple[int, ...]", [*x] if all(type(size) is int and size > 0 for size in x):
                    return tuple(x)
        expected = field.type.replace("int", f"int from {low} to {high}")
        raise argparse.ArgumentTypeError(f"use {expected}, such as {field.default}")

    comments = dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(Config), re.MULTILINE))
    parser = argparse.ArgumentParser("[--NAME VALUE ...]", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in fields(Config):
        about = comments.get(field.name, field.type)
        parser.add_argument(f"--{field.name}", type=partial(value, field), default=field.default, help=about)
    config = Config(**vars(parser.parse_args(arguments)))
    known = config.env_name in gymnax.registered_envs
    if not known or not hasattr(gymnax.make(config.env_name)[0].action_space(), "n"):
        parser.error("--env_name: use an environment of gymnax with discrete actions")
    if not callable(getattr(jax.nn, config.activation, None)):
        parser.error("--activation: use the name of a function in jax.nn")
    if config.num_envs * config.rollout_length % config.num_minibatches:
        parser.error("--num_minibatches: use a divisor of num_envs x rollout_length")
    return config if config.num_updates > 0 else parser.error("--total_timesteps: fewer steps than one update takes")


if __name__ == "__main__":
    settings = parse()
    jax.block_until_ready(jax.jit(partial(train, settings))(jnp.uint32(settings.seed)))
