"""Base class of trained policies; `feed_forward` and `recurrent` say how they are called."""

from __future__ import annotations

import copy
import functools
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.assembly import SystemParts
from stoix_like.base_types import Observation, RolloutState
from stoix_like.envs import factory
from stoix_like.envs.described import DescribedEnvironment
from stoix_like.envs.environment import VectorEnvironment, restart
from stoix_like.envs.host import HostEnvironment
from stoix_like.envs.legends import Legend
from stoix_like.envs.spaces import Box, Dict, Discrete, entries
from stoix_like.envs.wrappers import AgentRows, ObservationWrapper, layers
from stoix_like.envs.wrappers.agents import with_agent_ids
from stoix_like.errors import ConfigError
from stoix_like.policies.export import export_policy
from stoix_like.policies.exportable import Exportable
from stoix_like.policies.visits import Visits, check_seed, play
from stoix_like.utils.accelerate.packing import replace_fields
from stoix_like.utils.jax_utils import used_inputs

# Sampled actions per observation, from which `Policy.inspect` takes the deviation.
_NUM_SAMPLES = 256


class Inspection(NamedTuple):
    """Outputs of the networks for observations, with their batch axes."""

    action: Any  # `[..., *action]`, modes of the policy in the units of the suite
    probabilities: Any  # `[..., A]` of discrete actions; None for others
    # `[..., *action]` standard deviations of sampled actions, in the units of the suite; None for discrete ones.
    deviation: Any
    # `[...]` values of the policy, or `[..., A]` of all actions, NaN for illegal ones; in the units that the critic
    # learns, with scaled or normalised rewards where the run has them. None without a critic.
    value: Any


