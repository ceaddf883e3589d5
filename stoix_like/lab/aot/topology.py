"""Devices that are not in the machine, and a run that is set up for them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from stoix_like.arch_config import AnakinConfig
from stoix_like.config import RunConfig
from stoix_like.errors import ConfigError
from stoix_like.lab.aot.plugins import silence
from stoix_like.lab.aot.targets import Target
from stoix_like.run.host.devices import check_fused
from stoix_like.run.set_up.setup import RunSetup, set_up


def set_up_for(config: RunConfig, target: Target) -> RunSetup:
    """Set up a run for devices that are not in the machine, with as many of them as it would use there."""
    arch = config.arch
    if isinstance(arch, AnakinConfig) and arch.distributed is not None:
        raise ConfigError(f"arch.distributed does not apply to --for {target.name}, one process compiles for all hosts")
    needed = arch.devices_needed or target.num_devices
    if target.platform == "tpu" and needed > target.num_devices:
        raise ConfigError(f"arch.num_devices={needed} is too many: --for {target.name} has {target.num_devices}")
    if isinstance(arch, AnakinConfig):
        config = config._replace(arch=dataclasses.replace(arch, num_devices=needed))
    os.environ["JAX_NUM_CPU_DEVICES"] = str(needed)
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", needed)
    with silence():
        places = dict(zip(jax.local_devices(), find_devices(target, needed), strict=False))
    check_fused(arch, places.values())
    setup = set_up(config, device_memory=target.usable)
    mesh = setup.mesh
    grid = np.asarray([places[device] for device in mesh.devices.flat]).reshape(mesh.devices.shape)
    return setup._replace(
        mesh=Mesh(grid, mesh.axis_names, axis_types=mesh.axis_types),
        actor_devices=tuple(places[device] for device in setup.actor_devices),
    )


def find_devices(target: Target, count: int) -> Sequence[jax.Device]:
    """Return devices of a target."""
    try:
        if target.platform == "tpu":
            return topologies.get_topology_desc(target.topology, "tpu").devices
        return topologies.get_topology_desc(
            target.title, target.platform, target_config=target.topology, topology=f"1x1x{count}"
        ).devices
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"--for {target.name}: {str(error).splitlines()[0]}") from error
