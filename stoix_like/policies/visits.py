"""The states that a policy visits, as arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.acting import Act, act_and_step, start_episodes
from stoix_like.base_types import Observation, RolloutState, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError

# Steps per compiled call; the lengths of the episodes are unknown in advance.
_CHUNK = 128
# Of the observations that are kept.
_MAX_BYTES = 2**29
# Folded into the key of the seed, so that no training or evaluation starts in the same states.
_STREAM = 0x515


class Visits(NamedTuple):
    """M steps of E episodes, one after the other, as host arrays; several agents stand one after the other."""

    observation: Observation  # `[M, ...]` what was acted on
    action: np.ndarray  # `[M, ...]`, in the units of the suite
    reward: np.ndarray  # `[M]`, of the suite
    episode: np.ndarray  # `[M]` int, the episode of each step; of A agents, A times that plus the number of the agent
    returns: np.ndarray  # `[E]` sums of the rewards; of several agents, of the team
    finished: np.ndarray  # `[E]` bool, whether the episode ended; otherwise its last steps are missing

    def paths(self, most: int) -> list[np.ndarray]:
        """Return the numbers of the steps of the first episodes; of several agents, of each agent apart."""
        return [np.flatnonzero(self.episode == path) for path in range(min(most, 1 + self.episode.max()))]


class Rows(NamedTuple):
    """Steps of E episodes side by side, and the last successors; zero in the rows after an episode."""

    observation: Any  # `[E, T + 1, ...]`; later ones than the successor of the last step are undefined
    action: Any  # `[E, T + 1, ...]`, in the units of the suite
    reward: Any  # `[E, T + 1]`, of the suite
    terminated: Any  # `[E, T + 1]` bool
    truncated: Any  # `[E, T + 1]` bool
    valid: Any  # `[E, T + 1]` bool, whether the episode took this step


def num_first(lengths: np.ndarray, steps: int, num_agents: int) -> int:
    """Return how many episodes, in an order that does not depend on their length, have enough steps.

    `lengths`: `[E]` steps of the episodes.
    """
    number = 1 + int(np.searchsorted(np.cumsum(lengths), steps))
    return -(-number // num_agents) * num_agents


def check_seed(seed: int) -> None:
    """Check the seed of an evaluation."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed={seed} is out of range: it must be at least 0 and below 2**32")


def play(env: VectorEnvironment, system: System, shared: Any, episodes: int, max_steps: int, seed: int) -> Visits:
    """Play whole episodes with `eval_act`, and keep every step."""
    player = Player(env, system, system.eval_act, episodes, max_steps, _MAX_BYTES)
    rows = player.play(shared, jax.random.fold_in(jax.random.key(seed), _STREAM))
    valid = rows.valid
    observation, action, reward = jax.tree.map(lambda leaf: leaf[valid], (rows.observation, rows.action, rows.reward))
    episode, _ = np.nonzero(valid)
    by_agent = rows.reward.sum(axis=1, dtype=np.float64).reshape(episodes, -1)
    returns = by_agent[:, 0] if env.team_reward else by_agent.sum(axis=1)
    finished = (rows.terminated | rows.truncated).any(axis=1)[:: env.num_agents]
    return Visits(observation, action, reward, episode, returns, finished)


class Player:
    """Whole episodes side by side, with every step; the programs are compiled once.

    `max_bytes`: size of the observations at which all of them are stopped.
    """

    def __init__(
        self, env: VectorEnvironment, system: System, act: Act, episodes: int, max_steps: int, max_bytes: int = 2**62
    ) -> None:
        self._env, self._act = env, act
        self._rows, self._max_steps, self._max_bytes = episodes * env.num_agents, max_steps, max_bytes
        self._start = jax.jit(lambda keys: start_episodes(env, system, keys))
        self._steps = jax.jit(self._traced_steps)

    def play(self, shared: Any, key: jax.Array, steps: int | None = None) -> Rows:
        """Play E episodes."""
        start_key, key = jax.random.split(key)
        carry = self._start(jax.random.split(start_key, self._rows)), jnp.zeros(self._rows, bool)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(carry[0].timestep.observation))
        limit = min(self._max_steps, max(1, self._max_bytes // max(1, size)))
        chunks: list[Rows] = []
        lengths = np.zeros(self._rows, int)
        for first in range(0, limit, _CHUNK):
            keys = jax.random.split(jax.random.fold_in(key, first), min(_CHUNK, limit - first))
            carry, chunk = self._steps(shared, carry, keys)
            self._env.check()
            chunks.append(jax.device_get(chunk))
            lengths += chunks[-1].valid.sum(axis=0)
            needed = self._rows if steps is None else num_first(lengths, steps, self._env.num_agents)
            if carry[1][:needed].all():
                break
        self._env.release(carry[0].env_state)
        rest = jax.tree.map(lambda leaf: np.zeros_like(leaf[:1]), chunks[-1])
        successor = jax.tree.map(lambda leaf: np.asarray(leaf)[None], carry[0].timestep.observation)
        rows = (*chunks, rest._replace(observation=successor))
        return jax.tree.map(lambda *parts: np.concatenate(parts).swapaxes(0, 1), *rows)

    def _traced_steps(
        self, shared: Any, carry: tuple[RolloutState, jax.Array], keys: jax.Array
    ) -> tuple[tuple[RolloutState, jax.Array], Rows]:
        def step(carry: tuple[RolloutState, jax.Array], key: jax.Array) -> tuple[tuple[RolloutState, jax.Array], Rows]:
            (state, done), (act_key, env_key) = carry, jax.random.split(key)
            env_keys = jax.random.split(env_key, self._rows)
            after, action, _ = act_and_step(self._env, self._act, shared, state, act_key, env_keys)
            outcome, taken = after.timestep, self._env.native_action(action)
            # What follows an episode is undefined.
            taken, reward, terminated, truncated = jax.tree.map(
                lambda x: jnp.where(done.reshape(-1, *[1] * (x.ndim - 1)), jnp.zeros_like(x), x),
                (taken, outcome.reward, outcome.terminated, outcome.truncated),
            )
            row = Rows(state.timestep.observation, taken, reward, terminated, truncated, ~done)
            return (after, done | terminated | truncated), row

        return jax.lax.scan(step, carry, keys)