class Policy(Exportable):
    """A trained policy, including observation normalisation and action scaling.

    A greedy policy returns the mode, also where evaluation explores (`system.evaluation_epsilon`). A sampling policy
    acts as in training. Neither searches.

    Observations have the form of the run's environments, after `env.flatten_observation`, `env.observation_mask`,
    `env.observation_noise`, `env.observation_delay`, `env.observation_flicker`, `env.observation_clip`,
    `env.frame_stack`, `env.time_in_observation`, `env.observe_last_action` and `env.observe_last_reward`; the policy
    normalises them itself. Actions are in the units of the suite, after `env.rescale_actions` and `env.clip_actions`,
    but the last action of an observation is as the network gave it, such as in [-1, 1]. A policy compiles once per
    batch size, and can be called inside a jitted function.

    Attributes:
        input_shapes: shape and dtype of each array that the policy needs, without a batch axis: the fields of
            `Observation`, and the entries of a dictionary by dotted name, such as `agent_view.grid`, but for those that
            no action depends on, such as the entries of a privileged critic.
        selected: how `load_policy` selected the parameters: `best of 10 evaluations, return 195.30`.
        step_unit: what `env_steps` counts, `env steps` or `gradient steps`.
        member: the policy's member of a population, 0 without one.
        title: system and environment, with the hyperparameters of the member that differ from the configuration.
        agent: the policy's agent, with its own networks; None: all agents.
    Its other attributes come from `Exportable`.
    """

    def __init__(
        self, setup: SystemParts, shared: Any, hyperparams: dict[str, float], *, greedy: bool | None, env_steps: int
    ) -> None:
        self._config = config = setup.config
        self.has_mode = config.system.has_mode
        if greedy and not self.has_mode:
            raise ConfigError(f"greedy=True: the policy of {setup.name} maps noise to actions, without a mode: omit it")
        self.greedy = self.has_mode and (config.arch.evaluation_greedy if greedy is None else greedy)
        self.env_steps, self.selected = env_steps, ""
        self.step_unit = config.arch.step_unit
        self.member = 0
        self.agent: int | None = None
        mode = {**config.system.policy_hyperparams, **(config.system.mode_hyperparams if self.greedy else {})}
        self._system = setup.build_system({**hyperparams, **mode}, greedy=self.greedy)
        self._env = setup.env
        self._own_networks = 0 if setup.spec.share_networks else setup.spec.num_agents
        self.observation_space, self.inner_action_space = self._env.observation_space, self._env.action_space
        self.action_space = self._env.unwrapped.action_space
        _, timestep = jax.eval_shape(self._env.reset, jax.random.split(jax.random.key(0), self._env.num_agents))
        like: Any = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), timestep.observation)
        self._shapes: dict[str, jax.ShapeDtypeStruct] = _arrays(like)
        self._structure = jax.tree.structure(like)
        self.shared = jax.device_put(shared)
        self._has_params = hasattr(shared, "params")
        self.name = setup.name
        self.title = ", ".join([setup.name, *(f"{name}={value:.3g}" for name, value in hyperparams.items())])
        self.input_shapes = self._shapes
        if isinstance(self.observation_space, Dict):
            self.input_shapes = self._read_by_actions()
        stateless = copy.copy(self)
        # Compiled functions outlive the state, which is an argument of theirs.
        stateless.shared = None
        self._compiled, self._inspect = jax.jit(stateless._act), jax.jit(stateless._inspected)
        self._predictions = 0

    @abstractmethod
    def __call__(self, observation: Any, *args: Any, **kwargs: Any) -> Any:
        """Choose actions; see the subclasses for further arguments.

        `observation`: `[..., *observation_space.shape]`, with any batch axes; an array, or a dictionary of arrays where
        the space is a `Dict`, or an `Observation` if the environment has an action mask or counts steps.
        """

    def inspect(self, observation: Any) -> Inspection:
        """Return what the policy and the critic say about observations, each the first of an episode, as host arrays.

        Values of actor-critic systems with action values belong to the modes of the policy.
        """
        if self._system.inspect is None:
            raise ConfigError(f"{self.name}: the system has no `inspect`, which pictures of policies and critics need")
        batch, leading = self._batched(observation, self._shapes)
        found = jax.device_get(self._inspect(self.shared, batch))
        return jax.tree.map(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), found)

    def play(self, episodes: int = 10, seed: int = 0) -> Visits:
        """Play whole episodes in the environments of evaluation, and keep every step.

        `seed`: of the start states and of sampled actions, below 2**32.
        """
        if self.agent is not None:
            raise ConfigError(f"this is only the policy of agent {self.agent}: load it without agent to play games")
        check_seed(seed)
        return play(self._built_env, self._system, self.shared, episodes, self._config.arch.max_eval_steps, seed)

    def close(self) -> None:
        """Close environments on the host, which `play` may have opened."""
        self._env.close()
        if "_built_env" in vars(self):
            self._built_env.close()

    def with_state(self, shared: Any, env_steps: int) -> Self:
        """Return this policy with another trained state of the same structure; compiled functions are shared."""
        policy = copy.copy(self)
        policy.shared, policy.env_steps, policy.selected = shared, env_steps, ""
        return policy

    def __repr__(self) -> str:
        """Return the run, and the shapes of observations and actions."""
        fields = {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in self.input_shapes.items()}
        inputs = ", ".join(f"{name} {shape}" for name, shape in fields.items())
        kind = "greedy" if self.greedy else "sampling"
        steps = f"{self.env_steps:,} {self.step_unit}" + (f" ({self.selected})" if self.selected else "")
        return f"Policy({self.name}, {kind}, {steps}: {inputs} -> {self.action_space})"

    @functools.cached_property
    def _built_env(self) -> VectorEnvironment:
        """The environments of evaluation; a policy from a directory may know only their description."""
        if not isinstance(self._env.unwrapped, DescribedEnvironment):
            return self._env
        return factory.make_eval(self._config.env, self._config.custom_env, self._config.matmul_precision)

    def _view_of(self, observation: Any) -> Any:
        """Return observations of the suite's own environments in the form of `__call__`; others as they are."""
        env = self._built_env if self._env.on_host else self._env
        unwrapped = env.unwrapped
        if not isinstance(unwrapped, HostEnvironment):
            return unwrapped.view_of(observation)
        if not unwrapped.is_native(observation):
            return observation
        # Callers pass observations by the agents' names, before there are rows to append numbers to.
        found = _observed(env, with_agent_ids(env, unwrapped.view_of(observation)))
        arrays = _arrays(found) if isinstance(found, Observation) else {}
        if any(jnp.isnan(array).any() for name, array in arrays.items() if name in self.input_shapes):
            raise ValueError(
                "the actor reads the game's state, which observations by agent lack: pass rows, policy(rows)"
            )
        if self.agent is None or env.num_agents == 1:
            return found
        return jax.tree.map(lambda leaf: leaf[self.agent], found)

    @property
    def params(self) -> Any:
        """Trained parameters: `shared.params` of the system, with critics and target networks where it has them.

        Without a field `params`, it is the whole shared state.
        """
        return self.shared.params if self._has_params else self.shared

    @property
    def legend(self) -> Legend:
        return self._env.legend()

    def native_action(self, action: jax.Array) -> jax.Array:
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
            format: `stablehlo`, `onnx` or `npz`; by default from the ending, or `stablehlo`.

        Raises:
            ConfigError: if the path ends like a file of another format, or the format cannot hold this policy, or every
                agent has networks of its own.
            MissingExtraError: if the format is `onnx`, and its packages are not installed.
            RuntimeError: if the exported function differs from this policy on random observations; writes no file.
        """
        if self._own_networks:
            raise ConfigError(
                "network.share=false: export the policy of one agent, load_policy(…, agent=0) or --agent 0"
            )
        return export_policy(self, path, format)

    def random_arguments(self, key: jax.Array, batch: int) -> list[jax.Array]:
        drawn = _arrays(self.random_observations(key, batch))
        return [drawn[name] for name in self.input_shapes]

    def observation_of(self, fields: Iterable[Any], names: Iterable[str] | None = None) -> Observation:
        """Build an observation from one array for each of `inputs`, or of `names`; other entries are zero."""
        arrays = dict(zip(self.input_shapes if names is None else names, fields, strict=True))
        given, array = next(iter(arrays.items()))
        batch = array.shape[: array.ndim - len(self._shapes[given].shape)]
        leaves = [
            arrays[name] if name in arrays else jnp.zeros((*batch, *leaf.shape), leaf.dtype)
            for name, leaf in self._shapes.items()
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def _read_by_actions(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes of the observation without the entries that no action depends on."""
        rows = self._own_networks or 1
        arrays = {name: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype) for name, leaf in self._shapes.items()}
        rest = [*self.argument_shapes.values()][len(arrays) :]
        others = [jnp.zeros((rows, *leaf.shape), leaf.dtype) for leaf in rest]

        def act(given: Mapping[str, jax.Array]) -> Any:
            return self.act_on([*(given[name] for name in self._shapes), *others], jax.random.key(0))

        read = used_inputs(act, arrays)
        views = {name for name in self._shapes if name.startswith("agent_view.")}
        unread = views - read if views & read else set()
        return {name: leaf for name, leaf in self._shapes.items() if name not in unread}

    @abstractmethod
    def _act(self, shared: Any, observation: Observation, *args: Any, **kwargs: Any) -> Any:
        """Choose actions `[B, ...]`; the function that is compiled."""

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
        return replace_fields(self.shared, params=params) if self._has_params else params

    def _key_of(self, key: jax.Array | None) -> jax.Array:
        if key is None and not self.greedy:
            instead = ", or load it with greedy=True" if self.has_mode else ""
            raise ValueError(f"key=None, but this policy samples actions: pass a key{instead}")
        return jax.random.key(0) if key is None else key

    def _next_key(self, deterministic: bool | None) -> jax.Array:
        """Return the key of the next call of `predict`."""
        if deterministic is not None and deterministic != self.greedy:
            instead = f"load it with greedy={deterministic}" if self.has_mode else "it has no mode, omit the argument"
            raise ValueError(
                f"deterministic={deterministic}, but this policy {'is greedy' if self.greedy else 'samples actions'}:"
                f" {instead}"
            )
        key = jax.random.fold_in(jax.random.key(0), self._predictions)
        self._predictions += 1
        return key

    def _batched(
        self, observation: Any, wanted: Mapping[str, jax.ShapeDtypeStruct] | None = None
    ) -> tuple[Observation, tuple[int, ...]]:
        """Flatten the batch axes of an observation to one, and return their original shape.

        `wanted`: the arrays that are needed; None: `input_shapes`.
        """
        wanted = self.input_shapes if wanted is None else wanted
        given = observation if isinstance(observation, Observation) else Observation(observation)
        values = _arrays(given)
        if missing := [name for name in wanted if name not in values]:
            kind = "a dictionary with these entries" if "." in missing[0] else "an Observation with these fields"
            raise ValueError(f"observation has no {' and '.join(missing)}: pass {kind}")
        arrays = [_fitting(name, values[name], leaf) for name, leaf in wanted.items()]
        shapes = [leaf.shape for leaf in wanted.values()]
        leading = [array.shape[: array.ndim - len(shape)] for array, shape in zip(arrays, shapes, strict=True)]
        if len(set(leading)) > 1:
            raise ValueError(f"{', '.join(wanted)} have different batch axes {leading}: pass the same ones")
        agents = self._own_networks
        if agents and leading[0][-1:] != (agents,):
            raise ConfigError(
                f"observation has the batch axes {leading[0]}, and each of {agents} agents has networks of its own:"
                f" pass those of all agents, [..., {agents}, *shape], or load the policy of one of them with agent=0"
            )
        batch = math.prod(leading[0])
        flat = (array.reshape(batch, *shape) for array, shape in zip(arrays, shapes, strict=True))
        return self.observation_of(flat, wanted), leading[0]

    def random_observations(self, key: jax.Array, batch: int) -> Observation:
        """Draw observations `[batch, ...]` from `observation_space`, with random action masks."""
        wanted = jax.tree.unflatten(self._structure, list(self._shapes.values())).agent_view

        def draw(key: jax.Array) -> Observation:
            view_key, mask_key, steps_key = jax.random.split(key, 3)
            view = jax.tree.map(lambda x, like: x.astype(like.dtype), self.observation_space.sample(view_key), wanted)
            mask, steps = self._shapes.get("action_mask"), self._shapes.get("step_count")
            return Observation(
                view,
                None if mask is None else jax.random.bernoulli(mask_key, 0.7, mask.shape),
                None if steps is None else jax.random.randint(steps_key, steps.shape, 0, 100, steps.dtype),
            )

        return jax.vmap(draw)(jax.random.split(key, batch))


