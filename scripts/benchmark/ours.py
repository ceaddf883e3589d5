"""Measure one scenario in its own process.

The arguments are the name of the measure, a directory for traces of jax's profiler or an empty string, and hydra
overrides.
"""

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
from peer_suite import draw_legal
from worker import serve, timed

from stoix_like.architectures.acting import start_episodes
from stoix_like.architectures.rollout import rollout
from stoix_like.base_types import RolloutState
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs import Box, Space, make
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic
from stoix_like.run.programs.compile import compile_run
from stoix_like.run.programs.functions import make_keys, traced_hyperparams
from stoix_like.run.set_up.setup import RunSetup, set_up

Run = Callable[[], dict[str, Any]]


class Programs(NamedTuple):
    """The compiled programs of a run.

    Attributes:
        keys: `(number) -> keys`, the keys of a run with the `number`-th seeds.
        init: `(keys) -> state`.
        train: `(state, updates) -> state`.
        evaluate: `(state) -> returns`.
        compile_seconds: time spent compiling.
    """

    keys: Callable[[int], Any]
    init: Callable[[Any], Any]
    train: Callable[[Any, int], Any]
    evaluate: Callable[[Any], Any]
    compile_seconds: float


def main() -> None:
    """Compile, then measure once for every line of standard input."""
    measure, profile, *overrides = sys.argv[1:]
    run, compile_seconds = MEASURES[measure](overrides)
    serve(
        partial(_profiled, run, profile) if profile else run,
        compile=compile_seconds,
        jax=jax.__version__,
        device=jax.devices()[0].device_kind,
    )


def train(overrides: list[str]) -> tuple[Run, float]:
    """Time a whole training run, with the agent's initialisation and without evaluations; the return is not timed."""
    setup = _set_up(overrides)
    programs, plan = _compile_programs(setup), setup.plan
    # The random steps of the warm-up are timed, and counted by the peers, too.
    steps = (plan.warmup_steps + plan.num_updates * plan.steps_per_update) * setup.population.num_members
    numbers = itertools.count()

    def run() -> dict[str, Any]:
        keys = programs.keys(next(numbers))
        with timed() as clock:
            state = jax.block_until_ready(programs.train(programs.init(keys), plan.num_updates))
        return {"wall": clock.wall, "cpu": clock.cpu, "steps": steps, "return": float(programs.evaluate(state).mean())}

    return run, programs.compile_seconds


def evaluation(overrides: list[str]) -> tuple[Run, float]:
    """Measure the share of wall time that the evaluations of a run take, in percent."""
    setup = _set_up(overrides)
    programs = _compile_programs(setup)
    intervals = [end - start for start, end in itertools.pairwise((0, *setup.plan.evaluations))]
    numbers = itertools.count()

    def run() -> dict[str, Any]:
        state, training, evaluating = programs.init(programs.keys(next(numbers))), 0.0, 0.0
        for updates in intervals:
            with timed() as clock:
                state = jax.block_until_ready(programs.train(state, updates))
            training += clock.wall
            with timed() as clock:
                jax.block_until_ready(programs.evaluate(state))
            evaluating += clock.wall
        return {"value": 100 * evaluating / (training + evaluating)}

    return run, programs.compile_seconds


def env_only(overrides: list[str]) -> tuple[Run, float]:
    """Time the rollouts of a run with uniformly random actions."""
    setup = _set_up(overrides)
    env, plan, length = setup.env, setup.plan, setup.config.system.rollout_length

    def act(_: Any, state: RolloutState, key: jax.Array) -> tuple[Any, jax.Array, Any]:
        keys = jax.random.split(key, plan.envs_per_shard)
        return state.carry, jax.vmap(env.action_space.sample)(keys), ()

    @jax.jit
    def program(key: jax.Array) -> jax.Array:
        def body(carry: tuple[RolloutState, jax.Array], key: jax.Array) -> tuple[tuple[RolloutState, jax.Array], None]:
            state, total = carry
            state, (trajectory, _) = rollout(env, act, (), state, key, length)
            # Uses every array, so that XLA cannot eliminate any.
            used = jax.tree.map(lambda leaf: jnp.sum(leaf, dtype=jnp.float32), trajectory.transitions)
            return (state, sum(jax.tree.leaves(used), start=total)), None

        env_state, timestep = env.reset(jax.random.split(key, plan.envs_per_shard))
        start = (RolloutState(env_state, timestep, ()), jnp.zeros(()))
        return jax.lax.scan(body, start, jax.random.split(key, plan.num_updates))[0][1]

    return _time_program(program, plan.num_updates * plan.steps_per_update)


