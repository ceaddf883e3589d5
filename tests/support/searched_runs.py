"""AlphaZero with tiny networks and searches."""

from stoix_like.base_types import Axes
from support.algorithms import make_algorithm
from support.set_ups import setup_of

SMALL = [
    *("arch.total_num_envs=4", "arch.num_devices=1", "system.num_simulations=4", "system.evaluation_simulations=4"),
    *("system.rollout_length=4", "system.sequence_length=4", "system.sequence_period=4", "system.warmup_steps=4"),
    *("system.total_batch_size=4", "system.epochs=1", "system.total_buffer_size=64"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[4]" for name in ("actor", "critic")),
]


def prepare(*overrides):
    """Set up a run of AlphaZero; return the setup, and the algorithm for a single shard."""
    setup = setup_of("system=search/ff_az", *SMALL, *overrides)
    return setup, make_algorithm(setup, axes=Axes())
