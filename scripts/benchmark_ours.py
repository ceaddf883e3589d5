"""Measures one scenario of `benchmark.py` in a process of its own: what is measured, then hydra overrides."""

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from benchmark_worker import serve, timed

from stoix_like.architectures.rollout import rollout
from stoix_like.base_types import RolloutState
from stoix_like.config import compose_config, parse_config
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic
from stoix_like.run.compile import compile_run, make_keys, traced_hyperparams
from stoix_like.run.setup import RunSetup, set_up

Run = Callable[[], dict[str, Any]]


class Programs(NamedTuple):
    """A run's parts: `keys(number)` of the run with that number's seeds, and what is compiled.

    The compiled ones are `init(keys) -> state`, `train(state, updates) -> state` and `evaluate(state) -> returns`.
    """

    keys: Callable[[int], Any]
    init: Callable[[Any], Any]
    train: Callable[[Any, int], Any]
    evaluate: Callable[[Any], Any]
    compile_seconds: float


def main() -> None:
    """Compile, then measure once for every line read."""
    measure, profile, *overrides = sys.argv[1:]
    run, compile_seconds = MEASURES[measure](overrides)
    serve(partial(_profiled, run, profile) if profile else run, compile=compile_seconds, jax=jax.__version__)


def train(overrides: list[str]) -> tuple[Run, float]:
    """A whole training run, the making of the agent included, without evaluations; that of the result is not timed."""
    setup = _set_up(overrides)
    programs, plan = _programs(setup), setup.plan
    steps = plan.num_updates * plan.steps_per_update * setup.population.num_members
    numbers = itertools.count()

    def run() -> dict[str, Any]:
        keys = programs.keys(next(numbers))
        with timed() as clock:
            state = jax.block_until_ready(programs.train(programs.init(keys), plan.num_updates))
        return {"wall": clock.wall, "cpu": clock.cpu, "steps": steps, "return": float(programs.evaluate(state).mean())}

    return run, programs.compile_seconds


def evaluation(overrides: list[str]) -> tuple[Run, float]:
    """The share of the wall time of a run that its evaluations cost."""
    setup = _set_up(overrides)
    programs = _programs(setup)
    windows = [end - start for start, end in itertools.pairwise((0, *setup.plan.evaluations))]
    numbers = itertools.count()

    def run() -> dict[str, Any]:
        state, training, evaluating = programs.init(programs.keys(next(numbers))), 0.0, 0.0
        for updates in windows:
            with timed() as clock:
                state = jax.block_until_ready(programs.train(state, updates))
            training += clock.wall
            with timed() as clock:
                jax.block_until_ready(programs.evaluate(state))
            evaluating += clock.wall
        return {"value": 100 * evaluating / (training + evaluating)}

    return run, programs.compile_seconds


def env_only(overrides: list[str]) -> tuple[Run, float]:
    """The rollouts of a run with uniformly random actions, and nothing else."""
    setup = _set_up(overrides)
    env, plan, length = setup.env, setup.plan, setup.run.system.rollout_length

    def act(_: Any, actor: RolloutState, key: jax.Array) -> tuple[Any, jax.Array, Any]:
        keys = jax.random.split(key, plan.envs_per_shard)
        return actor.carry, jax.vmap(env.action_space.sample)(keys), ()

    @jax.jit
    def program(key: jax.Array) -> jax.Array:
        def body(carry: tuple[RolloutState, jax.Array], key: jax.Array) -> tuple[tuple[RolloutState, jax.Array], None]:
            actor, total = carry
            actor, trajectory, _ = rollout(env, act, (), actor, key, length)
            # All that was seen is used, so that nothing is left out.
            used = jax.tree.map(lambda leaf: jnp.sum(leaf, dtype=jnp.float32), trajectory.transitions)
            return (actor, sum(jax.tree.leaves(used), start=total)), None

        env_state, timestep = env.reset(jax.random.split(key, plan.envs_per_shard))
        start = (RolloutState(env_state, timestep, ()), jnp.zeros(()))
        return jax.lax.scan(body, start, jax.random.split(key, plan.num_updates))[0][1]

    return _of_seeds(program, plan.num_updates * plan.steps_per_update)


