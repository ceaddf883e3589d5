"""A small TD-MPC2, for tests."""

NETWORK = [
    *(f"network.{name}_network.pre_torso.layer_sizes=[16,16]" for name in ("representation", "dynamics")),
    *(f"network.{name}_network.pre_torso.layer_sizes=[16]" for name in ("reward", "continue", "actor", "q")),
]
PLANS = ["system.iterations=2", "system.num_samples=8", "system.num_policy_samples=2", "system.num_elites=2"]
SMALL = [*NETWORK, *PLANS, "system.total_batch_size=16", "system.warmup_steps=16", "system.total_buffer_size=1024"]
