"""Deep Q-networks (Mnih et al. 2015, doi:10.1038/nature14236) in one file.

    python ff_dqn.py --env_name Acrobot-v1 --seed 1

The whole run is one compiled program: environments, rollouts, replay, updates and evaluations.
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

    layer_sizes: tuple[int, ...] = (64, 64)
    activation: str = "relu"  # name of a function in jax.nn

    rollout_length: int = 8  # steps per environment between two updates
    warmup_steps: int = 128  # random steps per environment before the first update, a multiple of rollout_length
    epochs: int = 8  # gradient steps per update
    total_buffer_size: int = 10_000  # capacity of the replay buffer in steps; rounded down to whole rollouts
    total_batch_size: int = 128  # steps per gradient step

    q_lr: float = 5e-4
    decay_learning_rates: bool = True  # linearly to zero over the run
    max_grad_norm: float = 10.0  # clip the gradient to this global norm
    adam_eps: float = 1e-8
    tau: float = 0.05  # Polyak step size of the target network (soft update), per gradient step

    gamma: float = 0.99  # discount factor per step
    reward_scale: float = 1.0  # multiply rewards by this before learning
    max_abs_reward: float = 1000.0  # clip rewards to this magnitude before that

    initial_epsilon: float = 1.0  # probability of a random action in the first update
    training_epsilon: float = 0.05  # probability of a random action after the decay
    exploration_fraction: float = 0.1  # fraction of the run with linear decay

    @property
    def num_updates(self) -> int:
        """Updates within the budget, after the random steps."""
        return (self.total_timesteps // self.num_envs - self.warmup_steps) // self.rollout_length


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
    """Dense layers, each with an activation."""

    layer_sizes: Sequence[int]
    activation: Callable[[jax.Array], jax.Array] = lambda x: x
    scale: float = math.sqrt(2.0)  # of the orthogonal initial weights

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the output of the last layer."""
        for size in self.layer_sizes:
            x = self.activation(nn.Dense(size, kernel_init=nn.initializers.orthogonal(self.scale))(x))
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
        x = MLP(self.layer_sizes, self.activation, name="torso")(obs)
        return MLP([self.num_outputs], scale=self.scale, name=self.head)(x)


