"""The platform that a program is traced for, where one form of a computation does not suit all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def on_cpu() -> bool:
    """Return whether the program that is traced will run on CPUs.

    The devices of the mesh decide, because a program may be compiled for devices that are not in the machine; outside
    of a mesh, the default ones do.
    """
    return _platform() == "cpu"


def on_gpu() -> bool:
    """Return whether the program that is traced will run on GPUs.

    They pay for the launch of a kernel, however small, and lay arrays out in rows. TPUs pay for other layouts: a vector
    that holds matrices is copied before they are multiplied.
    """
    return _platform() not in ("cpu", "tpu")


def map_init(init: Callable[..., Any]) -> Callable[..., Any]:
    """Map an initialiser over the first axis of its arguments, sequentially on CPUs.

    Orthogonal initialisers use QR decompositions. On CPUs, a batch of them waits for other threads, so that two batches
    at a time, such as of two networks or devices, wait for each other where there are two threads (jax 0.10).
    """
    return lambda *args: jax.lax.map(lambda one: init(*one), args) if on_cpu() else jax.vmap(init)(*args)


def _platform() -> str:
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform
