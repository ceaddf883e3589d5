import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import stoix_like
from stoix_like.envs import make, make_eval
from stoix_like.envs.host import HostEnvironment, HostSpec
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.envs.suites.gymnasium import GymnasiumBatch
from stoix_like.errors import HostEnvironmentError
from stoix_like.loggers import MultiLogger
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.storage import checkpoint
from support import scripted
from support.conformance import rollout
from support.scripted import CopyingScripted, Scripted, check_sequence, check_transitions, config
from support.set_ups import setup_of

N, T = 3, 40
SCRIPTED = ["env=gymnasium", "env.scenario.name=support.scripted:Scripted-v0"]


def view(observation):
    return observation.agent_view


def check_steps(first, actions, steps):
    flags = steps.reward, steps.terminated, steps.truncated
    check_sequence(view(first.observation), actions, *flags, view(steps.next_observation), view(steps.observation))


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("kind", [SyncVectorEnv, pytest.param(AsyncVectorEnv, marks=pytest.mark.slow)])
def test_every_mode_of_automatic_reset_gives_the_transitions_that_happened(kind, mode, as_dict):
    # gymnasium does not copy the last observation before it resets.
    cls = CopyingScripted if mode is AutoresetMode.SAME_STEP else Scripted
    constructors = [lambda: cls(as_dict=as_dict)] * N
    arguments = {"context": "spawn"} if kind is AsyncVectorEnv else {}
    batch = GymnasiumBatch(kind(constructors, autoreset_mode=mode, **arguments))
    try:
        first = batch.reset([5, 6, 7])
        actions = np.random.default_rng(0).integers(3, size=(T, N))
        # They start at -1.
        steps = [jax.tree.map(np.array, batch.step(action - 1)) for action in actions]
    finally:
        batch.close()
    steps = jax.tree.map(lambda *leaves: np.stack(leaves), *steps)
    if as_dict:
        first = first["all"]
        steps = steps._replace(observation=steps.observation["all"], next_observation=steps.next_observation["all"])
    check_sequence(
        first, actions, steps.reward, steps.terminated, steps.truncated, steps.next_observation, steps.observation
    )
    assert steps.terminated.any()
    assert steps.truncated.any()


