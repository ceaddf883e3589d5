"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) in one file, for continuous actions within bounds.

    python ff_sac.py --env_name MountainCarContinuous-v0 --seed 1

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

    env_name: str = "Pendulum-v1"  # environment of gymnax with vectors as observations and continuous actions
    max_episode_steps: int | None = None  # steps after which an episode is truncated; None: those of the environment
    seed: int = 42
    total_timesteps: int = 500_000  # environment steps, over all environments; rounded down to whole updates
    num_envs: int = 8
    num_evaluations: int = 20  # after the one at step 0, at even intervals
    num_eval_episodes: int = 32

    layer_sizes: tuple[int, ...] = (256, 256)  # of the policy, and of each critic
    activation: str = "relu"  # name of a function in jax.nn
    min_scale: float = 1e-3  # smallest standard deviation of the policy before it is squashed

    rollout_length: int = 1  # steps per environment between two updates
    warmup_steps: int = 128  # random steps per environment before the first update, a multiple of rollout_length
    epochs: int = 8  # gradient steps per update
    total_buffer_size: int = 1_000_000  # capacity of the replay buffer in steps; rounded down to whole rollouts
    total_batch_size: int = 256  # steps per gradient step

    actor_lr: float = 3e-4
    q_lr: float = 3e-4
    alpha_lr: float = 3e-4  # of the log-temperature
    adam_eps: float = 1e-8
    tau: float = 0.005  # Polyak step size of the target critics (soft update), per gradient step

    gamma: float = 0.99  # discount factor per step
    reward_scale: float = 1.0  # multiply rewards by this before learning
    target_entropy_scale: float = 1.0  # the target entropy is minus this, in nats per action dimension
    init_alpha: float = 1.0  # initial temperature

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
    action_size: int


def make_env(name: str, max_episode_steps: int | None) -> Env:
    """Build environments of gymnax, whose actions are rescaled from [-1, 1] to their bounds."""
    env, params = gymnax.make(name)
    params = params.replace(max_steps_in_episode=max_episode_steps or params.max_steps_in_episode)
    space = env.action_space(params)
    low, high = (jnp.broadcast_to(jnp.asarray(bound, jnp.float32), space.shape) for bound in (space.low, space.high))
    middle, half_range = (high + low) / 2, (high - low) / 2

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = env.reset_env(key, params)
        return state, jnp.asarray(obs, jnp.float32)

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Step]:
        rescaled = middle + half_range * jnp.clip(action, -1.0, 1.0)
        obs, state, reward, terminated, _ = env.step_env(key, state, rescaled, params)
        next_obs = jnp.asarray(obs, jnp.float32)
        truncated = env.is_truncated(state, params) & ~terminated
        first = reset(jax.random.fold_in(key, 0x5EED))
        state, obs = jax.tree.map(partial(jnp.where, terminated | truncated), first, (state, next_obs))
        return state, Step(obs, jnp.asarray(reward, jnp.float32), terminated, truncated, next_obs)

    return Env(jax.vmap(reset), jax.vmap(step), space.shape[0])


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


class Critics(nn.Module):
    """Two values of actions, `[..., 2]`, by networks of their own; their minimum is the target and what counts."""

    layer_sizes: Sequence[int]
    activation: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        """Return one value per critic."""
        x, layers = jnp.concatenate([obs, action], axis=-1), (self.layer_sizes, self.activation)
        critics = [Network(*layers, "critic_head", 1, 1.0, name=f"networks_{i}") for i in range(2)]
        return jnp.concatenate([critic(x) for critic in critics], axis=-1)


@jax.custom_jvp
def log_slope(x: jax.Array) -> jax.Array:
    """Compute log(1 - tanh^2 x) without cancellation."""
    size = jnp.abs(x)
    return math.log(4.0) - 2.0 * (size + jnp.log1p(jnp.exp(-2.0 * size)))


log_slope.defjvps(lambda dx, _, x: -2.0 * jnp.tanh(x) * dx)


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


class Params(NamedTuple):
    """Parameters of the policy, the critics and their targets, and the logarithm of the temperature."""

    actor: Any
    critics: Any
    targets: Any
    log_alpha: jax.Array


class Learner(NamedTuple):
    """Everything that changes during a run."""

    params: Params
    opt_states: tuple[Any, Any, Any]  # of actor, critics and temperature
    replay: Replay
    env_state: Any
    obs: jax.Array  # [N, ...]
    key: jax.Array


