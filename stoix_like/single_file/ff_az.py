"""AlphaZero (Silver et al. 2018, doi:10.1126/science.aar6404) by Gumbel search in one file, for discrete actions.

    python ff_az.py --env_name CartPole-v1 --seed 1

The environment itself is the model that mctx searches in. The policy learns the probabilities that searches find
(Danihelka et al. 2022, openreview.net/forum?id=bERaNdoegnO, equation 11), and the critic n-step returns.
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
import mctx
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

    layer_sizes: tuple[int, ...] = (64, 64)  # of the policy, and of the critic
    activation: str = "tanh"  # name of a function in jax.nn
    num_atoms: int = 255  # of the distribution of returns that the critic computes

    rollout_length: int = 32  # steps per environment between two updates, a multiple of sequence_period
    warmup_steps: int = 64  # random steps per environment before the first update, a multiple of rollout_length
    epochs: int = 16  # gradient steps per update
    total_buffer_size: int = 5_000  # capacity of the replay buffer in steps; rounded down to whole rollouts
    total_batch_size: int = 32  # sequences per gradient step
    sequence_length: int = 32  # steps of a replayed sequence
    sequence_period: int = 8  # steps between the starts of two sequences
    n_step: int = 32  # rewards per value target; fewer at the end of a sequence

    num_simulations: int = 16  # simulations per step of training
    evaluation_simulations: int = 16  # simulations per step of evaluations, at least one
    num_considered_actions: int = 16  # actions of the root that simulations start with
    gumbel_scale: float = 1.0  # scale of the noise that selects them in training
    value_scale: float = 0.1  # weight of values against the prior
    maxvisit_init: float = 50.0  # visits added to those of the most visited action in this weight

    actor_lr: float = 3e-3
    critic_lr: float = 3e-3
    max_grad_norm: float = 5.0  # clip the gradients of actor and critic each to this global norm
    adam_eps: float = 1e-8

    gamma: float = 0.99  # discount factor per step
    vf_coef: float = 1.0  # weight of the value loss
    reward_scale: float = 1.0  # multiply rewards by this before they are searched and stored

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
    """Environments that reset themselves, and the same as a model for searches, where episodes end."""

    reset: Callable[[jax.Array], tuple[Any, jax.Array]]  # (keys [N]) -> (state, obs)
    step: Callable[[jax.Array, Any, jax.Array], tuple[Any, Step]]  # (keys [N], state, action [N]) -> (state, step)
    simulate: Callable[[jax.Array, Any, jax.Array], tuple[Any, Step]]
    num_actions: int


def make_env(name: str, max_episode_steps: int | None) -> Env:
    """Build environments of gymnax."""
    env, params = gymnax.make(name)
    params = params.replace(max_steps_in_episode=max_episode_steps or params.max_steps_in_episode)

    def reset(key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = env.reset_env(key, params)
        return state, jnp.asarray(obs, jnp.float32)

    def simulate(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Step]:
        obs, state, reward, terminated, _ = env.step_env(key, state, action, params)
        next_obs = jnp.asarray(obs, jnp.float32)
        truncated = env.is_truncated(state, params) & ~terminated
        return state, Step(next_obs, jnp.asarray(reward, jnp.float32), terminated, truncated, next_obs)

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Step]:
        state, step = simulate(key, state, action)
        first = reset(jax.random.fold_in(key, 0x5EED))
        state, obs = jax.tree.map(partial(jnp.where, step.terminated | step.truncated), first, (state, step.next_obs))
        return state, step._replace(obs=obs)

    return Env(jax.vmap(reset), jax.vmap(step), jax.vmap(simulate), env.action_space(params).n)


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


def symexp_atoms(number: int, limit: float = 20.0) -> jax.Array:
    """Return values that are dense around zero, for returns of any magnitude (Hafner et al. 2023, arXiv:2301.04104)."""
    above = jnp.array([math.expm1(limit * i / (number - 1)) for i in range(1 + number % 2, number, 2)], jnp.float32)
    return jnp.concatenate([-above[::-1], jnp.zeros(number % 2), above])


def mean_value(logits: jax.Array, atoms: jax.Array) -> jax.Array:
    """Compute means of distributions over atoms, as sums of pairs: opposite large atoms cancel exactly."""
    probs, half = jax.nn.softmax(logits), len(atoms) // 2
    return (probs[..., -half:] - probs[..., :half][..., ::-1]) @ atoms[-half:]


def two_hot(target: jax.Array, atoms: jax.Array) -> jax.Array:
    """Return the probabilities of the two atoms around each target whose mean is the target."""
    gaps = jnp.diff(atoms)
    below, above = jnp.append(gaps[:1], gaps), jnp.append(gaps, gaps[-1:])

    def probs(target: jax.Array) -> jax.Array:
        return jnp.minimum((target - (atoms - below)) / below, ((atoms + above) - target) / above)

    clipped = jnp.clip(target, atoms[0], atoms[-1]).reshape(-1)
    return jnp.clip(jax.vmap(probs)(clipped), 0.0, 1.0).reshape(*target.shape, -1)


class Found(NamedTuple):
    """Results of a search, `[N, ...]`."""

    action: jax.Array
    probs: jax.Array  # of all actions, which the policy learns
    value: jax.Array


class Node(NamedTuple):
    """A state in a search tree."""

    state: Any
    beyond: jax.Array  # value of all that follows the end of an episode: of the state if truncated, else 0; NaN before


class Sample(NamedTuple):
    """One step as it is replayed."""

    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    probs: jax.Array
    value: jax.Array  # of the true successor


class Replay(NamedTuple):
    """A ring of the last blocks of steps of each environment."""

    blocks: Sample  # [N, blocks, steps of a block, ...]
    position: jax.Array  # where the next block is written
    is_full: jax.Array

    def add(self, blocks: Sample) -> Replay:
        """Overwrite the oldest blocks, as one slice: the capacity is a multiple of their number."""
        capacity, number = self.blocks.value.shape[1], blocks.value.shape[1]
        write = partial(jax.lax.dynamic_update_slice_in_dim, start_index=self.position, axis=1)
        stored = jax.tree.map(write, self.blocks, blocks)
        end = self.position + number
        return Replay(stored, end % capacity, self.is_full | (end >= capacity))

    def sample(self, key: jax.Array, number: int, length: int) -> Sample:
        """Draw sequences `[length, number, ...]` that start with a block, counted from the oldest one."""
        num_envs, capacity, period = self.blocks.value.shape
        in_a_row = -(-length // period)
        key, start_key = jax.random.split(key)
        env_key = jax.random.split(key)[1]
        filled = jnp.where(self.is_full, capacity, self.position)
        starts = jax.random.randint(start_key, (number,), 0, filled - in_a_row + 1)
        env = jax.random.randint(env_key, (number,), 0, num_envs)
        first = starts + jnp.where(self.is_full, self.position, 0)
        places = (first[:, None] + jnp.arange(in_a_row)[None]) % capacity

        def take(x: jax.Array) -> jax.Array:
            sequences = x[env[:, None], places]
            return jnp.swapaxes(sequences.reshape(number, -1, *x.shape[3:]), 0, 1)[:length]

        return jax.tree.map(take, self.blocks)


class Learner(NamedTuple):
    """Everything that changes during a run."""

    params: dict[str, Any]
    opt_state: Any
    replay: Replay
    env_state: Any
    obs: jax.Array  # [N, ...]
    key: jax.Array


class AlphaZero:
    """AlphaZero with searches in the environment."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.env = make_env(config.env_name, config.max_episode_steps)
        self.atoms = symexp_atoms(config.num_atoms)
        network = partial(Network, config.layer_sizes, getattr(jax.nn, config.activation))
        self.actor: Any = network("action_head", self.env.num_actions, 0.01)
        self.critic: Any = network("critic_head", config.num_atoms, 0.0)
        clip = optax.clip_by_global_norm(config.max_grad_norm)
        rates = {"actor": config.actor_lr, "critic": config.critic_lr}
        optimisers = {name: optax.chain(clip, optax.adam(lr, eps=config.adam_eps)) for name, lr in rates.items()}
        self.optimiser = optax.multi_transform(optimisers, {name: name for name in rates})

    def init(self, params_key: jax.Array, key: jax.Array) -> Learner:
        """Initialise parameters and environments, and fill the replay buffer with random steps."""
        config, num_envs, period = self.config, self.config.num_envs, self.config.sequence_period
        reset_key, warmup_key, key = jax.random.split(key, 3)
        env_state, obs = self.env.reset(jax.random.split(reset_key, num_envs))
        actor_key, critic_key = jax.random.split(params_key)
        params = {"actor": self.actor.init(actor_key, obs), "critic": self.critic.init(critic_key, obs)}
        zero, no = jnp.float32(0), jnp.bool_(False)
        one = Sample(obs[0], zero, no, no, jnp.zeros(self.env.num_actions), zero)
        capacity = config.total_buffer_size // (num_envs * config.rollout_length) * config.rollout_length // period
        blocks = jax.tree.map(lambda x: jnp.zeros((num_envs, capacity, period, *x.shape), x.dtype), one)
        replay = Replay(blocks, jnp.int32(0), jnp.bool_(False))
        learner = Learner(params, self.optimiser.init(params), replay, env_state, obs, key)
        keys = jax.random.split(warmup_key, config.warmup_steps // config.rollout_length)
        return jax.lax.scan(lambda x, key: (self.rollout(x, key, random=True), None), learner, keys)[0]

    def expand(self, params: dict[str, Any], obs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the prior log-probabilities and the values of states."""
        logits = self.critic.apply(params["critic"], obs)
        return jax.nn.log_softmax(self.actor.apply(params["actor"], obs)), mean_value(logits, self.atoms)

    def simulate(self, params: Any, key: jax.Array, action: jax.Array, node: Node) -> tuple[Any, Node]:
        """Step the environments in a search; behind the end of an episode, all actions lead nowhere."""
        step_key, _ = jax.random.split(key)
        state, step = self.env.simulate(jax.random.split(step_key, len(action)), node.state, action)
        prior_logits, value = self.expand(params, step.obs)
        is_over = ~jnp.isnan(node.beyond)
        ended = jnp.where(step.terminated, 0.0, jnp.where(step.truncated, value, jnp.nan))
        output = mctx.RecurrentFnOutput(
            reward=jnp.where(is_over, 0.0, step.reward * self.config.reward_scale),
            discount=jnp.where(is_over, 1.0, jnp.where(step.terminated, 0.0, self.config.gamma)),
            prior_logits=prior_logits,
            value=jnp.where(is_over, node.beyond, value),
        )
        return output, Node(state, jnp.where(is_over, node.beyond, ended))

    def search(self, params: Any, state: Any, obs: jax.Array, key: jax.Array, simulations: int, noise: float) -> Found:
        """Search from the states of the environments."""
        config, (prior_logits, value) = self.config, self.expand(params, obs)
        node = Node(state, jnp.full_like(value, jnp.nan))
        root = mctx.RootFnOutput(prior_logits=prior_logits, value=value, embedding=node)
        weights = {"value_scale": config.value_scale, "maxvisit_init": config.maxvisit_init}
        transform = partial(mctx.qtransform_completed_by_mix_value, **weights)
        options = {"max_num_considered_actions": config.num_considered_actions, "gumbel_scale": noise}
        inputs = params, jax.random.split(key)[1], root, self.simulate, simulations
        with jax.numpy_rank_promotion("allow"):  # mctx needs it, where a program refuses it
            output = mctx.gumbel_muzero_policy(*inputs, qtransform=transform, **options)
        return Found(output.action, output.action_weights, output.search_tree.summary().value)

    def rollout(self, learner: Learner, key: jax.Array, random: bool = False) -> Learner:
        """Act for `rollout_length` steps in every environment, and add them to the replay buffer."""
        config, params, period = self.config, learner.params, self.config.sequence_period
        _, act_key, env_key = jax.random.split(key, 3)

        def act_and_step(carry: Any, keys: Any) -> tuple[Any, Any]:
            (env_state, obs), (act_key, env_keys) = carry, keys
            search_key, random_key = jax.random.split(act_key) if random else (act_key, act_key)
            found = self.search(params, env_state, obs, search_key, config.num_simulations, config.gumbel_scale)
            if random:
                draw = partial(jax.random.randint, shape=(), minval=0, maxval=self.env.num_actions)
                found = found._replace(action=jax.vmap(draw)(jax.random.split(random_key, len(obs))))
            env_state, step = self.env.step(env_keys, env_state, found.action)
            return (env_state, step.obs), (obs, found, step)

        length, num_envs = config.rollout_length, config.num_envs
        keys = jax.random.split(act_key, length), jax.random.split(env_key, (length, num_envs))
        (env_state, last_obs), (obs, found, step) = jax.lax.scan(act_and_step, (learner.env_state, learner.obs), keys)
        # The value of a successor is that of the next search; of truncated steps and the last one, that of the critic.
        _, beyond = self.expand(params, step.next_obs)
        value = jnp.where(step.truncated, beyond, jnp.concatenate([found.value[1:], beyond[-1:]]))
        reward = step.reward * config.reward_scale
        samples = Sample(obs, reward, step.terminated, step.truncated, found.probs, value)
        blocks = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(len(x[0]), -1, period, *x.shape[2:]), samples)
        return learner._replace(env_state=env_state, obs=last_obs, replay=learner.replay.add(blocks))

    def value_target(self, batch: Sample) -> jax.Array:
        """Compute n-step returns `[W, B]`, which end with the episode or with the sequence."""
        steps, last = jnp.arange(len(batch.value)), len(batch.value) - 1
        discount = self.config.gamma * (1.0 - batch.terminated)
        reward = batch.reward + jnp.where(batch.truncated, discount * batch.value, 0.0)
        discount = jnp.where(batch.truncated, 0.0, discount)

        def backwards(target: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
            step = jnp.minimum(steps + k, last)
            return jnp.where((steps + k <= last)[:, None], reward[step] + discount[step] * target, target), None

        bootstrap = batch.value[jnp.minimum(steps + self.config.n_step - 1, last)]
        return jax.lax.scan(backwards, bootstrap, jnp.arange(self.config.n_step), reverse=True)[0]

    def loss(self, params: dict[str, Any], batch: Sample) -> jax.Array:
        """Compute cross-entropies to what the searches found, and to the returns."""
        log_probs = jax.nn.log_softmax(self.actor.apply(params["actor"], batch.obs))
        policy_loss = -jnp.mean(jnp.sum(batch.probs * log_probs, axis=-1))
        target = two_hot(self.value_target(batch), self.atoms)
        value_log_probs = jax.nn.log_softmax(self.critic.apply(params["critic"], batch.obs))
        return policy_loss - self.config.vf_coef * jnp.mean(jnp.sum(target * value_log_probs, axis=-1))

    def update(self, learner: Learner) -> Learner:
        """Roll out, and take several gradient steps, each on sequences of its own."""
        config, (key, rollout_key, update_key) = self.config, jax.random.split(learner.key, 3)
        learner = self.rollout(learner._replace(key=key), rollout_key)

        def sgd_step(carry: Any, key: jax.Array) -> tuple[Any, None]:
            params, opt_state = carry
            batch = learner.replay.sample(jax.random.split(key)[0], config.total_batch_size, config.sequence_length)
            updates, opt_state = self.optimiser.update(jax.grad(self.loss)(params, batch), opt_state)
            return (optax.apply_updates(params, updates), opt_state), None

        keys = jax.random.split(update_key, config.epochs)
        (params, opt_state), _ = jax.lax.scan(sgd_step, (learner.params, learner.opt_state), keys)
        return learner._replace(params=params, opt_state=opt_state)

    def evaluate(self, params: dict[str, Any], key: jax.Array) -> jax.Array:
        """Return the mean return of complete episodes with searches without noise."""
        num_episodes, (reset_key, key) = self.config.num_eval_episodes, jax.random.split(key)
        env_state, obs = self.env.reset(jax.random.split(reset_key, num_episodes))

        def act_and_step(carry: Any) -> Any:
            env_state, obs, key, total, ended = carry
            key, act_key, env_key = jax.random.split(key, 3)
            action = self.search(params, env_state, obs, act_key, self.config.evaluation_simulations, 0.0).action
            env_state, step = self.env.step(jax.random.split(env_key, num_episodes), env_state, action)
            total = total + jnp.where(ended, 0.0, step.reward)
            return env_state, step.obs, key, total, ended | step.terminated | step.truncated

        first = env_state, obs, key, jnp.zeros(num_episodes), jnp.zeros(num_episodes, bool)
        return jnp.mean(jax.lax.while_loop(lambda carry: ~jnp.all(carry[-1]), act_and_step, first)[3])


def train(config: Config, seed: int | jax.Array) -> tuple[Learner, jax.Array]:
    """Train, and return the learner and the mean returns of the evaluations; to be jitted, or vmapped over seeds."""
    algorithm, num_evaluations = AlphaZero(config), min(config.num_evaluations, config.num_updates)
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
    capacity = config.total_buffer_size // (config.num_envs * config.rollout_length) * config.rollout_length
    errors = {
        "--activation: use the name of a function in jax.nn": not callable(getattr(jax.nn, config.activation, None)),
        "--rollout_length: use a multiple of sequence_period": config.rollout_length % config.sequence_period,
        "--sequence_length: use at least sequence_period": config.sequence_length < config.sequence_period,
        "--warmup_steps: use a multiple of rollout_length": config.warmup_steps % config.rollout_length,
        "--total_buffer_size: too small for a sequence of each environment": capacity < config.sequence_length,
        "--warmup_steps: too few for a sequence": config.warmup_steps + config.rollout_length < config.sequence_length,
        "--total_timesteps: fewer steps than one update takes": config.num_updates < 1,
    }
    return parser.error(next(filter(errors.get, errors))) if any(errors.values()) else config


if __name__ == "__main__":
    settings = parse()
    jax.block_until_ready(jax.jit(partial(train, settings))(jnp.uint32(settings.seed)))