@pytest.mark.parametrize("vectorization", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_the_program_receives_the_transitions_that_happened(vectorization):
    # Arrays of changing shapes in the information of a step are no matter.
    env = make(config(vectorization=vectorization, kwargs={"ragged": True}))
    first, actions, steps = rollout(env, T)
    env.check()
    env.close()
    check_steps(first, actions, steps)


def test_wrappers_start_anew_with_each_episode():
    env = make(config(frame_stack=2, step_count=True))
    _, _, steps = rollout(env, T)
    ended = steps.terminated | steps.truncated
    np.testing.assert_array_equal(steps.episode.finished, ended)
    older, newer = np.split(view(steps.observation), 2, axis=-1)
    episode, t = newer[..., 0], newer[..., 1]
    np.testing.assert_array_equal(older[ended], newer[ended])
    np.testing.assert_array_equal(older[..., 0], episode)
    np.testing.assert_array_equal(older[~ended][:, 1], t[~ended] - 1)
    np.testing.assert_array_equal(steps.observation.step_count, t)
    played, lengths = view(steps.next_observation)[..., 4], scripted.length(view(steps.next_observation)[..., 4])
    np.testing.assert_array_equal(steps.episode.episode_length[ended], lengths[ended])
    # The sum of 8 e + t over t = 1 … length.
    np.testing.assert_array_equal(
        steps.episode.episode_return[ended], (8 * played * lengths + lengths * (lengths + 1) / 2)[ended]
    )
    env.close()


@pytest.mark.slow
def test_nested_maps_have_environments_of_their_own():
    # Two devices, each with two vmapped batches of three environments, whose calls interleave.
    env = make(config())
    mesh = jax.make_mesh((2,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))

    def play(key):
        reset_key, key = jax.random.split(key)
        state, first = env.reset(jax.random.split(reset_key, N))

        def step(state, key):
            action = jax.random.randint(key, (N,), 0, 3)
            state, timestep = env.step(jax.random.split(key, N), state, action)
            return state, (action, timestep)

        state, steps = jax.lax.scan(step, state, jax.random.split(key, T))
        return env.native_state(state).batch, first, steps

    spec = jax.sharding.PartitionSpec("device")
    program = jax.jit(jax.shard_map(jax.vmap(play), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    batches, first, (actions, steps) = jax.tree.map(np.asarray, program(jax.random.split(jax.random.key(0), 4)))
    env.check()
    assert len(set(batches[:, 0])) == 4
    for shard in range(4):
        check_steps(*jax.tree.map(lambda leaf, shard=shard: leaf[shard], (first, actions, steps)))
    env.close()


def test_steps_whose_results_are_unused_are_taken():
    env = make_eval(config())

    @jax.jit
    def play(key):
        state, _ = env.reset(key[None])
        for _ in range(3):
            state, _ = env.step(key[None], state, jnp.zeros((1,), jnp.int32))
        return env.step(key[None], state, jnp.zeros((1,), jnp.int32))[1]

    # Episodes have 1, 4, … steps: the fourth step is the third of episode 1.
    np.testing.assert_array_equal(view(play(jax.random.key(0)).next_observation)[0, :2], [1, 3])
    env.close()


SMALL = [
    *("network.actor_network.pre_torso.layer_sizes=[8]", "arch.compile_cache=false", "arch.absolute_metric=false"),
    *("arch.num_evaluation=1", "arch.num_eval_episodes=4", "arch.max_eval_steps=100", "arch.total_num_envs=8"),
]
DQN = [
    *("system=q_learning/ff_dqn", "system.rollout_length=4", "system.warmup_steps=16", "system.n_step=2"),
    *("system.total_buffer_size=2048", "system.total_batch_size=64", "system.epochs=1"),
]


@contextlib.contextmanager
def training_loop(*overrides, writer=None):
    setup = setup_of(*SCRIPTED, *SMALL, *overrides)
    try:
        yield TrainingLoop(setup, MultiLogger([]), writer)
    finally:
        setup.env.close()
        setup.eval_env.close()


def check_replay(buffer, num_new_starts=0):
    """Check all stored steps, `[..., N, L]` in the order of time, of `num_new_starts` successive processes."""
    taken = int(np.asarray(buffer.current_index).ravel()[0])
    stored = jax.tree.map(np.asarray, buffer.experience)
    axis = stored.reward.ndim - 1
    stored = jax.tree.map(lambda leaf: np.moveaxis(leaf, axis, 0)[:taken], stored)
    before, after = view(stored.observation), view(stored.next_observation)
    ended = stored.terminated | stored.truncated
    # Steps that only the end of a process interrupted are marked as truncated.
    own_end = before[..., 1] + 1 == scripted.length(before[..., 0])
    assert (ended & ~own_end).any((1, *range(2, ended.ndim))).sum() <= num_new_starts
    check_transitions(before, stored.action, stored.reward, stored.terminated, stored.truncated & own_end, after)
    # Whatever follows a step that ended nothing is its own next step.
    continues = ~ended[:-1]
    np.testing.assert_array_equal(before[1:][continues], after[:-1][continues])
    return stored


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [(), ("arch.num_devices=2", "arch.update_batch_size=2"), ("arch.population.size=2",), ("env.vectorization=async",)],
)
def test_replay_holds_the_transitions_that_happened(overrides):
    with training_loop(*DQN, "arch.total_timesteps=256", *overrides) as dqn:
        dqn.train()
        stored = check_replay(dqn.state.shards.local)
        assert stored.reward.size == dqn.env_steps * dqn.setup.population.num_members
        seeds = view(stored.observation)[0, ..., 3]
        assert len(np.unique(seeds)) == seeds.size
        # Episode 0 has one step and a reward of 1.
        assert np.ravel(dqn.history[-1]["eval/episode_return_mean"])[0] == 1.0


@pytest.mark.slow
def test_a_run_continues_with_new_episodes(tmp_path):
    train = ["arch.total_timesteps=256", "arch.compile_cache=false"]
    run = stoix_like.train(
        "q_learning/ff_dqn", [*SCRIPTED, *SMALL, *DQN[1:], *train, "logger=silent"], run_dir=tmp_path / "run"
    )
    with training_loop(*DQN, "arch.total_timesteps=512") as resumed:
        read = lambda step: checkpoint.read(run.run_dir, step, resumed.targets())  # noqa: E731
        resumed.restore(checkpoint.newest_readable(run.run_dir, read))
        assert resumed.missing
        assert resumed.progress.updates == 4
        # Without a warm-up, whose steps nothing would store.
        assert not view(resumed.state.shards.rollout_state.timestep.observation)[..., 0].any()  # numbers of episodes
        resumed.train()
        stored = check_replay(resumed.state.shards.local, num_new_starts=1)
        assert stored.reward.size == resumed.env_steps


@pytest.mark.slow
def test_resuming_says_that_episodes_start_anew_and_evaluation_closes_what_failed(tmp_path, capfd, monkeypatch):
    overrides = [*SCRIPTED, *SMALL, "system.rollout_length=4", "system.num_minibatches=2"]
    train = ["arch.total_timesteps=64", "network.critic_network.pre_torso.layer_sizes=[8]"]
    run_dir = tmp_path / "run"
    stoix_like.train("ppo/ff_ppo", [*overrides, *train], run_dir=run_dir)
    result = stoix_like.resume(run_dir, ["arch.total_timesteps=128"])
    assert result.summary["env_steps"] == 128
    assert "without the episodes of its environments" in capfd.readouterr().out
    before = Scripted.open_environments
    monkeypatch.setattr(Scripted, "step", lambda self, action: 1 / 0)
    with pytest.raises(HostEnvironmentError, match="ZeroDivisionError"):
        stoix_like.evaluate(run_dir, 2)
    assert Scripted.open_environments == before


@pytest.mark.slow
def test_what_was_learned_since_a_failure_is_dropped(monkeypatch):
    """The 40th step of each environment fails, in training: 16 are those of the warm-up."""
    monkeypatch.setenv("SCRIPTED_FAULT", "raise")
    with training_loop(*DQN, "arch.total_timesteps=512") as dqn:
        with pytest.raises(HostEnvironmentError, match="the simulator exploded"):
            dqn.train()
        assert int(dqn.state.shared.updates) == dqn.progress.updates
        assert dqn.state.shards.local == ()


@pytest.mark.parametrize(
    ("dtype", "given", "refused"),
    [
        (np.uint8, np.full((2, 2), 0.5), "float64, and uint8"),
        (np.uint8, [[0, 255], [1, 256]], "int64, and uint8"),
        (np.float32, np.zeros((2, 2), complex), "complex128, and float32"),
        (np.int32, np.ones((2, 2), np.float32), None),
        (np.float32, np.full((3, 2, 2), 0.1), None),
    ],
)
def test_observations_of_a_dtype_that_would_lose_their_meaning_are_refused(dtype, given, refused):
    """An image scaled to [0, 1] would be one of zeros and ones in bytes."""
    spec = HostSpec("images", jax.ShapeDtypeStruct((2, 2), dtype), lambda view: view, Box(0, 255, (2, 2)), Discrete(2))
    env = HostEnvironment(None, spec, 1.0)
    if refused is None:
        np.testing.assert_array_equal(env.view_of(given), np.asarray(given).astype(dtype))
        return
    with pytest.raises(ValueError, match=f"observation of images has dtype {refused} is declared, which does not hold"):
        env.view_of(given)