class SAC:
    """SAC with several critics and a learned temperature."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.env = make_env(config.env_name, config.max_episode_steps)
        layers = config.layer_sizes, getattr(jax.nn, config.activation)
        self.actor: Any = Network(*layers, "action_head", 2 * self.env.action_size, 0.01)
        self.critics: Any = Critics(*layers)
        rates = config.actor_lr, config.q_lr, config.alpha_lr
        self.optimisers = [optax.adam(lr, eps=config.adam_eps) for lr in rates]

    def init(self, params_key: jax.Array, key: jax.Array) -> Learner:
        """Initialise parameters and environments, and fill the replay buffer with random steps."""
        config, (reset_key, warmup_key, key) = self.config, jax.random.split(key, 3)
        env_state, obs = self.env.reset(jax.random.split(reset_key, config.num_envs))
        actor_key, q_key, _ = jax.random.split(params_key, 3)
        action = jnp.zeros((config.num_envs, self.env.action_size))
        actor, critics = self.actor.init(actor_key, obs), self.critics.init(q_key, obs, action)
        params = Params(actor, critics, critics, jnp.log(jnp.float32(config.init_alpha)))
        parts = zip(self.optimisers, (actor, critics, params.log_alpha), strict=True)
        opt_states = tuple(optim.init(part) for optim, part in parts)
        one = Transition(obs[0], action[0], jnp.float32(0), jnp.bool_(False), obs[0])
        capacity = config.total_buffer_size - config.total_buffer_size % (config.num_envs * config.rollout_length)
        steps = jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), one)
        learner = Learner(params, opt_states, Replay(steps, jnp.int32(0), jnp.int32(0)), env_state, obs, key)
        keys = jax.random.split(warmup_key, config.warmup_steps // config.rollout_length)
        return jax.lax.scan(lambda x, key: (self.rollout(x, key, random=True), None), learner, keys)[0]

    def sample(self, params: Any, obs: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Turn normal noise into actions, and return them with their log-probabilities in nats (appendix C)."""
        loc, spread = jnp.moveaxis(self.actor.apply(params, obs).reshape(len(obs), 2, -1), 1, 0)
        scale = jax.nn.softplus(spread) + self.config.min_scale
        x = scale * noise + loc
        action = -1.0 + 2.0 * (0.5 + 0.5 * jnp.tanh(x))  # as for any bounds, low + (high - low) (1 + tanh x) / 2
        log_prob = -0.5 * jnp.square((x - loc) / scale) - (0.5 * math.log(2.0 * math.pi) + jnp.log(scale))
        return action, jnp.sum(log_prob - log_slope(x), axis=-1)

    def rollout(self, learner: Learner, key: jax.Array, random: bool = False) -> Learner:
        """Act for `rollout_length` steps in every environment, and add them to the replay buffer."""
        config, length, shape = self.config, self.config.rollout_length, (self.env.action_size,)
        _, act_key, env_key = jax.random.split(key, 3)

        def draw(key: jax.Array) -> jax.Array:
            keys = jax.random.split(jax.random.split(key)[1 if random else 0], config.num_envs)
            uniform = partial(jax.random.uniform, shape=shape, minval=-1.0, maxval=1.0)
            return jax.vmap(uniform if random else partial(jax.random.normal, shape=shape))(keys)

        def act_and_step(carry: Any, inputs: Any) -> tuple[Any, Transition]:
            (env_state, obs), (drawn, env_keys) = carry, inputs
            action = drawn if random else self.sample(learner.params.actor, obs, drawn)[0]
            env_state, step = self.env.step(env_keys, env_state, action)
            stored = Transition(obs, action, step.reward * config.reward_scale, step.terminated, step.next_obs)
            return (env_state, step.obs), stored

        drawn = jax.vmap(draw)(jax.random.split(act_key, length))
        inputs = drawn, jax.random.split(env_key, (length, config.num_envs))
        (env_state, obs), steps = jax.lax.scan(act_and_step, (learner.env_state, learner.obs), inputs)
        replay = learner.replay.add(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps))
        return learner._replace(env_state=env_state, obs=obs, replay=replay)

    def critic_loss(self, critics: Any, params: Params, batch: Transition, noise: jax.Array) -> jax.Array:
        """Compute squared errors to r + gamma (1 - terminated) (min q - alpha log pi) (equations 5 and 6)."""
        action, log_prob = self.sample(params.actor, batch.next_obs, noise)
        q_t = self.critics.apply(params.targets, batch.next_obs, action)
        soft_value = jnp.min(q_t - jnp.exp(params.log_alpha) * log_prob[:, None], axis=-1)
        target = batch.reward + self.config.gamma * (1.0 - batch.terminated) * soft_value
        q_tm1 = self.critics.apply(critics, batch.obs, batch.action)
        return jnp.mean(0.5 * jnp.sum(jnp.square(target[:, None] - q_tm1), axis=-1))

    def actor_loss(self, actor: Any, params: Params, batch: Transition, noise: jax.Array) -> tuple[Any, Any]:
        """Compute the negative soft value of the policy (equation 7), and its entropy."""
        action, log_prob = self.sample(actor, batch.obs, noise)
        q = jnp.min(self.critics.apply(params.critics, batch.obs, action), axis=-1)
        return jnp.mean(jnp.exp(params.log_alpha) * log_prob - q), -jnp.mean(log_prob)

    def sgd_step(self, params: Params, opt_states: Any, batch: Transition, noise: Any) -> tuple[Params, Any]:
        """Improve the critics, then the policy, then the temperature."""
        (actor_optim, q_optim, alpha_optim), (actor_state, q_state, alpha_state) = self.optimisers, opt_states
        updates, q_state = q_optim.update(jax.grad(self.critic_loss)(params.critics, params, batch, noise[0]), q_state)
        critics = optax.apply_updates(params.critics, updates)
        targets = optax.incremental_update(critics, params.targets, self.config.tau)
        params = params._replace(critics=critics, targets=targets)
        grads, entropy = jax.grad(self.actor_loss, has_aux=True)(params.actor, params, batch, noise[1])
        updates, actor_state = actor_optim.update(grads, actor_state)
        actor = optax.apply_updates(params.actor, updates)
        surplus = entropy + self.config.target_entropy_scale * self.env.action_size
        grad = jax.grad(lambda log_alpha: jnp.exp(log_alpha) * surplus)(params.log_alpha)  # equation 18
        updates, alpha_state = alpha_optim.update(grad, alpha_state)
        log_alpha = optax.apply_updates(params.log_alpha, updates)
        return Params(actor, critics, targets, log_alpha), (actor_state, q_state, alpha_state)

    def update(self, learner: Learner) -> Learner:
        """Roll out, and take several gradient steps, each on a batch of its own."""
        key, rollout_key, update_key = jax.random.split(learner.key, 3)
        learner = self.rollout(learner._replace(key=key), rollout_key)

        def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            sample_key, step_key = jax.random.split(key)
            shape = self.config.total_batch_size, self.env.action_size
            return sample_key, jax.vmap(lambda key: jax.random.normal(key, shape))(jax.random.split(step_key))

        def epoch(carry: tuple[Params, Any], drawn: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
            batch = learner.replay.sample(drawn[0], self.config.total_batch_size)
            return self.sgd_step(*carry, batch, drawn[1]), None

        drawn = jax.vmap(draw)(jax.random.split(update_key, self.config.epochs))
        (params, opt_states), _ = jax.lax.scan(epoch, (learner.params, learner.opt_states), drawn)
        return learner._replace(params=params, opt_states=opt_states)

    def evaluate(self, params: Params, key: jax.Array) -> jax.Array:
        """Return the mean return of complete episodes without noise."""
        num_episodes, (reset_key, key) = self.config.num_eval_episodes, jax.random.split(key)
        no_noise = jnp.zeros((num_episodes, self.env.action_size))
        env_state, obs = self.env.reset(jax.random.split(reset_key, num_episodes))

        def act_and_step(carry: Any) -> Any:
            env_state, obs, key, total, ended = carry
            key, _, env_key = jax.random.split(key, 3)
            action, _ = self.sample(params.actor, obs, no_noise)
            env_state, step = self.env.step(jax.random.split(env_key, num_episodes), env_state, action)
            total = total + jnp.where(ended, 0.0, step.reward)
            return env_state, step.obs, key, total, ended | step.terminated | step.truncated

        first = env_state, obs, key, jnp.zeros(num_episodes), jnp.zeros(num_episodes, bool)
        return jnp.mean(jax.lax.while_loop(lambda carry: ~jnp.all(carry[-1]), act_and_step, first)[3])


def train(config: Config, seed: int | jax.Array) -> tuple[Learner, jax.Array]:
    """Train, and return the learner and the mean returns of the evaluations; to be jitted, or vmapped over seeds."""
    algorithm, num_evaluations = SAC(config), min(config.num_evaluations, config.num_updates)
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
    if not known or not hasattr(gymnax.make(config.env_name)[0].action_space(), "low"):
        parser.error("--env_name: use an environment of gymnax with continuous actions")
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
