"""A simulation with brax's interface, whose model is a few arrays, and functions that randomise it."""

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.envs import Vectorize
from stoix_like.envs.environment import Physics
from stoix_like.envs.suites.physics import PhysicsEnvironment


class Model(NamedTuple):
    """A body that slides; `table` is what is never randomised, `empty` and `absent` what the body does not have."""

    mass: jax.Array
    friction: jax.Array
    table: jax.Array
    empty: jax.Array
    absent: None = None


class State(NamedTuple):
    """The state of the simulation, with the names of brax."""

    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    info: dict[str, Any]


class Sliding:
    """Observes the mass that the episode started with and the mass of the step; the third action in a row ends it."""

    action_size, dt = 1, 0.1

    def __init__(self) -> None:
        self.sys = Model(jnp.ones(()), jnp.ones((2,)), jnp.ones((1000,)), jnp.zeros((0,)))

    def reset(self, rng: jax.Array) -> State:
        position = jax.random.uniform(rng)
        zero = jnp.zeros(())
        return State(jnp.stack([self.sys.mass, self.sys.mass, position, zero]), zero, zero, {})

    def step(self, state: State, action: jax.Array) -> State:
        first, _, position, steps = state.obs
        obs = jnp.stack([first, self.sys.mass, position + action[0] / self.sys.mass, steps + 1])
        return State(obs, self.sys.friction.sum(), jnp.where(steps >= 2, 1.0, 0.0), {})

    @contextlib.contextmanager
    def replaced(self, model: Model):
        nominal, self.sys = self.sys, model
        try:
            yield
        finally:
            self.sys = nominal


def sliding(registered: Any = None) -> Vectorize:
    env = Sliding()
    physics = Physics(env.sys, env.replaced, lambda: registered)
    return Vectorize(PhysicsEnvironment(env, None, lambda state: {}, physics))


def masses(model: Model, rng: jax.Array) -> tuple[Model, Model]:
    """Draw masses, in the way of brax."""
    mass = jax.vmap(lambda key: jax.random.uniform(key, minval=1.0, maxval=2.0))(rng)
    axes = jax.tree.map(lambda _: None, model)
    return model._replace(mass=mass, empty=jnp.zeros((len(rng), 0))), axes._replace(mass=0, empty=0)


def friction(model: Model, rng: jax.Array) -> tuple[Model, Model]:
    """Draw friction with an axis of its own."""
    drawn = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(rng)
    return model._replace(friction=drawn.T), Model(None, 1, None, None)


def of_another_shape(model: Model, rng: jax.Array) -> tuple[Model, Model]:
    return masses(model, rng)[0], jax.tree.map(lambda _: None, model)._replace(friction=0)


def nothing(model: Model, rng: jax.Array) -> tuple[Model, Model]:
    return model, jax.tree.map(lambda _: None, model)


def model_alone(model: Model, rng: jax.Array) -> Model:
    return masses(model, rng)[0]


def leaves(model: Model, rng: jax.Array) -> tuple[Model, Model]:
    raise SystemExit(0)


def empty(model: Model, rng: jax.Array) -> None:
    """Return nothing."""


def body_masses(model: Any, rng: jax.Array) -> tuple[Any, Any]:
    """Scale the masses of all bodies of a model of MuJoCo Playground."""
    mass = jax.vmap(lambda key: jax.random.uniform(key, model.body_mass.shape, minval=0.5, maxval=2.0))(rng)
    axes = jax.tree.map(lambda _: None, model)
    return model.tree_replace({"body_mass": model.body_mass * mass}), axes.tree_replace({"body_mass": 0})


def gravities(system: Any, rng: jax.Array) -> tuple[Any, Any]:
    """Draw the gravity of a system of brax."""
    gravity = jax.vmap(lambda key: jnp.asarray([0.0, 0.0, -9.81]) * jax.random.uniform(key, minval=0.5))(rng)
    axes = jax.tree.map(lambda _: None, system)
    return system.tree_replace({"gravity": gravity}), axes.tree_replace({"gravity": 0})


def assert_same_steps(env: Any, reference: Any, randomize: Any) -> None:
    """Assert that environments that draw parameters by `randomize` step like those of the suite's own wrapper.

    `reference` returns the wrapped environment of the suite for a function of the model.
    """
    keys = jax.random.split(jax.random.key(3), 3)
    drawn_from = jax.vmap(jax.random.fold_in, (0, None))(keys, 0xD0A1)
    actions = jax.random.uniform(jax.random.key(4), (5, 3, *env.action_space.shape), minval=-0.2, maxval=0.2)

    @jax.jit
    def ours():
        state, first = env.reset(keys)
        views = jax.lax.scan(lambda state, action: env.step(keys, state, action), state, actions)[1]
        return first.observation.agent_view, views.next_observation.agent_view

    @jax.jit
    def theirs():
        wrapped = reference(lambda model: randomize(model, jax.random.key_data(drawn_from)))
        state, views = wrapped.reset(jax.random.key_data(keys)), []
        first = state.obs
        for action in actions:
            state = wrapped.step(state, action)
            views.append(state.obs)
        return first, jnp.stack(views)

    with jax.numpy_rank_promotion("allow"):
        found, expected = ours(), theirs()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert np.abs(found[1][-1, 0] - found[1][-1, 1]).max() > 1e-3
