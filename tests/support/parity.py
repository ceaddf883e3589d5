"""Reference outputs of the authors' code, and the weights of their networks in ours.

`scripts/parity` records the files. `agree` prints each difference that it measures: run the tests with `-s`.
"""

import collections
import sys
from pathlib import Path

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from stoix_like.base_types import Axes, Observation
from stoix_like.envs import Box, Discrete, Environment
from stoix_like.envs.environment import restart, transition
from stoix_like.networks import distributions
from stoix_like.utils.replay import Batch
from support.algorithms import make_algorithm
from support.set_ups import setup_of

RECORDED = Path(__file__).parents[1] / "parity" / "recorded"


class Spaces(Environment):
    """An environment of which only the spaces are used."""

    observation_space = Box(-np.inf, np.inf, (3,))

    def __init__(self, discrete=False, bounded=True):
        high = 1.0 if bounded else np.inf
        self.action_space = Discrete(3) if discrete else Box(-high, high, (2,))

    def reset(self, key):
        return (), restart(Observation(jnp.zeros((3,))))

    def step(self, key, state, action):
        return state, transition(Observation(jnp.zeros((3,))), 0.0, False, False)


def algorithm(system, *overrides):
    """Return the algorithm of a system for `Spaces`, and its initial shared state."""
    small = ("arch.total_num_envs=4", "arch.num_evaluation=1", "env=own", "env._target_=support.parity.Spaces")
    setup = setup_of(f"system={system}", *small, *overrides)
    made = make_algorithm(setup, axes=Axes())
    keys = jax.random.split(jax.random.key(0), setup.spec.num_envs)
    return made, jax.jit(lambda keys: made.init(keys[0], setup.env.reset(keys)[1]).shared)(keys)


def load(name):
    """Return the arrays of a file as nested dictionaries."""
    tree = {}
    with np.load(RECORDED / f"{name}.npz") as file:
        for path in file.files:
            *parents, leaf = path.split("/")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = file[path]
    return tree


def dense(weights, name):
    """Return the parameters of a linear layer of PyTorch as those of flax."""
    return {"kernel": weights[f"{name}.weight"].T, "bias": weights[f"{name}.bias"]}


def perceptron(weights, name, head="action_head", layers=2):
    """Return a multilayer perceptron of PyTorch, `Sequential(Linear, ReLU, …, Linear)`, as a torso and a head."""
    torso = {f"Dense_{i}": dense(weights, f"{name}.{2 * i}") for i in range(layers)}
    return {"torso": torso, head: {"Dense_0": dense(weights, f"{name}.{2 * layers}")}}


def critics(weights):
    """Return the twin critics of stable-baselines3, `qf0` and `qf1`."""
    return {"params": {f"networks_{i}": perceptron(weights, f"qf{i}", "critic_head") for i in range(2)}}


def squashed_policy(weights):
    """Return the policy of SAC in stable-baselines3, whose two heads are one of ours."""
    heads = [dense(weights, name) for name in ("mu", "log_std")]
    head = jax.tree.map(lambda loc, scale: np.concatenate([loc, scale], axis=-1), *heads)
    torso = {f"Dense_{i}": dense(weights, f"latent_pi.{2 * i}") for i in range(2)}
    return {"params": {"torso": torso, "action_head": {"Dense_0": head}}}


class RecordedNormal(distrax.Normal):
    """A normal distribution that draws recorded noise."""

    def __init__(self, loc, scale, noise):
        super().__init__(loc, scale)
        self._noise = noise

    def _sample_n(self, key, n):
        return (self.loc + self.scale * self._noise)[None]


class RecordedNoise:
    """An actor with a squashed normal policy that draws recorded noise; `draws`: pairs of observations and `[B, A]`."""

    def __init__(self, actor, draws):
        self.actor, self.draws = actor, draws

    def apply(self, variables, observation, **kwargs):
        """Return the policy, and with `mutable` also what the actor updates."""
        output = self.actor.apply(variables, observation, **kwargs)
        pi, *updated = output if isinstance(output, tuple) else (output,)
        noise = next(noise for place, noise in self.draws if place is observation)
        normal = pi.distribution.distribution
        squashed = distributions.AffineTanhTransformedDistribution(
            RecordedNormal(normal.loc, normal.scale, noise), -1.0, 1.0
        )
        pi = distributions.Independent(squashed, 1)
        return (pi, *updated) if updated else pi


def batch_of(rows, step, gamma):
    """Return a recorded batch as one of the replay buffer."""
    rows = {name: jnp.asarray(value[step]) for name, value in rows.items()}
    now, following = (Observation(rows[name]) for name in ("observation", "next_observation"))
    reward, discount = rows["reward"], gamma * (1.0 - rows["terminated"])
    return Batch(now, rows["action"], reward, discount, following, jnp.ones_like(reward), None)


def with_params(shared, params):
    """Return an initial state with other parameters of the same shapes."""
    shapes, expected = jax.tree.map(jnp.shape, params), jax.tree.map(jnp.shape, shared.params)
    if shapes != expected:
        raise ValueError(f"{shapes} is not {expected}")
    return shared._replace(params=jax.tree.map(jnp.asarray, params))


def stack(metrics):
    """Return the metrics of successive steps as arrays by name."""
    return {name: np.array([step[name] for step in metrics]) for name in metrics[0]}


def mean_gradient(opt_state):
    """Return Adam's running mean of the gradients."""
    return optax.tree.get(opt_state, "mu")


def change(new, old):
    return jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), new, old)


def difference(got, expected):
    """Return the largest difference of two trees, in units of the largest entry of its layer, weights and biases."""
    got, expected = (jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree) for tree in (got, expected))
    if jax.tree.map(np.shape, got) != jax.tree.map(np.shape, expected):
        raise ValueError(f"{jax.tree.map(np.shape, got)} is not {jax.tree.map(np.shape, expected)}")
    errors, sizes = collections.defaultdict(list), collections.defaultdict(list)
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        errors[path[:-1]].append(np.abs(a - b).max())
        sizes[path[:-1]].append(np.abs(b).max())
    # Python's `max` would pass over NaN.
    return np.max([np.max(errors[layer]) / np.max(sizes[layer]) for layer in errors])


def agree(name, got, expected, tolerance):
    """Check that two trees agree, and print their largest relative difference."""
    largest = difference(got, expected)
    sys.stdout.write(f"parity: {name}: {largest:.1e}\n")
    assert largest <= tolerance, f"{name} differs by {largest:.2e}, more than {tolerance}"
