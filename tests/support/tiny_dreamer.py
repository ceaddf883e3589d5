"""Overrides of DreamerV3 with networks and sizes that train within seconds."""

NETWORK = [
    *(f"network.world_model.{part}.{size}" for part in ("encoder", "decoder") for size in ("units=16", "num_layers=1")),
    *(f"network.world_model.{part}.channels=2" for part in ("encoder", "decoder")),
    "network.world_model.dynamics.deterministic_size=32",
    *(f"network.world_model.dynamics.{size}" for size in ("num_blocks=2", "hidden_size=16", "num_latents=4")),
    "network.world_model.dynamics.num_classes=4",
    *(f"network.{name}_network.pre_torso.layer_sizes=[16]" for name in ("reward", "continue", "actor", "critic")),
    *(f"network.{name}_network.critic_head.num_atoms=31" for name in ("reward", "critic")),
]
SIZES = [
    *("arch.total_num_envs=4", "system.rollout_length=4", "system.warmup_steps=12", "system.total_buffer_size=256"),
    *("system.total_batch_size=4", "system.sequence_length=8", "system.latent_period=4", "system.online_sequences=2"),
    *("system.train_ratio=4", "system.imagination_length=3"),
]
TINY = ["system=dreamer/dreamer_v3", *NETWORK, *SIZES]
