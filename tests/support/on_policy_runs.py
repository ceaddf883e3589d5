"""Short runs of on-policy systems with tiny networks."""

from support.set_ups import loop_of

SMALL = [
    *(f"network.{name}_network.pre_torso.layer_sizes=[16]" for name in ("actor", "critic")),
    *("arch.compile_cache=false", "arch.absolute_metric=false", "arch.num_evaluation=1", "arch.total_num_envs=16"),
    *("system.rollout_length=16", "system.actor_lr=1e-2", "system.critic_lr=1e-2", "system.max_grad_norm=10"),
]
# Fewer environments and units, and four gradient steps per update.
SMALLER = [
    "network.actor_network.pre_torso.layer_sizes=[8]",
    *("arch.compile_cache=false", "arch.absolute_metric=false", "arch.num_evaluation=1", "arch.num_devices=1"),
    *("arch.total_num_envs=4", "arch.num_eval_episodes=2", "system.rollout_length=8", "system.epochs=2"),
    *("system.num_minibatches=2", "arch.total_timesteps=512"),
]


def training_loop(*overrides, writer=None):
    return loop_of(*SMALL, *overrides, writer=writer)