def steps(overrides: list[str]) -> tuple[Run, float]:
    """Time `system.rollout_length` steps of the training environments with random legal actions."""
    config = parse_config(compose_config(overrides))
    env, num_envs, num_steps = make(config.env), config.arch.total_num_envs, config.system.rollout_length

    def step(carry: tuple[Any, Any], keys: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, Any], None]:
        state, timestep = carry
        # Like the peers: all actions are drawn at once.
        action = _draw_actions(env.action_space, keys[0], num_envs, timestep.observation.action_mask)
        return env.step(keys[1], state, action), None

    @jax.jit
    def program(key: jax.Array) -> Any:
        state = env.start_rollout(key, start[0])
        # As in training, the keys of a whole rollout are split before its loop.
        keys = jax.random.split(key, num_steps), jax.random.split(key, (num_steps, num_envs))
        return jax.lax.scan(step, (state, start[1]), keys)[0]

    start = jax.jit(env.reset)(jax.random.split(jax.random.key(0), num_envs))
    return _time_program(program, num_envs * num_steps)


def search(overrides: list[str]) -> tuple[Run, float]:
    """Time the simulations of `system.rollout_length` steps that a system with a tree search acts in."""
    setup = _set_up(overrides)
    system, plan, config = setup.build_system(), setup.plan, setup.config.system
    start = jax.jit(lambda key: start_episodes(setup.env, system, jax.random.split(key, plan.envs_per_shard)))
    shared = jax.jit(lambda key: system.init(key, start(key).timestep).shared)(jax.random.key(0))

    def program(shared: Any, key: jax.Array) -> Any:
        return rollout(setup.env, system.act, shared, start(key), key, config.rollout_length)[0].timestep

    with timed() as compiling:
        compiled = jax.jit(program).lower(shared, jax.random.key(0)).compile()
    seeds = itertools.count(1)

    def run() -> dict[str, Any]:
        key = jax.random.key(next(seeds))
        with timed() as clock:
            jax.block_until_ready(compiled(shared, key))
        simulations = plan.envs_per_shard * config.rollout_length * config.search.num_simulations
        return {"wall": clock.wall, "cpu": clock.cpu, "steps": simulations}

    return run, compiling.wall


def _draw_actions(space: Space, key: jax.Array, num_envs: int, mask: jax.Array | None) -> jax.Array:
    if isinstance(space, Box):
        return jax.random.uniform(key, (num_envs, *space.shape), minval=-1.0)
    if mask is None:
        return jax.vmap(space.sample)(jax.random.split(key, num_envs))
    return draw_legal(key, mask)


def bridge(overrides: list[str]) -> tuple[Run, float]:
    """Measure what a step of environments on the host costs more than stepping them alone, in ms per call."""
    config = parse_config(compose_config(overrides))
    env, num_envs, num_steps = make(config.env), config.arch.total_num_envs, config.system.rollout_length
    name = config.env.scenario.name
    if config.env.env_name == "envpool":
        import envpool  # only here: environments for an accelerator lack it

        envs = envpool.make_gymnasium(name, num_envs=num_envs, seed=0)
    else:
        import gymnasium

        envs = gymnasium.make_vec(name, num_envs, vectorization_mode=config.env.vectorization)
    actions = np.random.default_rng(0).integers(0, 2, (num_steps, num_envs), np.int32)
    keys = jax.random.split(jax.random.key(0), num_envs)

    @jax.jit
    def program(start: Any, actions: jax.Array) -> Any:
        return jax.lax.scan(lambda carry, action: (env.step(keys, carry[0], action), None), start, actions)[0]

    start = jax.jit(env.reset)(keys)
    with timed() as compiling:
        compiled = program.lower(start, actions).compile()
    envs.reset()

    def run() -> dict[str, Any]:
        with timed() as through_program:
            jax.block_until_ready(compiled(start, actions))
        with timed() as alone:
            for action in actions:
                envs.step(action)
        return {"value": 1000 * (through_program.wall - alone.wall) / num_steps}

    return run, compiling.wall


def net_only(overrides: list[str]) -> tuple[Run, float]:
    """Time a gradient step of actor and critic on every minibatch of a run: a lower bound on the cost of updates."""
    setup = _set_up(overrides)
    plan, minibatches, networks = setup.plan, setup.config.system.minibatches, setup.spec.networks
    actor_parts, critic_parts = networks.actor_network, networks.critic_network
    actor = FeedForwardActor(actor_parts.action_head, actor_parts.pre_torso, actor_parts.input_layer)
    critic = FeedForwardCritic(critic_parts.critic_head, critic_parts.pre_torso, critic_parts.input_layer)
    size = plan.envs_per_shard * setup.config.system.rollout_length // minibatches.num_minibatches

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
        steps = plan.num_updates * minibatches.gradient_steps
        return loss(jax.lax.scan(body, params, None, steps)[0])

    return _time_program(program, plan.num_updates * plan.steps_per_update)


