"""Weights of the sizes of Disco103, and trajectories of predictions for its update rule."""

import functools
import hashlib
import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like import weights
from stoix_like.base_types import Axes, Observation
from stoix_like.networks.distributions import Categorical
from stoix_like.networks.heads import Predictions
from stoix_like.systems.disco_rl.anakin.ff_disco103 import Disco103
from stoix_like.systems.disco_rl.estimates import Moments, estimate
from stoix_like.systems.disco_rl.meta_network import LSTMState, Pair
from stoix_like.utils.replay import Step
from support.set_ups import config_of

# The published weights, which are not part of the package: `stoix-like fetch disco103` puts them there.
PUBLISHED = weights.default_path()
T, B, A = 5, 3, 4


def synthetic():
    """Return weights of the right names and shapes."""
    arrays = {}
    for i, (name, shape) in enumerate(sorted(weights.SHAPES.items())):
        values = np.sin(np.arange(1, np.prod(shape) + 1) * (1.0 + 0.37 * i))
        fan_in = shape[-2] if len(shape) > 1 else 16
        arrays[name] = np.asarray(2.5 * values / np.sqrt(fan_in), np.float32).reshape(shape)
    return arrays


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save(path, arrays=None):
    """Write weights to a file, and return overrides with which Disco103 learns by them."""
    np.savez(path, **(synthetic() if arrays is None else arrays))
    return [f"system.weights={path}", f"system.weights_sha256={digest(path)}"]


@functools.cache
def _temporary():
    """Return a directory that goes with this process."""
    return tempfile.TemporaryDirectory(prefix="stoix_like-weights-")


@functools.cache
def overrides(system="disco_rl/ff_disco103"):
    """Return the overrides that Disco103 needs where nothing was downloaded; other systems need none."""
    if system != "disco_rl/ff_disco103":
        return []
    return save(Path(_temporary().name) / "weights.npz")


def wave(shape, frequency, scale=1.0):
    """Return numbers that look random."""
    values = scale * np.sin(frequency * np.arange(1, np.prod(shape) + 1))
    return jnp.asarray(values.reshape(shape), jnp.float32)


def predictions(frequency):
    """Return predictions about `T + 1` consecutive observations."""
    return Predictions(
        Categorical(logits=wave((T + 1, B, A), frequency + 0.1)),
        wave((T + 1, B, 600), frequency + 0.2, 2.0),
        wave((T + 1, B, A, 600), frequency + 0.3, 2.0),
        wave((T + 1, B, A, 601), frequency + 0.4, 3.0),
        wave((T + 1, B, A, A), frequency + 0.5),
    )


def pair(predictions):
    """Return predictions about the observations, and about their successors, the next ones."""
    return Pair(*(jax.tree.map(lambda x, part=part: x[part], predictions) for part in (slice(-1), slice(1, None))))


def ends(*places):
    """Return flags `[T, B]` that are set in some places."""
    flags = np.zeros((T, B), bool)
    for place in places:
        flags[place] = True
    return jnp.asarray(flags)


TERMINATED = ends((1, 0), (3, 2))


def steps(terminated=TERMINATED, truncated=None):
    """Return steps whose observation is 0, and 1 as a successor."""
    now, following = Observation(jnp.zeros((T, B, 1))), Observation(jnp.ones((T, B, 1)))
    action, logits = jnp.arange(T * B).reshape(T, B) * 7 % A, wave((T + 1, B, A), 3.1)[:-1]
    truncated = ends() if truncated is None else truncated
    return Step(now, action, wave((T, B), 4.1, 3.0), terminated, truncated, following, logits)


LIFETIME = LSTMState(wave((128,), 5.1), wave((128,), 5.2))
MOMENTS = Moments(jnp.float32(0.1), jnp.float32(0.5), jnp.float32(0.99))
# Computed with a transcription of the published code in Haiku, which names parameters as the archive does.
EXPECTED = json.loads((Path(__file__).parents[1] / "systems/disco_rl/expected.json").read_text())


def make(*overrides):
    """Return the algorithm with a network whose parameters are its predictions."""
    return Disco103(config_of("system=disco_rl/ff_disco103", *overrides).system, Axes(), Recorded(), None, None, None)


class Recorded:
    """A network whose parameters are its predictions about observations and successors."""

    def apply(self, predictions, observation):
        after = observation.agent_view[0, 0, 0] > 0
        return jax.tree.map(lambda x: jnp.where(after, x[1:], x[:-1]), predictions)


def estimates(agent, steps):
    """Return what the meta-network reads, the returns, and the moments, see `estimate`."""

    @jax.jit
    def compute(online, target, steps):
        both = pair(online), pair(target)
        q_values = tuple(Pair(*map(agent.values, each)) for each in both)
        return estimate(agent.config.estimates, agent.config.gamma, Axes(), steps, both, q_values, MOMENTS)

    return compute(predictions(1.0), predictions(2.0), steps)
