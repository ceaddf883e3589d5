"""Devices of a process, found before jax starts its backend."""

from __future__ import annotations

import contextlib
import os
import re

import jax

from stoix_like.errors import ConfigError, first_line


def find_devices(num_devices: int | None, problem: str | None = None) -> list[jax.Device]:
    """Return the first devices of this process.

    Without an accelerator, the CPU is split into `num_devices` devices, up to one per core; the environment variable
    `JAX_NUM_CPU_DEVICES` sets another limit.

    `num_devices`: number of devices; None uses every accelerator, or one device on a CPU.
    """
    limit = _cpu_limit()
    if num_devices is not None:
        reserve(num_devices)
    devices = _start_backend()
    on_cpu = devices[0].platform == "cpu"
    wanted = (1 if on_cpu else len(devices)) if num_devices is None else num_devices
    if wanted > len(devices):
        problem = problem or f"arch.num_devices={wanted} is too many"
        raise ConfigError(f"{problem}: {_available(len(devices), on_cpu, limit)}")
    return devices[:wanted]


def reserve(num_devices: int) -> None:
    """Split the CPU into at least `num_devices` devices, at most one per core, before jax starts."""
    if os.environ.get("JAX_NUM_CPU_DEVICES"):
        return
    forced = re.search(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    present = max(jax.config.values["jax_num_cpu_devices"], int(forced[1]) if forced else 0)
    if (wanted := min(num_devices, _cpu_limit())) > present:
        # The backend may have started already, as in a notebook or a test: its devices are final.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", wanted)


def check_host_calls(name: str) -> None:
    """Refuse environments on the host where jax has no CPU device, through which accelerators call them."""
    try:
        jax.local_devices(backend="cpu")
    except RuntimeError as error:
        platforms = jax.config.values["jax_platforms"]
        raise ConfigError(
            f"JAX_PLATFORMS={platforms} leaves out the CPU, through which programs call {name} on the host: use"
            f" JAX_PLATFORMS={platforms},cpu"
        ) from error


def _start_backend() -> list[jax.Device]:
    try:
        return jax.local_devices()
    # An AssertionError where jax knows the platform, but has no plugin for it.
    except (RuntimeError, AssertionError) as error:
        platforms = jax.config.values["jax_platforms"]
        reason = first_line(error) if str(error).strip() else "no plugin for it is installed"
        raise ConfigError(
            f"JAX_PLATFORMS={platforms} cannot be used ({reason}): install 'stoix_like[cuda12]', [cuda13] or [tpu], or"
            " use JAX_PLATFORMS=cpu"
        ) from error


def _cpu_limit() -> int:
    forced = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    if forced.isdigit() and int(forced) > 0:
        return int(forced)
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _available(present: int, on_cpu: bool, limit: int) -> str:
    if not on_cpu:
        return f"use at most {present}"
    if present < limit:
        return f"jax has already started with {present}; start a new process to use up to {limit}, one per CPU core"
    return f"use at most {limit}, one per CPU core (JAX_NUM_CPU_DEVICES sets another limit)"