def unroll(overrides: list[str], in_steps: bool = False) -> tuple[Run, float]:
    """Time gradient steps of the recurrent cells of the actor alone, on rollouts; in parallel if they are linear.

    Args:
        overrides: hydra overrides.
        in_steps: compute linear cells step by step as well.
    """
    setup = _set_up(overrides)
    plan, rnn = setup.plan, setup.spec.networks.actor_network.rnn_layer
    shape = (setup.config.system.rollout_length, plan.envs_per_shard)
    state = rnn.initialize_carry(plan.envs_per_shard)

    def outputs(params: Any, x: tuple[jax.Array, jax.Array]) -> jax.Array:
        if not in_steps:
            return rnn.apply(params, state, x)[1]
        return jax.lax.scan(lambda state, x_t: rnn.apply(params, state, x_t, method="step"), state, x)[1]

    @jax.jit
    def program(key: jax.Array) -> jax.Array:
        x = jax.random.normal(key, (*shape, rnn.hidden_state_dim)), jax.random.bernoulli(key, 0.01, shape)

        def body(params: Any, _: None) -> tuple[Any, None]:
            gradients = jax.grad(lambda params: jnp.mean(jnp.square(outputs(params, x))))(params)
            return jax.tree.map(lambda leaf, gradient: leaf - 1e-3 * gradient, params, gradients), None

        params = rnn.init(key, state, x)
        return jnp.mean(outputs(jax.lax.scan(body, params, None, plan.num_updates)[0], x))

    return _time_program(program, plan.num_updates * plan.steps_per_update)


def time_to_first_update(overrides: list[str]) -> tuple[Run, float]:
    """Time a run from its command to the record of the first update, with a warm compile cache."""
    cache = tempfile.TemporaryDirectory()
    environment = os.environ | {"XDG_CACHE_HOME": cache.name}
    # As users run it: with bytecode of the package, and the default cache.
    environment |= {"PYTHONPYCACHEPREFIX": f"{cache.name}/bytecode"}
    for name in ("JAX_COMPILATION_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)

    def run() -> dict[str, Any]:
        # The reference to `cache` keeps the directory until the last run.
        with tempfile.TemporaryDirectory(dir=cache.name) as directory:
            command = [str(Path(sys.executable).with_name("stoix-like")), "train", "logger=silent", *overrides]
            started = time.perf_counter()
            process = subprocess.Popen([*command, f"hydra.run.dir={directory}"], env=environment)
            metrics = Path(directory) / "metrics.jsonl"
            # The first line is the evaluation at step 0.
            while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 1):
                time.sleep(0.01)
            seconds = time.perf_counter() - started
            if process.wait() or not metrics.exists():
                raise SystemExit(f"{command} failed")
        return {"value": seconds}

    return run, run()["value"]


def _set_up(overrides: list[str]) -> RunSetup:
    # Without the cache, so that the compile time is that of compiling.
    return set_up(parse_config(compose_config([*overrides, "arch.compile_cache=false"])))


def _compile_programs(setup: RunSetup) -> Programs:
    """Compile a run; the only function here that knows the runner's calling conventions."""
    population = setup.population
    hyperparams = traced_hyperparams(population)

    def keys(number: int) -> Any:
        seeds = tuple(seed + number * population.num_members for seed in population.seeds)
        return make_keys(setup._replace(population=population._replace(seeds=seeds)))

    compiled = compile_run(setup)
    return Programs(
        keys=keys,
        init=lambda keys: compiled.init(hyperparams, keys.agent, keys.shards),
        train=lambda state, updates: compiled.train(state, hyperparams, np.int32(updates), np.bool_(True))[0],
        evaluate=lambda state: (
            compiled.evaluate(state.shared, hyperparams, make_keys(setup).evaluation, np.uint32(0)).returns
        ),
        compile_seconds=compiled.seconds,
    )


def _time_program(program: Any, steps: int) -> tuple[Run, float]:
    with timed() as compiling:
        compiled = program.lower(jax.random.key(0)).compile()
    seeds = itertools.count(1)

    def run() -> dict[str, Any]:
        key = jax.random.key(next(seeds))
        with timed() as clock:
            jax.block_until_ready(compiled(key))
        return {"wall": clock.wall, "cpu": clock.cpu, "steps": steps}

    return run, compiling.wall


def _profiled(run: Run, directory: str) -> dict[str, Any]:
    with jax.profiler.trace(directory):
        return run()


MEASURES = {
    function.__name__: function
    for function in (train, evaluation, env_only, steps, search, bridge, net_only, unroll, time_to_first_update)
} | {"unroll_in_steps": partial(unroll, in_steps=True)}

if __name__ == "__main__":
    main()
