"""Short runs of off-policy systems with tiny networks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Axes, EpisodeMetrics, Observation, TimeStep
from stoix_like.loggers import MultiLogger
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.utils.replay import Batch
from support.algorithms import make_algorithm
from support.set_ups import setup_of

SMALL = [
    "network.actor_network.pre_torso.layer_sizes=[16]",
    "network.q_network.pre_torso.layer_sizes=[16]",
    *("arch.compile_cache=false", "arch.absolute_metric=false", "arch.num_evaluation=1", "arch.total_num_envs=8"),
    *("system.rollout_length=4", "system.epochs=4", "system.warmup_steps=16"),
    *("system.total_buffer_size=2048", "system.total_batch_size=64", "system.tau=0.05"),
]
# Of recurrent systems.
SEQUENCES = [
    *("system.sequence_period=4", "system.burn_in_length=1", "system.sequence_length=4", "system.warmup_steps=64"),
    *(f"network.{name}_network.rnn_layer.hidden_state_dim=8" for name in ("actor", "q")),
]


def set_up_small(system, *overrides):
    """Set up a run of a system, on the probe `continuous_policy` by default."""
    # CrossQ has no target network.
    small = [override for override in SMALL if system != "sac/ff_crossq" or "tau" not in override]
    return setup_of(f"system={system}", "env=probe/continuous_policy", *small, *overrides)


def algorithm(system, *overrides):
    return make_algorithm(set_up_small(system, *overrides), axes=Axes())


def training_loop(system, *overrides):
    return TrainingLoop(set_up_small(system, *overrides), MultiLogger([]))


def trained(system, *overrides):
    run = training_loop(system, *overrides)
    run.train()
    return run


def timestep(lengths, finished):
    """Return time steps `[N]` of episodes with the given lengths, finished or not."""
    flags, lengths = np.array(finished, bool), np.array(lengths)
    nothing = np.zeros(flags.shape)
    view, metrics = Observation(nothing[:, None]), EpisodeMetrics(nothing, lengths, flags)
    return jax.device_put(TimeStep(view, nothing, flags, np.zeros_like(flags), view, metrics))


@functools.partial(jax.jit, static_argnums=0)
def random_batch(size):
    keys = jax.random.split(jax.random.key(3), 5)
    action = jax.random.uniform(keys[0], (size, 1), minval=-0.9, maxval=0.9)
    reward, discount = (jax.random.uniform(key, (size,)) for key in keys[1:3])
    now, then = (Observation(jax.random.normal(key, (size, 1))) for key in keys[3:])
    return Batch(now, action, reward, discount, then, jnp.ones((size,)), None)


def equal(tree, other):
    return all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), tree, other)))
