import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment
from gymnax.environments import spaces as gymnax_spaces

from stoix_like.base_types import Axes, Observation
from stoix_like.envs.environment import Environment, restart
from stoix_like.envs.factory import EnvConfig, ScenarioConfig, make_eval
from stoix_like.envs.spaces import Box, Dict, Discrete
from stoix_like.systems.parts.normalizer import make_normalizer
from stoix_like.utils.jax_utils import as_floats
from support.lazily import Lazy

gymnasium, pettingzoo = Lazy("gymnasium"), Lazy("pettingzoo")
jaxmarl_spaces = Lazy("jaxmarl.environments.spaces")

FLAGS, BYTES = np.array([0, 1, 1, 0]), np.array([0, 7, 200, 255])
# The declared dtype and bounds, the value that is observed, and what networks compute with: only bytes from 0 to 255
# with two axes or more are pixels, which are divided by 255.
NUMBERS = {
    "flags": ("uint8", 0, 1, FLAGS, FLAGS),
    "bytes": ("uint8", 0, 255, BYTES, BYTES),
    "symbols": ("uint8", 0, 9, np.arange(4).reshape(2, 2), np.arange(4).reshape(2, 2)),
    "pixels": ("uint8", 0, 255, BYTES.reshape(2, 2, 1), BYTES.reshape(2, 2, 1) / np.float32(255)),
    "integers": ("int32", -9, 300, np.array([-9, 300]), np.array([-9.0, 300.0])),
    "floats": ("float32", 0, 255, BYTES.reshape(2, 2), BYTES.reshape(2, 2)),
}
CASES = [*[[name] for name in NUMBERS], list(NUMBERS)]


def of(names, make_space, make_dict, array=jnp.asarray):
    """Return the space and the view of one kind of number, or of a dictionary of several."""
    spaces = {
        name: make_space(low, high, value.shape, np.dtype(t))
        for name in names
        for t, low, high, value, _ in [NUMBERS[name]]
    }
    views = {name: array(NUMBERS[name][3].astype(NUMBERS[name][0])) for name in names}
    return (make_dict(spaces), views) if len(names) > 1 else (spaces[names[0]], views[names[0]])


def own(names):
    class Own(Environment):
        observation_space, view = of(names, Box, Dict)
        action_space = Discrete(2)

        def reset(self, key):
            return jnp.zeros(()), restart(Observation(self.view))

        def step(self, key, state, action):
            return state, restart(Observation(self.view))

    return Own()


@struct.dataclass
class State(environment.EnvState):
    step: int = 0


def gymnax(names):
    space, view = of(names, gymnax_spaces.Box, gymnax_spaces.Dict)

    class Gymnax(environment.Environment):
        default_params = environment.EnvParams()

        def reset_env(self, key, params):
            return view, State(time=0)

        def step_env(self, key, state, action, params):
            return view, state, jnp.zeros(()), jnp.zeros((), bool), {}

        def action_space(self, params):
            return gymnax_spaces.Discrete(2)

        def observation_space(self, params):
            return space

    return Gymnax()


def jaxmarl(names):
    space, view = of(names, jaxmarl_spaces.Box, jaxmarl_spaces.Dict)

    class Jaxmarl:
        agents, max_steps = ("a", "b"), 5
        observation_spaces = dict.fromkeys(agents, space)
        action_spaces = dict.fromkeys(agents, jaxmarl_spaces.Discrete(2))

        def reset(self, key):
            return dict.fromkeys(self.agents, view), State(time=0)

        def step_env(self, key, state, actions):
            dones = dict.fromkeys([*self.agents, "__all__"], jnp.zeros((), bool))
            return dict.fromkeys(self.agents, view), state, dict.fromkeys(self.agents, 0.0), dones, {}

    return Jaxmarl()


def gymnasium_env(names):
    class Gymnasium(gymnasium.Env):
        observation_space, view = of(names, gymnasium.spaces.Box, gymnasium.spaces.Dict, np.asarray)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return self.view, {}

    return Gymnasium


def parallel(names):
    space, view = of(names, gymnasium.spaces.Box, gymnasium.spaces.Dict, np.asarray)

    class Parallel(pettingzoo.ParallelEnv):
        agents = possible_agents = ("a", "b")

        def observation_space(self, agent):
            return space

        def action_space(self, agent):
            return gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            return dict.fromkeys(self.agents, view), {agent: {} for agent in self.agents}

    return Parallel


@functools.partial(jax.jit, static_argnames="sign")
def as_networks_see_it(view, sign):
    """Return a view in floats, and normalised by its own statistics, with those of its opposite if `sign` is -1."""
    normalizer = make_normalizer(True, Axes())
    state = normalizer.init(Observation(view))
    for scale in (sign, 1):
        state = normalizer.update(state, Observation(scale * view[None, -1:]))
    return as_floats(view)[-1], as_floats(normalizer.apply(state, Observation(view)).agent_view[-1])


@pytest.mark.parametrize("names", CASES, ids="+".join)
@pytest.mark.parametrize("interface", [own, gymnax, jaxmarl, gymnasium_env, parallel])
def test_networks_and_normalisers_see_the_declared_meaning(interface, names):
    if len(names) > 1 and interface in (gymnax, parallel):
        pytest.skip("the interface has no dictionaries here")
    env = make_eval(EnvConfig(env_name="own", scenario=ScenarioConfig("numbers")), interface(names))
    keys = jax.random.split(jax.random.key(0), env.num_agents)
    view = jax.jit(env.reset)(keys)[1].observation.agent_view
    views = view if len(names) > 1 else {names[0]: view}
    for name, seen in views.items():
        value = NUMBERS[name][4]
        floats, normalised = as_networks_see_it(seen, 1 if name == "pixels" else -1)
        np.testing.assert_allclose(floats, value, rtol=1e-6)
        # The mean of x and -x is 0, their deviation |x|.
        np.testing.assert_allclose(normalised, value if name == "pixels" else np.sign(value), rtol=1e-6)
