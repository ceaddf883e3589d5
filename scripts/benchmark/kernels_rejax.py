"""Compile rejax's training program for an accelerator that is not in the machine; see `kernels.py`.

Runs in rejax's own virtual environment. The arguments are JSON: settings as for `peer_rejax.py`, and the target.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

os.environ |= {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

import jax
import jax.numpy as jnp
import rejax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

settings, target = map(json.loads, sys.argv[1:])
members, create = settings["members"], settings["create"]
algorithm = getattr(rejax, settings["algorithm"]).create(**create, eval_freq=create["total_timesteps"])
silent = algorithm.replace(eval_callback=lambda *_: jnp.zeros(()))
train = partial(type(silent).train, silent)
if target["platform"] == "tpu":
    found = topologies.get_topology_desc(target["topology"], "tpu")
else:
    found = topologies.get_topology_desc(
        target["title"], target["platform"], target_config=target["topology"], topology="1x1x1"
    )
key = jax.ShapeDtypeStruct(
    (members, 2) if members > 1 else (2,), "uint32", sharding=SingleDeviceSharding(found.devices[0])
)
lowered = jax.jit(jax.vmap(train) if members > 1 else train).lower(key)
compiled = lowered.compile()
result = {
    "hlo": compiled.as_text(),
    "temporary": compiled.memory_analysis().temp_size_in_bytes,
    "length": create.get("num_steps", 1),
    "steps": members * create["num_envs"] * create.get("num_steps", 1),
}
Path(os.environ["KERNELS_OUT"]).write_text(json.dumps(result))