def net_only(overrides: list[str]) -> tuple[Run, float]:
    """A gradient step of actor and critic on every minibatch of a run, and nothing else: the least an update costs."""
    setup = _set_up(overrides)
    plan, system, networks = setup.plan, setup.run.system, setup.networks
    actor_parts, critic_parts = networks.actor_network, networks.critic_network
    actor = FeedForwardActor(actor_parts.action_head, actor_parts.pre_torso, actor_parts.input_layer)
    critic = FeedForwardCritic(critic_parts.critic_head, critic_parts.pre_torso, critic_parts.input_layer)
    size = plan.envs_per_shard * system.rollout_length // system.num_minibatches

    @jax.jit
    def program(key: jax.Array) -> jax.Array:
        _, timestep = setup.env.reset(jax.random.split(key, size))
        observation = timestep.observation

        def loss(params: Any) -> jax.Array:
            logits = actor.apply(params[0], observation).logits
            return jnp.mean(jnp.square(logits)) + jnp.mean(jnp.square(critic.apply(params[1], observation) - 1.0))

        def body(params: Any, _: None) -> tuple[Any, None]:
            return jax.tree.map(lambda x, gradient: x - 1e-3 * gradient, params, jax.grad(loss)(params)), None

        params = (actor.init(key, observation), critic.init(key, observation))
        steps = plan.num_updates * system.epochs * system.num_minibatches
        return loss(jax.lax.scan(body, params, None, steps)[0])

    return _of_seeds(program, plan.num_updates * plan.steps_per_update)


def time_to_first_update(overrides: list[str]) -> tuple[Run, float]:
    """From the command to the record of the first update, in a process whose programs are in the compile cache."""
    cache = tempfile.TemporaryDirectory()
    environment = os.environ | {"XDG_CACHE_HOME": cache.name}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)

    def run() -> dict[str, Any]:
        # With the finaliser of `cache` in here, the directory lasts as long as this function.
        with tempfile.TemporaryDirectory(dir=cache.name) as directory:
            command = [str(Path(sys.executable).with_name("stoix-like")), "train", "logger=silent", *overrides]
            started = time.perf_counter()
            process = subprocess.Popen([*command, f"hydra.run.dir={directory}"], env=environment)
            metrics = Path(directory) / "metrics.jsonl"
            # The first line is the evaluation before training.
            while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 1):
                time.sleep(0.01)
            seconds = time.perf_counter() - started
            if process.wait() or not metrics.exists():
                raise SystemExit(f"{command} failed")
        return {"value": seconds}

    return run, run()["value"]


def _set_up(overrides: list[str]) -> RunSetup:
    # A program from the cache would not show what compiling costs.
    return set_up(parse_config(compose_config([*overrides, "arch.compile_cache=false"])))


def _programs(setup: RunSetup) -> Programs:
    """The only function here that knows how the runner calls its programs."""
    population = setup.population
    hyperparams = traced_hyperparams(population)

    def keys(number: int) -> Any:
        seeds = tuple(seed + number * population.num_members for seed in population.seeds)
        return make_keys(setup._replace(population=population._replace(seeds=seeds)))

    first = keys(0)
    compiled = compile_run(setup, first, hyperparams)
    return Programs(
        keys=keys,
        init=lambda keys: compiled.init(hyperparams, keys.agent, keys.shards),
        train=lambda state, updates: compiled.train(state, hyperparams, np.int32(updates), np.bool_(True))[0],
        evaluate=lambda state: compiled.evaluate(state.shared, hyperparams, first.evaluation).returns,
        compile_seconds=compiled.seconds,
    )


def _of_seeds(program: Any, steps: int) -> tuple[Run, float]:
    with timed() as compiling:
        compiled = program.lower(jax.random.key(0)).compile()
    seeds = itertools.count(1)

    def run() -> dict[str, Any]:
        key = jax.random.key(next(seeds))
        with timed() as clock:
            compiled(key).block_until_ready()
        return {"wall": clock.wall, "cpu": clock.cpu, "steps": steps}

    return run, compiling.wall


def _profiled(run: Run, directory: str) -> dict[str, Any]:
    with jax.profiler.trace(directory):
        return run()


MEASURES = {function.__name__: function for function in (train, evaluation, env_only, net_only, time_to_first_update)}

if __name__ == "__main__":
    main()
