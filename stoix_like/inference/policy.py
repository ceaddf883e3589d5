"""Trained policies as functions from observations to actions."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation, RolloutState, System
from stoix_like.envs.environment import restart
from stoix_like.envs.legends import Legend
from stoix_like.envs.spaces import Box, Discrete, Space, entries
from stoix_like.errors import ConfigError
from stoix_like.inference.export import export_policy
from stoix_like.inference.load import load_member, open_run
from stoix_like.inference.visits import Visits, play
from stoix_like.run.setup import RunSetup

# Sampled actions per observation, of whose deviation `Policy.inspect` tells.
_NUM_SAMPLES = 256


class Inspection(NamedTuple):
    """What the networks say about observations, with their batch axes.

    Attributes:
        action: `[..., *action]`, modes of the policy in the units of the suite.
        probabilities: `[..., A]` of discrete actions; None for others.
        deviation: `[..., *action]` standard deviations of sampled actions, in the units of the suite; None for discrete
            ones.
        value: `[...]` values of the policy, or `[..., A]` of all actions, NaN for illegal ones; in the units that the
            critic learns, with scaled or normalised rewards where the run has them. None without a critic.
    """

    action: Any
    probabilities: Any
    deviation: Any
    value: Any


class Policy:
    """A trained policy, including observation normalisation and action scaling.

    A greedy policy returns the mode, also where evaluation explores (`system.evaluation_epsilon`). A sampling policy
    acts as in training.

    Observations have the form of the run's environments, after `env.flatten_observation`, `env.observation_indices` and
    `env.frame_stack`; the policy normalises them itself. Actions are in the units of the suite, after
    `env.rescale_actions` and `env.clip_actions`. A policy compiles once per batch size, and can be called inside a
    jitted function.

    Args:
        setup: the run.
        shared: the trained state of one member, without a population axis.
        hyperparams: hyperparameters of the member that differ from the configuration.
        greedy: whether to use the mode of the policy; by default `arch.evaluation_greedy`.
        env_steps: environment steps that `shared` was trained for.

    Attributes:
        observation_space: the space of one observation.
        action_space: the space of one action, in the units of the suite.
        greedy: whether actions are the mode of the policy.
        env_steps: environment steps that the policy was trained for.
        input_shapes: shape and dtype of each array that the policy needs, without a batch axis: the fields of
            `Observation`, and the entries of a dictionary by dotted name, such as `agent_view.grid`.

    Raises:
        ConfigError: if the system is recurrent, and this class is not `RecurrentPolicy`; see `make_policy`.
    """

    def __init__(
        self,
        setup: RunSetup,
        shared: Any,
        hyperparams: dict[str, float],
        *,
        greedy: bool | None = None,
        env_steps: int = 0,
    ) -> None:
        config = setup.config
        self.greedy = config.arch.evaluation_greedy if greedy is None else greedy
        self.env_steps = env_steps
        mode = config.system.mode_hyperparams if self.greedy else {}
        self._system = setup.build_system({**hyperparams, **mode}, greedy=self.greedy)
        if is_recurrent(self._system) and not isinstance(self, RecurrentPolicy):
            raise ConfigError(f"system={config.system_name} is recurrent: use RecurrentPolicy, or `make_policy`")
        self._env = setup.eval_env
        self.observation_space = self._env.observation_space
        self.action_space = self._env.unwrapped.action_space
        _, timestep = jax.eval_shape(self._env.reset, jax.random.split(jax.random.key(0), 1))
        like: Any = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), timestep.observation)
        self.input_shapes: dict[str, jax.ShapeDtypeStruct] = _arrays(like)
        self._structure = jax.tree.structure(like)
        self._shared = jax.device_put(shared)
        self._has_params = hasattr(shared, "params")
        self._name = f"{config.system_name} on {setup.environment_name}"
        self._compiled = jax.jit(self._act)
        self._inspect = jax.jit(self._inspected)
        self._predictions = 0
        self._max_steps = config.arch.max_eval_steps

    def __call__(self, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """Choose actions.

        Args:
            observation: `[..., *observation_space.shape]`, with any batch axes; an array, or a dictionary of arrays
                where the space is a `Dict`, or an `Observation` if the environment has an action mask or counts steps.
            key: a typed PRNG key; optional for a greedy policy.

        Returns:
            The actions, `[..., *action_space.shape]`.

        Raises:
            ValueError: if the observation has a wrong shape, dtype or field, or a sampling policy gets no key.
        """
        return self.apply(self.params, observation, key)

    def apply(self, params: Any, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """Choose actions with other parameters, as a pure function; statistics remain those of the policy.

        It can be transformed by jax: jitted, differentiated, and mapped over parameters.

        Args:
            params: a tree with the structure of `params`.
            observation: see `__call__`.
            key: see `__call__`.

        Returns:
            The actions, `[..., *action_space.shape]`.

        Raises:
            ValueError: see `__call__`.
        """
        batch, leading = self._batched(observation)
        action = self._compiled(self._with_params(params), batch, self._key_of(key))
        return action.reshape(*leading, *action.shape[1:])

    def predict(
        self, observation: Any, state: None = None, episode_start: Any = None, deterministic: bool | None = None
    ) -> tuple[np.ndarray, None]:
        """Choose actions in a loop over environments on the host, as `predict` of stable-baselines3 does.

        A sampling policy draws from a stream of its own, the same after every load; pass keys to `__call__` for others.

        Args:
            observation: `[..., *shape]`, as an environment of the run's suite returns it: an image of an Atari game has
                its frames first, and an integer of gymnasium is not one-hot.
            state: None, since the policy has no recurrent state; as is `episode_start`.
            episode_start: ignored.
            deterministic: must agree with `greedy`; by default, it does.

        Returns:
            The actions `[..., *action_space.shape]` as a numpy array, and None.

        Raises:
            ValueError: see `__call__`; or `deterministic` disagrees with the policy.
        """
        key = self._next_key(deterministic)
        return np.asarray(self(self._env.unwrapped.view_of(observation), key)), None

    def inspect(self, observation: Any) -> Inspection:
        """Return what the policy and the critic say about observations, each the first of an episode.

        Values of actor-critic systems with action values are those of the modes of the policy.

        Args:
            observation: see `__call__`.

        Returns:
            The actions, probabilities, deviations and values, as host arrays.

        Raises:
            ConfigError: the system does not tell.
            ValueError: see `__call__`.
        """
        if self._system.inspect is None:
            raise ConfigError(f"{self._name}: the system has no `inspect`, which pictures of policies and critics need")
        batch, leading = self._batched(observation)
        found = jax.device_get(self._inspect(self._shared, batch))
        inspection: Inspection = jax.tree.map(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), found)
        return inspection

    def play(self, episodes: int = 10, seed: int = 0) -> Visits:
        """Play whole episodes in the environments of evaluation, and keep every step.

        Args:
            episodes: number of episodes, at least 1.
            seed: seed of the start states and of sampled actions, below 2**32.

        Returns:
            Observations, actions, rewards and returns.

        Raises:
            ConfigError: an argument is out of range.
            HostEnvironmentError: an environment on the host failed.
        """
        if episodes < 1:
            raise ConfigError(f"episodes={episodes} must be at least 1")
        if not 0 <= seed < 2**32:
            raise ConfigError(f"seed={seed} is out of range: it must be at least 0 and below 2**32")
        return play(self._env, self._system, self._shared, episodes, self._max_steps, seed)

    def close(self) -> None:
        """Close environments on the host, which `play` may have opened."""
        self._env.close()

    def with_state(self, shared: Any, env_steps: int) -> Policy:
        """Return this policy with another trained state; what is compiled is shared.

        Args:
            shared: a state with the structure of that of this policy.
            env_steps: environment steps that it was trained for.
        """
        policy = copy.copy(self)
        policy._shared, policy.env_steps = shared, env_steps
        return policy

    def __repr__(self) -> str:
        """Return the run, and the shapes of observations and actions."""
        fields = {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in self.input_shapes.items()}
        inputs = ", ".join(f"{name} {shape}" for name, shape in fields.items())
        kind = "greedy" if self.greedy else "sampling"
        return f"Policy({self._name}, {kind}, {self.env_steps:,} env steps: {inputs} -> {self.action_space})"

    @property
    def name(self) -> str:
        """Name of the run: `ppo/ff_ppo on gymnax/CartPole-v1`."""
        return self._name

    @property
    def legend(self) -> Legend:
        """Names of features of the observations, and of actions, where the environment has them."""
        return self._env.legend()

    @property
    def params(self) -> Any:
        """Trained parameters: `shared.params` of the system, with critics and target networks where it has them.

        A system whose shared state has no field `params` returns the whole shared state.
        """
        return self._shared.params if self._has_params else self._shared

    @property
    def shared(self) -> Any:
        """Trained state of the system: parameters, statistics of normalisation and counters."""
        return self._shared

    @property
    def inner_action_space(self) -> Space:
        """The space of the actions of the networks, before `native_action`."""
        return self._env.action_space

    def native_action(self, action: jax.Array) -> jax.Array:
        """Convert actions `[B, ...]` of the networks to the units of the suite."""
        return self._env.native_action(action)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arrays in an observation of the environment, see `input_shapes`."""
        return tuple(self.input_shapes)

    def export(self, path: str | Path, format: str | None = None) -> Path:
        """Write the policy to a file that runs without this package, and its description to `<path>.json`.

        | format | holds | needs |
        |---|---|---|
        | `stablehlo` | every policy, as a program for CPUs, GPUs and TPUs | jax |
        | `onnx` | greedy policies, as a graph | onnxruntime; to write, the extra `onnx` |
        | `npz` | greedy policies of multilayer perceptrons, as arrays | numpy |

        A StableHLO file holds a function of one array `[b, ...]` for each of `argument_shapes`, with any batch size b,
        and of key data, uint32 `[2]`, which a greedy policy ignores. It returns actions `[b, ...]`.

            act = jax.export.deserialize(pathlib.Path("policy.stablehlo").read_bytes()).call
            action = act(observation, jax.random.key_data(jax.random.key(0)))

        Args:
            path: path of the file, such as `policy.stablehlo`; overwritten if it exists.
            format: `stablehlo`, `onnx` or `npz`; by default that of the ending, or `stablehlo`.

        Returns:
            The path.

        Raises:
            ConfigError: if the path ends like a file of another format, or the format cannot hold this policy.
            MissingExtraError: if the format is `onnx`, and its packages are not installed.
            RuntimeError: if the exported function differs from this policy on random observations; writes no file.
        """
        return export_policy(self, path, format)

    @property
    def argument_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shape and dtype of each array that `act_on` takes, without a batch axis: `input_shapes`."""
        return self.input_shapes

    @property
    def result_names(self) -> list[str]:
        """Names of the arrays that `act_on` returns: `action`."""
        return ["action"]

    def act_on(self, arrays: Sequence[jax.Array], key: jax.Array) -> Any:
        """Choose actions from plain arrays, without checks and conversions, inside a jitted function.

        Args:
            arrays: `[B, ...]`, one for each of `argument_shapes`.
            key: a typed PRNG key.

        Returns:
            The actions `[B, ...]`, in the units of the suite.
        """
        return self._act(self._shared, self.observation_of(arrays), key)

    def mode_on(self, arrays: Sequence[jax.Array]) -> Any:
        """Return what `act_on` does for a greedy policy, without random numbers where the system tells its mode."""
        if self._system.inspect is None:
            return self.act_on(arrays, jax.random.key(0))
        policy, _ = self._system.inspect(self._shared, self.observation_of(arrays))
        return self._env.native_action(policy.mode())

    def random_arguments(self, key: jax.Array, batch: int) -> list[jax.Array]:
        """Draw arrays `[batch, ...]` for `act_on`."""
        return jax.tree.leaves(self.random_observations(key, batch))

    def observation_of(self, fields: Iterable[Any]) -> Observation:
        """Build an observation from one array for each of `inputs`."""
        observation: Observation = jax.tree.unflatten(self._structure, list(fields))
        return observation

    def _act(self, shared: Any, observation: Observation, key: jax.Array) -> jax.Array:
        carry = self._system.init_carry(jax.tree.leaves(observation)[0].shape[0])
        return self._act_from(shared, observation, carry, None, key)[0]

    def _act_from(
        self, shared: Any, observation: Observation, carry: Any, is_first: jax.Array | None, key: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Return actions and the next carry; `is_first` `[B]` marks first observations, None means that all are."""
        timestep = jax.vmap(restart)(observation)
        if is_first is not None:
            length = jnp.where(is_first, 0, 1)
            timestep = timestep._replace(episode=timestep.episode._replace(episode_length=length))
        carry, action, _ = self._system.eval_act(shared, RolloutState((), timestep, carry), key)
        return self._env.native_action(action), carry

    def _inspected(self, shared: Any, observation: Observation) -> Inspection:
        assert self._system.inspect is not None
        policy, value = self._system.inspect(shared, observation)
        probabilities = policy.probs if isinstance(self.action_space, Discrete) else None
        deviation = self._deviation(policy) if isinstance(self.action_space, Box) else None
        if value is not None and value.ndim == 2 and observation.action_mask is not None:
            value = jnp.where(observation.action_mask, value, jnp.nan)
        return Inspection(self._env.native_action(policy.mode()), probabilities, deviation, value)

    def _deviation(self, policy: Any) -> jax.Array:
        """Return the standard deviations of actions; the same noise everywhere makes them smooth over observations."""

        def deviation(policy: Any) -> jax.Array:
            actions = policy.sample(seed=jax.random.key(0), sample_shape=(_NUM_SAMPLES,))
            return jnp.std(self._env.native_action(actions), axis=0)

        return jax.vmap(deviation)(policy)

    def _with_params(self, params: Any) -> Any:
        return self._shared._replace(params=params) if self._has_params else params

    def _key_of(self, key: jax.Array | None) -> jax.Array:
        if key is None and not self.greedy:
            raise ValueError("key=None, but this policy samples actions: pass a key, or load it with greedy=True")
        return jax.random.key(0) if key is None else key

    def _next_key(self, deterministic: bool | None) -> jax.Array:
        """Return the key of the next call of `predict`."""
        if deterministic is not None and deterministic != self.greedy:
            raise ValueError(
                f"deterministic={deterministic}, but this policy {'is greedy' if self.greedy else 'samples actions'}:"
                f" load it with greedy={deterministic}"
            )
        key = jax.random.fold_in(jax.random.key(0), self._predictions)
        self._predictions += 1
        return key

    def _batched(self, observation: Any) -> tuple[Observation, tuple[int, ...]]:
        """Flatten the batch axes of an observation to one, and return their original shape."""
        given = observation if isinstance(observation, Observation) else Observation(observation)
        values = _arrays(given)
        if missing := [name for name in self.input_shapes if name not in values]:
            kind = "a dictionary with these entries" if "." in missing[0] else "an Observation with these fields"
            raise ValueError(f"observation has no {' and '.join(missing)}: pass {kind}")
        arrays = [_fitting(name, values[name], leaf) for name, leaf in self.input_shapes.items()]
        shapes = [leaf.shape for leaf in self.input_shapes.values()]
        leading = [array.shape[: array.ndim - len(shape)] for array, shape in zip(arrays, shapes, strict=True)]
        if len(set(leading)) > 1:
            raise ValueError(f"{', '.join(self.input_shapes)} have different batch axes {leading}: pass the same ones")
        batch = math.prod(leading[0])
        flat = (array.reshape(batch, *shape) for array, shape in zip(arrays, shapes, strict=True))
        return self.observation_of(flat), leading[0]

    def random_observations(self, key: jax.Array, batch: int) -> Observation:
        """Draw observations from `observation_space`, with random action masks.

        Args:
            key: a typed PRNG key.
            batch: B.

        Returns:
            The observations `[B, ...]`.
        """
        wanted = self.observation_of(self.input_shapes.values()).agent_view

        def draw(key: jax.Array) -> Observation:
            view_key, mask_key, steps_key = jax.random.split(key, 3)
            view = jax.tree.map(lambda x, like: x.astype(like.dtype), self.observation_space.sample(view_key), wanted)
            mask, steps = self.input_shapes.get("action_mask"), self.input_shapes.get("step_count")
            return Observation(
                view,
                None if mask is None else jax.random.bernoulli(mask_key, 0.7, mask.shape),
                None if steps is None else jax.random.randint(steps_key, steps.shape, 0, 100, steps.dtype),
            )

        return jax.vmap(draw)(jax.random.split(key, batch))


