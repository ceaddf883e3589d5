"""The platform that a program is traced for, where one form of a computation does not suit all."""

from __future__ import annotations

import jax


def on_cpu() -> bool:
    """Return whether the program that is traced will run on CPUs.

    The devices of the mesh decide, because a program may be compiled for devices that are not in the machine; outside
    of a mesh, the default ones do.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (jax.default_backend() if device is None else device.platform) == "cpu"
