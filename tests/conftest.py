import os

# Before jax starts its backend: two devices on any machine, and no accelerator.
os.environ["JAX_NUM_CPU_DEVICES"] = "2"
os.environ["JAX_PLATFORMS"] = "cpu"

import hypothesis
import jax

# What passes here passes everywhere.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("repeatable")

jax.config.update("jax_numpy_rank_promotion", "raise")
