"""Tasks that isolate memory: what was seen must be remembered, and nothing else is hard.

| task | to remember | optimal return | best return without memory, on average |
|---|---|---|---|
| t_maze | one of two cues, for `length` steps | 1 | 0 |
| repeat_first | the first symbol, for `length` steps | 1 | 2 / num_symbols - 1 |
| repeat_previous | the symbol of `delay` steps ago, in every step | 1 | 2 / num_symbols - 1 |
| count_recall | how often each symbol was shown | 1 | of guesses from the position alone |
| autoencode | a sequence of `length` symbols, to be played back | 1 | 2 / num_symbols - 1 |

`t_maze` is from Bakker, Reinforcement Learning with Long Short-Term Memory (2001), section 4; the others follow
Morad et al., POPGym: Benchmarking Partially Observable Reinforcement Learning (2023), appendix A, with symbols in the
place of cards.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, TimeStep
from stoix_like.envs.arguments import check_names, check_scenario, construct, count
from stoix_like.envs.environment import Environment, VectorEnvironment, Vectorize, restart, transition
from stoix_like.envs.legends import Feature, Legend
from stoix_like.envs.scenes import memory as drawings
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import ArraySpace, Box, Discrete
from stoix_like.schema import INT32_MAX


class DrawnTask(NamedTuple):
    """An episode that is drawn when it starts."""

    # `[T, C]` int32, what is shown in each step: the index of a symbol in each column, or -1 for nothing.
    shown: jax.Array
    answer: jax.Array  # `[T]` int32, the right action in each step; -1 where none is asked for


class PlanState(NamedTuple):
    """The plan of the episode, and the steps since it started, int32."""

    plan: DrawnTask
    steps: jax.Array


class Recall(Environment):
    """Base class of tasks with questions that do not depend on actions.

    Each of the Q questions of an episode is worth 1 / Q if the answer is right, and -1 / Q if it is wrong. The view is
    one-hot for each column of what is shown.
    """

    columns: ClassVar[tuple[str, ...]] = ("symbol",)  # names of the columns of what is shown
    optimal_return = 1.0
    truncates_after = INT32_MAX

    def __init__(self, sizes: tuple[int, ...], num_actions: int, num_questions: int) -> None:
        self._sizes, self._num_questions = sizes, num_questions
        self.observation_space: ArraySpace = Box(0.0, 1.0, (sum(sizes),))
        self.action_space = Discrete(num_actions)

    @abstractmethod
    def draw(self, key: jax.Array) -> DrawnTask:
        """Draw an episode."""

    def legend(self) -> Legend:
        pairs = zip(self.columns, self._sizes, strict=True)
        return _legend(name if size == 1 else f"{name}_{i}" for name, size in pairs for i in range(size))

    def scene(self) -> Scene:
        return Scene(partial(drawings.draw_plan, self.columns), drawings.FPS)

    def reset(self, key: jax.Array) -> tuple[PlanState, TimeStep]:
        plan = self.draw(key)
        return PlanState(plan, jnp.zeros((), jnp.int32)), restart(self._observe(plan.shown[0]))

    def step(self, key: jax.Array, state: PlanState, action: jax.Array) -> tuple[PlanState, TimeStep]:
        plan, steps = state.plan, state.steps + 1
        answer, length = plan.answer[state.steps], len(plan.answer)
        right = jnp.where(action == answer, 1.0, -1.0) / self._num_questions
        after = plan.shown[jnp.minimum(steps, length - 1)]
        reward = jnp.where(answer < 0, 0.0, right)
        return PlanState(plan, steps), transition(self._observe(after), reward, steps >= length, False)

    def _observe(self, shown: jax.Array) -> Observation:
        one_hot = [jax.nn.one_hot(symbol, size) for symbol, size in zip(shown, self._sizes, strict=True)]
        return Observation(jnp.concatenate(one_hot))


class RepeatFirst(Recall):
    """The first symbol is to be named in every step, while others are shown."""

    columns = ("symbol", "first")

    def __init__(self, length: int = 16, num_symbols: int = 4) -> None:
        self._length, self._num_symbols = count(length=length), count(2, num_symbols=num_symbols)
        super().__init__((self._num_symbols, 1), self._num_symbols, self._length)

    def draw(self, key: jax.Array) -> DrawnTask:
        symbols = jax.random.randint(key, (self._length,), 0, self._num_symbols)
        first = jnp.where(jnp.arange(self._length) == 0, 0, -1)
        return DrawnTask(jnp.stack([symbols, first], axis=-1), jnp.broadcast_to(symbols[0], symbols.shape))


class RepeatPrevious(Recall):
    """The symbol shown `delay` steps ago is to be named, from the first step on that has one.

    `length`: steps per episode; None: eight times the delay.
    """

    def __init__(self, delay: int = 4, length: int | None = None, num_symbols: int = 4) -> None:
        self._delay, self._num_symbols = count(delay=delay), count(2, num_symbols=num_symbols)
        self._length = 8 * self._delay if length is None else count(self._delay + 1, length=length)
        super().__init__((self._num_symbols,), self._num_symbols, self._length - self._delay)

    def draw(self, key: jax.Array) -> DrawnTask:
        symbols = jax.random.randint(key, (self._length,), 0, self._num_symbols)
        answer = jnp.concatenate([jnp.full(self._delay, -1), symbols[: self._length - self._delay]])
        return DrawnTask(symbols[:, None], answer)


class CountRecall(Recall):
    """Symbols of a shuffled deck are shown one by one; the question is how often another one has been shown."""

    columns = ("symbol", "question")

    def __init__(self, num_symbols: int = 4, copies: int = 4) -> None:
        self._num_symbols, self._copies = count(num_symbols=num_symbols), count(copies=copies)
        super().__init__((self._num_symbols,) * 2, self._copies + 1, count(cards=self._num_symbols * self._copies))

    def draw(self, key: jax.Array) -> DrawnTask:
        deck_key, question_key = jax.random.split(key)
        cards = jax.random.permutation(deck_key, jnp.repeat(jnp.arange(self._num_symbols), self._copies))
        questions = jax.random.randint(question_key, cards.shape, 0, self._num_symbols)
        counts = jnp.cumsum(jax.nn.one_hot(cards, self._num_symbols, dtype=jnp.int32), axis=0)
        return DrawnTask(jnp.stack([cards, questions], axis=-1), counts[jnp.arange(len(cards)), questions])


class Autoencode(Recall):
    """A sequence of symbols is shown, and is then to be played back in its order."""

    columns = ("symbol", "play")

    def __init__(self, length: int = 8, num_symbols: int = 4) -> None:
        self._length, self._num_symbols = count(length=length), count(2, num_symbols=num_symbols)
        super().__init__((self._num_symbols, 1), self._num_symbols, self._length)

    def draw(self, key: jax.Array) -> DrawnTask:
        symbols = jax.random.randint(key, (self._length,), 0, self._num_symbols)
        nothing = jnp.full_like(symbols, -1)
        shown, play = jnp.concatenate([symbols, nothing]), jnp.concatenate([nothing, jnp.zeros_like(symbols)])
        return DrawnTask(jnp.stack([shown, play], axis=-1), jnp.concatenate([nothing, symbols]))


class MazeState(NamedTuple):
    """The state of a T-maze, each int32."""

    cue: jax.Array  # 0 if the goal is left of the junction, 1 if it is right
    place: jax.Array  # steps from the start of the corridor
    turn: jax.Array  # 0 in the corridor, 1 left of the junction, 2 right of it
    steps: jax.Array  # steps since the episode started


class TMaze(Environment):
    """A corridor; its first place tells whether the goal is left or right of the junction at its end.

    Actions are forward, left and right. A turn at the junction ends the episode, with a reward of 1 at the goal and -1
    opposite of it. Every other step that does not advance costs `penalty`. The episode is truncated after
    `4 (length + 1)` steps. The view is the cue, one-hot and only in the first place, and whether this place is in
    the corridor or the junction.
    """

    optimal_return = 1.0
    observation_space = Box(0.0, 1.0, (4,))
    action_space = Discrete(3)

    def __init__(self, length: int = 8, penalty: float = 0.1) -> None:
        self._length = count(length=length)
        if not 0.0 <= penalty < math.inf:
            raise ValueError(f"penalty={penalty} must be at least 0: use 0.1")
        self._penalty = penalty
        self.truncates_after = self._limit = 4 * (self._length + 1)

    def legend(self) -> Legend:
        return _legend(("goal_left", "goal_right", "corridor", "junction"), ("forward", "left", "right"))

    def scene(self) -> Scene:
        return Scene(partial(drawings.draw_t_maze, self._length), drawings.FPS)

    def reset(self, key: jax.Array) -> tuple[MazeState, TimeStep]:
        zero = jnp.zeros((), jnp.int32)
        state = MazeState(jax.random.randint(key, (), 0, 2), zero, zero, zero)
        return state, restart(self._observe(state))

    def step(self, key: jax.Array, state: MazeState, action: jax.Array) -> tuple[MazeState, TimeStep]:
        cue, place, _, steps = state
        forward, at_junction = action == 0, place == self._length
        turned, advances = at_junction & ~forward, ~at_junction & forward
        reward = jnp.where(advances, 0.0, -self._penalty)
        reward = jnp.where(turned, jnp.where(action == 1 + cue, 1.0, -1.0), reward)
        state = MazeState(cue, place + advances, jnp.where(turned, action, 0), steps + 1)
        late = state.steps >= self._limit
        return state, transition(self._observe(state), reward, turned, ~turned & late)

    def _observe(self, state: MazeState) -> Observation:
        cue = jnp.where(state.place == 0, jax.nn.one_hot(state.cue, 2), 0.0)
        place = jax.nn.one_hot((state.place == self._length).astype(jnp.int32), 2)
        return Observation(jnp.concatenate([cue, place]))


TASKS: dict[str, type[Environment]] = {
    "autoencode": Autoencode,
    "count_recall": CountRecall,
    "repeat_first": RepeatFirst,
    "repeat_previous": RepeatPrevious,
    "t_maze": TMaze,
}


def scenarios() -> list[str]:
    """List the names of the tasks."""
    return list(TASKS)


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build copies of a task."""
    check_scenario("memory", name, scenarios())
    check_names("env.params", params, (), name)
    return Vectorize(construct(TASKS[name], kwargs, name))


def _legend(names: Iterable[str], actions: tuple[str, ...] = ()) -> Legend:
    return Legend(tuple(Feature(name, (place,), "", 0.0, 1.0) for place, name in enumerate(names)), actions)