def make_optimiser(config: Config) -> optax.GradientTransformation:
    """Build Adam, which clips gradients to g min(1, max_grad_norm / ||g||)."""
    limit = config.max_grad_norm
    clip = optax.stateless(lambda g, _: optax.tree.scale(jnp.minimum(1.0, limit / optax.tree.norm(g)), g))

    def decayed(count: jax.Array) -> jax.Array:
        return config.q_lr * jnp.maximum(0.0, 1.0 - (count // config.epochs) / config.num_updates)

    rate = decayed if config.decay_learning_rates else config.q_lr
    return optax.chain(clip, optax.adam(rate, eps=config.adam_eps))


class Transition(NamedTuple):
    """One step, `[N, ...]`, as it is replayed."""

    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array  # truncated steps are like all others: the value of `next_obs` counts
    next_obs: jax.Array


class Replay(NamedTuple):
    """A ring of the last steps."""

    steps: Transition  # [capacity, ...]
    position: jax.Array  # where the next step is written
    size: jax.Array  # steps in the ring

    def add(self, steps: Transition) -> Replay:
        """Overwrite the oldest steps, as one slice: the capacity is a multiple of their number."""
        capacity, number = len(self.steps.reward), len(steps.reward)
        write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=self.position, axis=0)
        stored = jax.tree.map(write, self.steps, steps)
        return Replay(stored, (self.position + number) % capacity, jnp.minimum(self.size + number, capacity))

    def sample(self, key: jax.Array, number: int) -> Transition:
        """Draw steps uniformly; indices count from the oldest one."""
        capacity = len(self.steps.reward)
        drawn = jax.random.randint(jax.random.split(key)[1], (number,), 0, self.size)
        oldest = jnp.where(self.size == capacity, self.position, 0)
        return jax.tree.map(lambda ring: ring[(oldest + drawn) % capacity], self.steps)


class Learner(NamedTuple):
    """Everything that changes during a run."""

    params: Any
    target_params: Any
    opt_state: Any
    replay: Replay
    updates: jax.Array  # updates so far
    env_state: Any
    obs: jax.Array  # [N, ...]
    key: jax.Array


class DQN:
    """DQN with a soft target network and uniform replay."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.env = make_env(config.env_name, config.max_episode_steps)
        layers = config.layer_sizes, getattr(jax.nn, config.activation)
        self.network: Any = Network(*layers, "action_head", self.env.num_actions, 1.0)
        self.optimiser = make_optimiser(config)

    def init(self, params_key: jax.Array, key: jax.Array) -> Learner:
        """Initialise parameters and environments, and fill the replay buffer with random steps."""
        config, num_envs = self.config, self.config.num_envs
        reset_key, warmup_key, key = jax.random.split(key, 3)
        env_state, obs = self.env.reset(jax.random.split(reset_key, num_envs))
        params = self.network.init(params_key, obs)
        one = Transition(obs[0], jnp.int32(0), jnp.float32(0), jnp.bool_(False), obs[0])
        capacity = config.total_buffer_size - config.total_buffer_size % (num_envs * config.rollout_length)
        steps = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), one)
        replay = Replay(steps, jnp.int32(0), jnp.int32(0))
        learner = Learner(params, params, self.optimiser.init(params), replay, jnp.int32(0), env_state, obs, key)
        keys = jax.random.split(warmup_key, config.warmup_steps // config.rollout_length)
        return jax.lax.scan(lambda x, key: (self.rollout(x, key, self.random_action), None), learner, keys)[0]

    def random_action(self, learner: Learner, obs: jax.Array, key: jax.Array) -> jax.Array:
        """Draw uniformly random actions."""
        keys = jax.random.split(jax.random.split(key)[1], len(obs))
        return jax.vmap(lambda key: jax.random.randint(key, (), 0, self.env.num_actions))(keys)

    def act(self, learner: Learner, obs: jax.Array, key: jax.Array) -> jax.Array:
        """Draw the best action, or a random one with probability epsilon."""
        config, num_actions = self.config, self.env.num_actions
        left = jnp.maximum(0.0, 1.0 - learner.updates / max(config.exploration_fraction * config.num_updates, 1.0))
        change = config.initial_epsilon - config.training_epsilon if config.exploration_fraction > 0.0 else 0.0
        epsilon = config.training_epsilon + change * left
        best = jax.nn.one_hot(jnp.argmax(self.network.apply(learner.params, obs), axis=-1), num_actions)
        probs = epsilon * (1.0 / num_actions) + (1.0 - epsilon) * best
        return jax.random.categorical(jax.random.split(key)[1], jnp.log(probs))

    def rollout(self, learner: Learner, key: jax.Array, act: Callable[[Learner, jax.Array, jax.Array], Any]) -> Learner:
        """Act for `rollout_length` steps in every environment, and add them to the replay buffer."""
        config, length = self.config, self.config.rollout_length
        _, act_key, env_key = jax.random.split(key, 3)

        def act_and_step(carry: Any, keys: Any) -> tuple[Any, Transition]:
            (env_state, obs), (act_key, env_keys) = carry, keys
            action = act(learner, obs, act_key)
            env_state, step = self.env.step(env_keys, env_state, action)
            reward = jnp.clip(step.reward, -config.max_abs_reward, config.max_abs_reward) * config.reward_scale
            return (env_state, step.obs), Transition(obs, action, reward, step.terminated, step.next_obs)

        keys = jax.random.split(act_key, length), jax.random.split(env_key, (length, config.num_envs))
        (env_state, obs), steps = jax.lax.scan(act_and_step, (learner.env_state, learner.obs), keys)
        replay = learner.replay.add(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps))
        return learner._replace(env_state=env_state, obs=obs, replay=replay)

    def loss(self, params: Any, target_params: Any, batch: Transition) -> jax.Array:
        """Compute half the squared error of r + gamma (1 - terminated) max_a q_target(next_obs, a)."""
        q_tm1 = self.network.apply(params, batch.obs)
        q_t = self.network.apply(target_params, batch.next_obs)
        value = jnp.take_along_axis(q_tm1, batch.action[:, None], axis=-1)[:, 0]
        target = batch.reward + self.config.gamma * (1.0 - batch.terminated) * jnp.max(q_t, axis=-1)
        return jnp.mean(0.5 * jnp.square(target - value))

    def update(self, learner: Learner) -> Learner:
        """Roll out, and take several gradient steps, each on a batch of its own."""
        key, rollout_key, update_key = jax.random.split(learner.key, 3)
        learner = self.rollout(learner._replace(key=key), rollout_key, self.act)

        def sgd_step(carry: Any, key: jax.Array) -> tuple[Any, None]:
            params, target_params, opt_state = carry
            batch = learner.replay.sample(jax.random.split(key)[0], self.config.total_batch_size)
            updates, opt_state = self.optimiser.update(jax.grad(self.loss)(params, target_params, batch), opt_state)
            params = optax.apply_updates(params, updates)
            target_params = optax.incremental_update(params, target_params, self.config.tau)
            return (params, target_params, opt_state), None

        first = learner.params, learner.target_params, learner.opt_state
        carry, _ = jax.lax.scan(sgd_step, first, jax.random.split(update_key, self.config.epochs))
        return Learner(*carry, learner.replay, learner.updates + 1, learner.env_state, learner.obs, key)

    def evaluate(self, params: Any, key: jax.Array) -> jax.Array:
        """Return the mean return of complete episodes of the best actions."""
        num_episodes, (reset_key, key) = self.config.num_eval_episodes, jax.random.split(key)
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
    algorithm, num_evaluations = DQN(config), min(config.num_evaluations, config.num_updates)
    params_key, key, eval_key = split_seed(seed)
    ends = jnp.array([i * config.num_updates // num_evaluations for i in range(num_evaluations + 1)])

    def interval(learner: Learner, number: jax.Array) -> tuple[Learner, jax.Array]:
        start, end = ends[jnp.maximum(number - 1, 0)], ends[number]
        learner = jax.lax.fori_loop(start, end, lambda _, learner: algorithm.update(learner), learner)
        mean = algorithm.evaluate(learner.params, jax.random.split(jax.random.fold_in(eval_key, end))[0])
        steps, first = config.num_envs * config.rollout_length, config.num_envs * config.warmup_steps
        jax.debug.callback(lambda n, x: print(f"{first + int(n) * steps:>10} steps, mean return {x:.2f}"), end, mean)
        return learner, mean

    first = jax.custom_batching.sequential_vmap(algorithm.init)(params_key, key)  # batched QR decompositions may hang
    return jax.lax.scan(interval, first, jnp.arange(num_evaluations + 1))


# Nothing below is about reinforcement learning: random numbers as in stoix_like, and the command line.


def split_seed(seed: int | jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the keys of parameters, training and evaluation, split as in stoix_like, where runs are the same."""
    train_key, eval_key = jax.random.split(jax.random.key(seed))
    params_key, shards_key = jax.random.split(train_key)
    return params_key, jax.random.split(shards_key)[0], eval_key


def parse(arguments: Sequence[str] | None = None) -> Config:
    """Read settings from the command line; None and tuples as in Python, counts also as 1e6."""

    def value(field: Any, text: str) -> Any:
        low, high = (0, 2**32 - 1) if field.name in ("seed", "warmup_steps") else (1, math.inf)
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
    if config.warmup_steps % config.rollout_length:
        parser.error("--warmup_steps: use a multiple of rollout_length")
    if config.total_buffer_size < config.num_envs * config.rollout_length:
        parser.error("--total_buffer_size: use at least num_envs x rollout_length")
    return config if config.num_updates > 0 else parser.error("--total_timesteps: fewer steps than one update takes")


if __name__ == "__main__":
    settings = parse()
    jax.block_until_ready(jax.jit(partial(train, settings))(jnp.uint32(settings.seed)))
