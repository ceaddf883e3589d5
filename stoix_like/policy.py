"""A trained policy by itself: observations in, actions in the units of the environment out."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from stoix_like.base_types import Actor, Observation
from stoix_like.envs import factory
from stoix_like.envs.environment import restart
from stoix_like.errors import ConfigError
from stoix_like.runner import saved
from stoix_like.runner.prepared import Prepared, make_system
from stoix_like.runner.saved import Loaded, SavedRun

PLATFORMS = ("cpu", "cuda", "tpu")
# The key that an exported policy is handed as plain numbers is one of this kind.
KEY_KIND = "threefry2x32"
_CHECKED_BATCHES = (1, 32)


class Policy:
    """Acts as a system's evaluation does, observation normalisation and action scaling included.

    Observations are those of the run's environments: after `env.flatten_observation` and `env.frame_stack`, before
    normalisation, which the policy does itself. Actions are those of the environment as its suite made it: what
    `env.rescale_actions` and `env.clip_actions` do to an action has been done. A call compiles once for each batch
    size, and may stand inside a compiled function.

    Args:
        prepared: the run.
        shared: the trained state of one member, without a population axis.
        hyperparams: in which the member differs from the configuration.
        greedy: act by the mode of the policy; by default as `arch.evaluation_greedy` says.
        env_steps: environment steps that `shared` was trained for.

    Attributes:
        observation_space: of one observation.
        action_space: of one action, in the environment's units.
        greedy: whether actions are the mode of the policy.
        env_steps: environment steps that the policy was trained for.

    Raises:
        ConfigError: the system remembers something from step to step, which a function of one observation cannot.
    """

    def __init__(
        self,
        prepared: Prepared,
        shared: Any,
        hyperparams: dict[str, float],
        *,
        greedy: bool | None = None,
        env_steps: int = 0,
    ) -> None:
        run = prepared.run
        self.greedy = run.arch.evaluation_greedy if greedy is None else greedy
        self.env_steps = env_steps
        arch = dataclasses.replace(run.arch, evaluation_greedy=self.greedy)
        self._system = make_system(prepared._replace(run=run._replace(arch=arch)), hyperparams)
        if _remembers(self._system.init_carry(1)):
            raise ConfigError(
                f"system={run.system_name} carries a recurrent state from step to step, and a policy acts on one"
                " observation: only `stoix-like evaluate` can use it"
            )
        self._env = factory.make_single(run.env)
        self.observation_space = self._env.observation_space
        self.action_space = self._env.unwrapped.action_space
        _, timestep = jax.eval_shape(self._env.reset, jax.random.key(0))
        fields = timestep.observation._asdict()
        self._inputs = {name: leaf for name, leaf in fields.items() if leaf is not None}
        self._shared = jax.device_put(shared)
        self._compiled = jax.jit(self._act)

    def __call__(self, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """Choose actions.

        Args:
            observation: one, of the shape of `observation_space`, or many, `[..., *shape]`. An array, or an
                `Observation` where the environment has an action mask or counts steps.
            key: a typed PRNG key; a greedy policy does without.

        Returns:
            The actions, `[..., *action_space.shape]`.

        Raises:
            ValueError: the observation does not fit, or a policy that samples is handed no key.
        """
        if key is None:
            if not self.greedy:
                raise ValueError("this policy samples its actions: hand it a key, or load it with greedy=True")
            key = jax.random.key(0)
        batch, leading = self._batched(observation)
        action = self._compiled(self._shared, batch, key)
        return action.reshape(*leading, *action.shape[1:])

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the policy is handed: the fields of `Observation` that the environment fills."""
        return tuple(self._inputs)

    def export(self, path: str | Path) -> Path:
        """Write the policy as one file that jax alone can load, on a CPU, a GPU or a TPU.

        The file holds a function that takes an argument for each of `inputs`, `[b, ...]` with any `b`, and the data of
        a key, uint32 `[2]`, which a greedy policy does not look at. It returns actions `[b, ...]`.

            act = jax.export.deserialize(pathlib.Path("policy.stablehlo").read_bytes()).call
            action = act(observation, jax.random.key_data(jax.random.key(0)))

        Args:
            path: the file; replaced if it is there, once it has been seen to act as this policy does.

        Returns:
            The path.

        Raises:
            RuntimeError: what was written acts differently on random observations; no file is left.
        """
        path = Path(path)
        (batch,) = export.symbolic_shape("b", constraints=["b >= 1"])
        inputs = [jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for leaf in self._inputs.values()]
        key_data = jax.ShapeDtypeStruct((2,), jnp.uint32)
        exported = export.export(jax.jit(self._act_plainly), platforms=PLATFORMS)(*inputs, key_data)
        written = exported.serialize()
        self._compare(export.deserialize(written).call)
        scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            scratch.write_bytes(written)
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
        return path

    def _act(self, shared: Any, observation: Observation, key: jax.Array) -> jax.Array:
        """Actions `[B, ...]` in the environment's units for observations `[B, ...]`."""
        num_envs = observation.agent_view.shape[0]
        actor = Actor((), jax.vmap(restart)(observation), self._system.init_carry(num_envs))
        _, action, _ = self._system.eval_act(shared, actor, key)
        return jax.vmap(self._env.native_action)(action)

    def _act_plainly(self, *inputs: jax.Array) -> jax.Array:
        """`_act` over plain arrays: what is trained is part of the program."""
        *fields, key_data = inputs
        key = jax.random.wrap_key_data(key_data, impl=KEY_KIND)
        return self._act(self._shared, self._observation(fields), key)

    def _observation(self, fields: Iterable[jax.Array]) -> Observation:
        return Observation(**dict(zip(self._inputs, fields, strict=True)))

    def _batched(self, observation: Any) -> tuple[Observation, tuple[int, ...]]:
        """The observation with one leading axis, and the leading axes that it came with."""
        given = observation if isinstance(observation, Observation) else Observation(observation)
        if missing := [name for name in self._inputs if getattr(given, name) is None]:
            raise ValueError(f"this policy also takes {' and '.join(missing)}: hand it an Observation with them")
        arrays = [_fitting(name, getattr(given, name), leaf) for name, leaf in self._inputs.items()]
        shapes = [leaf.shape for leaf in self._inputs.values()]
        leading = [array.shape[: array.ndim - len(shape)] for array, shape in zip(arrays, shapes, strict=True)]
        if len(set(leading)) > 1:
            raise ValueError(f"{', '.join(self._inputs)} have different leading axes: {leading}")
        batch = math.prod(leading[0])
        flat = (array.reshape(batch, *shape) for array, shape in zip(arrays, shapes, strict=True))
        return self._observation(flat), leading[0]

    def _compare(self, exported: Callable[..., jax.Array]) -> None:
        """See that a function acts as this policy does."""
        for batch in _CHECKED_BATCHES:
            key = jax.random.key(batch, impl=KEY_KIND)
            observation = self.random_observations(key, batch)
            expected = np.asarray(self(observation, key))
            fields = (getattr(observation, name) for name in self._inputs)
            found = np.asarray(exported(*fields, jax.random.key_data(key)))
            # Another compilation may round differently.
            close = partial(np.allclose, rtol=1e-4, atol=1e-5) if expected.dtype.kind == "f" else np.array_equal
            if found.dtype != expected.dtype or not close(found, expected):
                raise RuntimeError(f"the exported policy acts differently on {batch} random observations")

    def random_observations(self, key: jax.Array, batch: int) -> Observation:
        """Observations to try a policy on, drawn from `observation_space`; of masked actions, some are illegal.

        Args:
            key: a typed PRNG key.
            batch: how many, B.

        Returns:
            The observations `[B, ...]`.
        """

        def draw(key: jax.Array) -> Observation:
            view_key, mask_key, steps_key = jax.random.split(key, 3)
            view = self.observation_space.sample(view_key).astype(self._inputs["agent_view"].dtype)
            mask, steps = self._inputs.get("action_mask"), self._inputs.get("step_count")
            return Observation(
                view,
                None if mask is None else jax.random.bernoulli(mask_key, 0.7, mask.shape),
                None if steps is None else jax.random.randint(steps_key, steps.shape, 0, 100, steps.dtype),
            )

        return jax.vmap(draw)(jax.random.split(key, batch))