class RecurrentPolicy(Policy):
    """A trained policy with a recurrent state, which the caller keeps between steps.

        state = policy.initial_state(batch)
        action, state = policy(observation, state, is_first)

    Everything else is as in `Policy`.
    """

    def __init__(
        self,
        setup: RunSetup,
        shared: Any,
        hyperparams: dict[str, float],
        *,
        greedy: bool | None = None,
        env_steps: int = 0,
    ) -> None:
        super().__init__(setup, shared, hyperparams, greedy=greedy, env_steps=env_steps)
        self._state_like = jax.eval_shape(lambda: self._system.init_carry(1))
        self._compiled = jax.jit(self._act_from)

    def initial_state(self, batch: int | Sequence[int] = ()) -> Any:
        """Return the state at the start of an episode.

        Args:
            batch: number of environments, or the shape of their batch; by default, that of a single observation.

        Returns:
            Arrays `[*batch, H]`.
        """
        leading = (batch,) if isinstance(batch, int) else tuple(batch)
        state = self._system.init_carry(math.prod(leading))
        return jax.tree.map(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), state)

    def __call__(  # type: ignore[override]
        self, observation: Any, state: Any, is_first: Any = None, key: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """Choose actions.

        Args:
            observation: `[..., *observation_space.shape]`, see `Policy.__call__`.
            state: from `initial_state` or from the last call, with the same batch axes.
            is_first: `[...]` bool, True where an observation is the first of its episode, before which the state is
                reset; by default, False everywhere.
            key: a typed PRNG key; optional for a greedy policy.

        Returns:
            The actions, `[..., *action_space.shape]`, and the state for the next call.

        Raises:
            ValueError: if an argument has a wrong shape, dtype or field, or a sampling policy gets no key.
        """
        return self.apply(self.params, observation, state, is_first, key)

    def apply(  # type: ignore[override]
        self, params: Any, observation: Any, state: Any, is_first: Any = None, key: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """Choose actions with other parameters, as a pure function; see `Policy.apply` and `__call__`."""
        batch, leading = self._batched(observation)
        flags = jnp.zeros(leading, bool) if is_first is None else jnp.asarray(is_first, bool)
        if flags.shape != leading:
            raise ValueError(f"is_first has shape {flags.shape}: this call takes {leading}, as the observation")
        action, state = self._compiled(
            self._with_params(params), batch, self._flat_state(state, leading), flags.reshape(-1), self._key_of(key)
        )
        return jax.tree.map(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), (action, state))

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool | None = None
    ) -> tuple[np.ndarray, Any]:
        """Choose actions in a loop over environments on the host, as `predict` of sb3-contrib's RecurrentPPO does.

        A sampling policy draws from a stream of its own, the same after every load; pass keys to `__call__` for others.

        Args:
            observation: see `Policy.predict`.
            state: from the last call; None before the first one.
            episode_start: `[...]` bool, True where an observation is the first of its episode; by default, nowhere.
            deterministic: must agree with `greedy`; by default, it does.

        Returns:
            The actions `[..., *action_space.shape]` as a numpy array, and the state for the next call.

        Raises:
            ValueError: see `__call__`; or `deterministic` disagrees with the policy.
        """
        key, view = self._next_key(deterministic), self._env.unwrapped.view_of(observation)
        if state is None:
            state = self.initial_state(self._batched(view)[1])
        action, state = self(view, state, episode_start, key)
        return np.asarray(action), state

    @property
    def argument_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """See `Policy.argument_shapes`: `input_shapes`, the arrays of the state by number, and `is_first`."""
        leaves = jax.tree.leaves(self._state_like)
        states = {f"state.{i}": jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for i, leaf in enumerate(leaves)}
        return self.input_shapes | states | {"is_first": jax.ShapeDtypeStruct((), jnp.dtype(bool))}

    @property
    def result_names(self) -> list[str]:
        """See `Policy.result_names`: `action`, and the arrays of the next state by number."""
        return ["action", *(f"next_state.{i}" for i in range(len(jax.tree.leaves(self._state_like))))]

    def act_on(self, arrays: Sequence[jax.Array], key: jax.Array) -> Any:
        """Choose actions from plain arrays, see `Policy.act_on`; also returns the arrays of the next state."""
        split = len(self.input_shapes)
        observation, states, is_first = self.observation_of(arrays[:split]), arrays[split:-1], arrays[-1]
        state = jax.tree.unflatten(jax.tree.structure(self._state_like), states)
        action, state = self._act_from(self._shared, observation, state, is_first, key)
        return action, *jax.tree.leaves(state)

    def mode_on(self, arrays: Sequence[jax.Array]) -> Any:
        """See `Policy.mode_on`; also returns the arrays of the next state."""
        return self.act_on(arrays, jax.random.key(0))

    def random_arguments(self, key: jax.Array, batch: int) -> list[jax.Array]:
        """Draw arrays `[batch, ...]` for `act_on`."""
        state_key, first_key = jax.random.split(key)
        state = self.initial_state(batch)
        states = [leaf + jax.random.normal(state_key, leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
        return [*super().random_arguments(key, batch), *states, jax.random.bernoulli(first_key, 0.3, (batch,))]

    def _flat_state(self, state: Any, leading: tuple[int, ...]) -> Any:
        """Flatten the batch axes of a state to one."""
        wanted = jax.tree.map(lambda leaf: (*leading, *leaf.shape[1:]), self._state_like)
        found = jax.tree.map(lambda leaf: tuple(jnp.shape(leaf)), state)
        if found != wanted:
            raise ValueError(
                f"state has the shapes {found}: pass what policy.initial_state({leading}) returns, {wanted}"
            )
        return jax.tree.map(
            lambda leaf, like: jnp.asarray(leaf, like.dtype).reshape(-1, *like.shape[1:]), state, self._state_like
        )


def _arrays(observation: Observation) -> dict[str, Any]:
    """Return the arrays of an observation by name, see `Policy.input_shapes`, in the order of jax."""
    fields = ((name, value) for name, value in observation._asdict().items() if value is not None)
    return {path: array for name, value in fields for path, array in entries(value, name).items()}


def is_recurrent(system: System) -> bool:
    """Return whether the carry of a system holds more than noise keys, which every call draws anew."""
    carry = jax.eval_shape(lambda: system.init_carry(1))
    return any(not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(carry))


def _fitting(name: str, value: Any, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    """Convert a value to an array of the wanted dtype, and check its last axes."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.shape[max(array.ndim - len(wanted.shape), 0) :] != wanted.shape:
        raise ValueError(f"{name} has shape {array.shape}: this policy takes [..., *{wanted.shape}]")
    if not np.can_cast(array.dtype, wanted.dtype, "same_kind"):
        raise ValueError(f"{name} has dtype {array.dtype}: this policy takes {wanted.dtype}")
    return jnp.asarray(array, wanted.dtype)


def make_policy(
    setup: RunSetup, shared: Any, hyperparams: dict[str, float], *, greedy: bool | None = None, env_steps: int = 0
) -> Policy:
    """Build the policy of a trained state, a `RecurrentPolicy` if its system is recurrent; see `Policy`."""
    kind = RecurrentPolicy if is_recurrent(setup.build_system()) else Policy
    return kind(setup, shared, hyperparams, greedy=greedy, env_steps=env_steps)


def load_policy(
    run_dir: str | Path,
    which: str = "best",
    member: int | Literal["best"] | None = None,
    greedy: bool | None = None,
    trust: bool = False,
    env: Any = None,
) -> Policy:
    """Load a trained policy: `policy(observation)` returns an action in the units of the environment.

    The policy of a recurrent run keeps no state: `action, state = policy(observation, state, is_first)`, starting from
    `state = policy.initial_state(batch)`; see `RecurrentPolicy`.

    Args:
        run_dir: the directory of the run, or its address: on the Hugging Face Hub, `hf://owner/name`, or on an object
            store, `s3://bucket/run`.
        which: `best`, the parameters with the highest evaluation return; `last`; or the environment steps of a kept
            checkpoint.
        member: member of a population; by default the best one.
        greedy: act by the mode of the policy; by default as `arch.evaluation_greedy` of the run.
        trust: allow the run's configuration to name code from outside this package.
        env: the environment of a run that was trained on an object passed from Python.

    Returns:
        The policy, which can also be exported.

    Raises:
        ConfigError: there is no such run, checkpoint or member, or it does not hold a policy.
    """
    run = open_run(run_dir, trust, env)
    chosen = load_member(run, which, member)
    return make_policy(run.setup, chosen.shared, chosen.hyperparams, greedy=greedy, env_steps=chosen.env_steps)
