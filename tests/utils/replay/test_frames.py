import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation, Trajectory, Transition
from stoix_like.envs.spaces import Box
from stoix_like.utils.replay import ReplayConfig, end_episodes, frames, make_replay
from support.compiled import run
from support.replayed import SIZES, Prioritised, first, spec
from support.set_ups import setup_of

NUM_ENVS, K = 3, 3
# Two channels per frame.
SHAPE = (2, 1, 2 * K)


def make(stacked, schema=ReplayConfig, **values):
    config = schema(**{**SIZES, "total_buffer_size": NUM_ENVS * 20, "total_batch_size": 32, **values})
    return make_replay(config, spec(Box(0, 255, SHAPE, jnp.uint8, stacked), num_envs=NUM_ENVS), gamma=0.5)


class Episodes:
    """Environments that play episodes of random lengths and stack their frames, which are random."""

    def __init__(self, mean_length=6, seed=0):
        self._rng = np.random.default_rng(seed)
        self._mean_length = mean_length
        self.restart()

    def restart(self):
        self._stacks = np.stack([self._filled() for _ in range(NUM_ENVS)])
        self._is_first = np.ones(NUM_ENVS, bool)

    def _frame(self):
        return self._rng.integers(256, size=(*SHAPE[:-1], 2), dtype=np.uint8)

    def _filled(self):
        return np.concatenate([self._frame()] * K, axis=-1)

    def rollout(self, length):
        steps = [self._step() for _ in range(length)]
        return Trajectory(jax.device_put(jax.tree.map(lambda *leaves: np.stack(leaves), *steps)), ())

    def _step(self):
        before, is_first = self._stacks.copy(), self._is_first
        after = np.stack([np.concatenate([stack[..., 2:], self._frame()], axis=-1) for stack in before])
        ended = self._rng.random(NUM_ENVS) < 1 / self._mean_length
        terminated = ended & (self._rng.random(NUM_ENVS) < 0.5)
        self._stacks = np.stack([self._filled() if end else stack for end, stack in zip(ended, after, strict=True)])
        self._is_first = ended
        return Transition(
            observation=Observation(before),
            action=self._rng.integers(3, size=NUM_ENVS, dtype=np.int32),
            reward=self._rng.random(NUM_ENVS, dtype=np.float32),
            terminated=terminated,
            truncated=ended & ~terminated,
            next_observation=Observation(after),
            is_first=is_first,
            extras=(),
        )


def empty(replay):
    return run(lambda: replay.init(first(Observation(jnp.zeros(SHAPE, jnp.uint8)), NUM_ENVS)))


def jitted(replay):
    return type(replay)(*map(jax.jit, replay))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "values"),
    [(ReplayConfig, {"n_step": 3}), (Prioritised, {"n_step": 3}), (ReplayConfig, {"store_next_observation": False})],
)
def test_samples_are_those_of_a_replay_that_stores_stacks(schema, values):
    """Eighty steps through a ring of 20, with one resumption in between: starts, ends, wrap-arounds."""
    once, whole = jitted(make(K, schema, **values)), jitted(make(1, schema, **values))
    episodes, states = Episodes(), [empty(once), empty(whole)]
    truncated = 0
    for number in range(20):
        if number == 11:
            episodes.restart()
            states = [end_episodes(state) for state in states]
        trajectory = episodes.rollout(4)
        states = [jax.jit(replay.add)(state, trajectory) for replay, state in zip((once, whole), states, strict=True)]
        key = jax.random.key(number)
        batch, reference = (
            jax.jit(replay.sample)(state, key) for replay, state in zip((once, whole), states, strict=True)
        )
        jax.tree.map(np.testing.assert_array_equal, batch, reference)
        truncated += trajectory.transitions.truncated.sum()
        if schema is Prioritised:
            states = [
                jax.jit(replay.set_priorities)(state, batch.indices, batch.reward + 0.1)
                for replay, state in zip((once, whole), states, strict=True)
            ]
    assert truncated > 5


def test_truncated_steps_without_their_last_frame_have_no_weight(monkeypatch):
    monkeypatch.setattr(frames, "_MIN_ENDS", 1)
    once, whole = jitted(make(K, total_batch_size=60)), jitted(make(1, total_batch_size=60))
    episodes, states, key = Episodes(mean_length=1.5), [empty(once), empty(whole)], jax.random.key(0)
    for _ in range(8):
        trajectory = episodes.rollout(4)
        states = [jax.jit(replay.add)(state, trajectory) for replay, state in zip((once, whole), states, strict=True)]
    batch, reference = jax.device_get((once.sample(states[0], key), whole.sample(states[1], key)))
    lost, bootstraps = batch.weight == 0.0, batch.discount > 0.0
    assert 0.1 < lost[bootstraps].mean() < 0.9
    assert not lost[~bootstraps].any()
    np.testing.assert_array_equal(batch.observation.agent_view, reference.observation.agent_view)
    kept = ~lost & bootstraps
    np.testing.assert_array_equal(batch.next_observation.agent_view[kept], reference.next_observation.agent_view[kept])


SMALL = ["system.total_batch_size=32", "system.warmup_steps=64", "arch.total_num_envs=16"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["system=q_learning/ff_rainbow", "network=cnn_rainbow", "env=envpool/pong"],
        ["system=q_learning/ff_dqn", "network=cnn_dqn", "env=gymnasium/pong"],
    ],
)
def test_a_million_steps_of_atari_need_about_seven_gibibytes(overrides):
    setup = setup_of(*overrides, *SMALL, "system.total_buffer_size=1000000")
    setup.env.close()
    setup.eval_env.close()
    (note,) = (note for note in setup.plan.notes if note.startswith("replay buffer"))
    assert 6.5 < float(note.split("=")[1].split(" GiB")[0]) < 7.0