def _remembers(carry: Any) -> bool:
    """Whether what is carried is more than the keys of the noise, of which every call draws new ones."""
    return any(not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(carry))


def _fitting(name: str, value: Any, wanted: jax.ShapeDtypeStruct) -> jax.Array:
    """The value as an array of the wanted dtype, whose last axes are those that are wanted."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if array.shape[max(array.ndim - len(wanted.shape), 0) :] != wanted.shape:
        raise ValueError(f"{name} has the shape {array.shape}, and this policy takes [..., *{wanted.shape}]")
    if not np.can_cast(array.dtype, wanted.dtype, "same_kind"):
        raise ValueError(f"{name} is made of {array.dtype}, and this policy takes {wanted.dtype}")
    return jnp.asarray(array, wanted.dtype)


def load_policy(
    run_dir: str | Path,
    which: str = "best",
    member: int | Literal["best"] | None = None,
    greedy: bool | None = None,
    trust: bool = False,
) -> Policy:
    """Load what a run has trained.

    Args:
        run_dir: the run.
        which: `best`, the parameters with the best evaluation; `last`; or the number of environment steps of a
            checkpoint that is kept.
        member: of a population; by default the best one.
        greedy: act by the mode of the policy; by default as the run's `arch.evaluation_greedy` says.
        trust: allow a configuration that names code outside this package.

    Returns:
        The policy.

    Raises:
        ConfigError: there is no such run, checkpoint or member, or it cannot be used as a policy.
    """
    run = saved.open_run(run_dir, trust)
    chosen = load_member(run, which, member)
    hyperparams = run.prepared.population.of(chosen.member)
    return Policy(run.prepared, chosen.shared, hyperparams, greedy=greedy, env_steps=chosen.env_steps)


class TrainedMember(NamedTuple):
    """What a run has trained, of one member.

    Attributes:
        shared: its state, without a population axis.
        member: its number, 0 without a population.
        env_steps: environment steps after which it was saved.
    """

    shared: Any
    member: int
    env_steps: int


def load_member(run: SavedRun, which: str, member: int | str | None) -> TrainedMember:
    """Load one member of what a run has trained.

    Args:
        run: the run.
        which: as for `load_policy`.
        member: its number; `best` or None is the one that `choose_member` takes.

    Returns:
        The member.

    Raises:
        ConfigError: there is no such checkpoint or member.
    """
    loaded, size = saved.load_shared(run, which), run.prepared.population.size
    index = choose_member(loaded, member)
    shared = take_member(loaded.shared, index) if size > 1 else loaded.shared
    return TrainedMember(shared, index, int(np.atleast_1d(loaded.env_steps)[index]))


def choose_member(loaded: Loaded, member: int | str | None) -> int:
    """Which member of a population is asked for.

    Args:
        loaded: what was trained, of every member.
        member: its number; `best` or None is the one whose parameters returned most when they were evaluated, the
            first where none were.

    Returns:
        The member's number, 0 without a population.

    Raises:
        ConfigError: there is no such member.
    """
    returns = np.atleast_1d(loaded.episode_return)
    if isinstance(member, str) and member.isdigit():
        member = int(member)
    if member in (None, "best"):
        return int(np.where(np.isnan(returns), -np.inf, returns).argmax())
    if not isinstance(member, int) or not 0 <= member < returns.size:
        raise ConfigError(f"member={member} is not there: use best, or 0 to {returns.size - 1}")
    return member


def take_member(tree: Any, member: int) -> Any:
    """One member's part of what all of them have.

    Args:
        tree: of arrays `[P, ...]`.
        member: its number, 0 to P - 1.

    Returns:
        The tree of arrays `[...]`.
    """
    return jax.tree.map(lambda leaf: leaf[member], tree)