def _observed(env: VectorEnvironment, given: Any) -> Any:
    """Apply the wrappers of environments to observations of `unwrapped`.

    Those that are no functions of an observation, such as noise, are left out, and those above one that changes shapes,
    such as a stack, too.

    `given`: `[..., *shape]` an observation, or its view.
    """
    view = given.agent_view if isinstance(given, Observation) else given
    first, space = (next(iter(entries(tree).values())) for tree in (view, env.observation_space))
    leading = first.shape[: first.ndim - len(space.shape)]
    view = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(-1, *leaf.shape[len(leading) :]), view)
    for layer in reversed(list(layers(env))):
        if isinstance(layer, ObservationWrapper):
            view = layer.view(view)
        elif not isinstance(layer, AgentRows) and _shapes(layer) != _shapes(layer.env):
            break
    view = jax.tree.map(lambda leaf: leaf.reshape(*leading, *leaf.shape[1:]), view)
    return given._replace(agent_view=view) if isinstance(given, Observation) else view


def _shapes(env: VectorEnvironment) -> dict[str, tuple[int, ...]]:
    return {name: space.shape for name, space in entries(env.observation_space).items()}


def _arrays(observation: Observation) -> dict[str, Any]:
    """Return the arrays of an observation by name, see `Policy.input_shapes`, in the order of jax."""
    fields = ((name, value) for name, value in observation._asdict().items() if value is not None)
    return {path: array for name, value in fields for path, array in entries(value, name).items()}


def _fitting(name: str, value: Any, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    """Convert a value to an array of the wanted dtype, and check its last axes."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.shape[max(array.ndim - len(wanted.shape), 0) :] != wanted.shape:
        raise ValueError(f"{name} has shape {array.shape}: this policy takes [..., *{wanted.shape}]")
    if not np.can_cast(array.dtype, wanted.dtype, "same_kind"):
        raise ValueError(f"{name} has dtype {array.dtype}: this policy takes {wanted.dtype}")
    return jnp.asarray(array, wanted.dtype)
