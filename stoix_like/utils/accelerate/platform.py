"""The platform that a program is traced for, where one form of a computation does not suit all."""

from __future__ import annotations

import jax


def on_cpu() -> bool:
    """Return whether the program that is traced will run on CPUs.

    The devices of the mesh decide, because a program may be compiled for devices that are not in the machine; outside
    of a mesh, the default ones do.
    """
    return _platform() == "cpu"


def on_gpu() -> bool:
    """Return whether the program that is traced will run on GPUs, see `on_cpu`.

    They pay for the launch of a kernel, however small, and lay arrays out in rows. TPUs pay for other layouts: a vector
    that holds matrices is copied before they are multiplied.
    """
    return _platform() not in ("cpu", "tpu")


def _platform() -> str:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform
