"""Devices of a run and the mesh over them, set up before jax starts its backend."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from stoix_like.arch_config import AnakinConfig, ArchConfig, DistributedConfig, SebulbaConfig
from stoix_like.devices import find_devices, reserve
from stoix_like.errors import ConfigError, multiples_near
from stoix_like.processes import ALONE, Processes
from stoix_like.run.host import connection, heartbeat
from stoix_like.storage.files import user_cache

# Only kernels with results that do not depend on timing, and none chosen by measuring its speed.
_DETERMINISTIC_FLAGS = {"--xla_gpu_exclude_nondeterministic_ops": "true", "--xla_gpu_autotune_level": "0"}
DETERMINISTIC_OPTIONS = {name.removeprefix("--"): json.loads(value) for name, value in _DETERMINISTIC_FLAGS.items()}
_NONDETERMINISTIC_FLAGS = [f"--xla_gpu_exclude_nondeterministic_ops={value}" for value in ("false", "0")]
# Compute capabilities with the shared memory that fused networks need.
_FUSES = ("9.", "10.")


class RunDevices(NamedTuple):
    """The devices of a run."""

    learner: list[jax.Device]  # those that learn, and with Anakin also act
    actors: tuple[jax.Device, ...] = ()  # with Sebulba, one per actor
    processes: Processes = ALONE  # the processes that have them


def devices_of(arch: ArchConfig) -> RunDevices:
    """Return the devices of a run."""
    if platform.system() == "Windows":
        raise ConfigError("stoix_like runs on Linux and macOS: on Windows, use WSL")
    if arch.deterministic:
        set_deterministic()
    processes = connect(arch)
    if isinstance(arch, AnakinConfig) and processes.count > 1:
        found, place = _devices_of_all_hosts(processes, arch.num_devices), arch.distributed
        first = place.coordinator.rpartition(":")[0].strip("[]") if isinstance(place, DistributedConfig) else None
        heartbeat.start(processes, first or processes.first(socket.getfqdn))
        return found
    if not isinstance(arch, SebulbaConfig):
        return RunDevices(find_devices(arch.devices_needed))
    groups = {"arch.actor.device_ids": arch.actor.device_ids, "arch.learner.device_ids": arch.learner.device_ids}
    for key, ids in groups.items():
        if not ids or len(set(ids)) < len(ids):
            raise ConfigError(f"{key}={list(ids)} must name at least one device, and none twice: use [0]")
    largest = max(groups, key=lambda key: max(groups[key]))
    devices = find_devices(arch.devices_needed, f"{largest}={list(groups[largest])} needs more devices than there are")
    acting = [devices[index] for index in arch.actor.device_ids for _ in range(arch.actor.actor_per_device)]
    return RunDevices([devices[index] for index in arch.learner.device_ids], tuple(acting))


def connect(arch: ArchConfig) -> Processes:
    """Connect this process with the others of its run, unless it is connected already."""
    if not isinstance(arch, AnakinConfig) or arch.distributed is None:
        return ALONE
    if not jax.distributed.is_initialized():
        if arch.devices_needed is not None:
            reserve(arch.devices_needed)
        connection.connect(arch.distributed)
    return Processes(jax.process_count(), jax.process_index())


def _devices_of_all_hosts(processes: Processes, wanted: int | None) -> RunDevices:
    """Return the same number of devices of each process."""
    if wanted is not None and wanted % processes.count:
        raise ConfigError(
            f"arch.num_devices={wanted} counts the devices of all {processes.count} processes, of which each has the"
            f" same number: use {multiples_near(wanted, processes.count)}"
        )
    # Known without communication, which needs equal numbers.
    counts = [sum(one.process_index == index for one in jax.devices()) for index in range(processes.count)]
    if len(set(counts)) > 1:
        raise ConfigError(
            f"arch.distributed: the processes have {counts} devices: let each have {min(counts)}"
            " (CUDA_VISIBLE_DEVICES, JAX_NUM_CPU_DEVICES)"
        )
    share = None if wanted is None else wanted // processes.count
    own = processes.together(lambda: find_devices(share, f"arch.num_devices={wanted} is too many"))
    by_process = [[one for one in jax.devices() if one.process_index == index] for index in range(processes.count)]
    return RunDevices([device for found in by_process for device in found[: len(own)]], processes=processes)


def device_names(mesh: Mesh) -> list[str]:
    """Return the platform and the model of each device of a mesh, `gpu:NVIDIA H100`."""
    return [f"{device.platform}:{device.device_kind}" for device in mesh.devices.flat]


def placing(compiled: Any) -> Callable[..., Any]:
    """Return a compiled program that copies its arguments from the host to its devices by explicit transfers.

    A `jax.transfer_guard` then finds every other transfer.
    """
    shardings = compiled.input_shardings[0]
    if not all(sharding.is_fully_addressable for sharding in jax.tree.leaves(shardings)):
        # A key cannot be transferred to the devices of other processes; the program takes each process's own.
        return compiled

    def call(first: Any, *others: Any) -> Any:
        return compiled(first, *jax.device_put(others, shardings[1:]))

    return call


def memory_of(device: jax.Device) -> int:
    """Return the memory of a device in bytes; for a CPU, the machine's, which its devices share.

    Of a container or a job of a scheduler, that is its limit.
    """
    stats = device.memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    of_machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([of_machine, *memory_limits()])


def memory_limits(root: Path = Path("/")) -> Iterator[int]:
    """Yield the limits in bytes of the control groups of this process, and of all groups above them."""
    entries = ["0::/", "0:memory:/"]  # all that a container may see
    with contextlib.suppress(OSError):
        entries += (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    for entry in entries:
        controllers, _, group = entry.partition(":")[2].partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        # The first version of control groups has a tree per controller.
        tree, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        for place in (Path(group), *Path(group).parents):
            with contextlib.suppress(OSError, ValueError):  # `max` where there is none
                file = root / "sys/fs/cgroup" / tree / place.relative_to("/") / name
                yield int(file.read_text(encoding="utf-8"))


def set_deterministic() -> None:
    """Let GPUs compute the same bits in every run, by flags in `XLA_FLAGS` that XLA reads when jax starts.

    Flags that the variable already has keep their values. Other devices are deterministic without any flag.
    """
    given = os.environ.get("XLA_FLAGS", "")
    for flag in given.split():
        if flag.lower() in _NONDETERMINISTIC_FLAGS:
            raise ConfigError(f"arch.deterministic=true contradicts XLA_FLAGS='{flag}': remove one of them")
    names = [flag.partition("=")[0] for flag in given.split()]
    missing = [f"{name}={value}" for name, value in _DETERMINISTIC_FLAGS.items() if name not in names]
    if not missing:
        return
    if not _has_started():
        os.environ["XLA_FLAGS"] = " ".join([*given.split(), *missing])
    elif jax.default_backend() == "gpu":
        raise ConfigError(
            "arch.deterministic=true comes too late, jax has already started: start a new process, or set"
            f" XLA_FLAGS='{' '.join(missing)}' before this one imports jax"
        )


def set_compile_cache(enabled: bool) -> None:
    """Cache compiled programs in a directory of the user, unless a cache directory is already set.

    jax finds an entry by the lowered program, so no change of code or data can run an earlier program. Entries are
    executable code: those that another user can have written are not read, and the reason is a warning.
    """
    # A full disk costs the cache only. An entry that cannot be read stays, and costs every later start: jax says so.
    warnings.filterwarnings("ignore", "Error writing persistent compilation cache entry")
    present = jax.config.values["jax_compilation_cache_dir"]
    if enabled == bool(present):
        return
    try:
        path = user_cache() / "compiled"
        directory = path.resolve()
        if not enabled:
            if present == str(directory):
                jax.config.update("jax_compilation_cache_dir", None)
                compilation_cache.reset_cache()
            return
        path.mkdir(mode=0o700, exist_ok=True)
        foreign = _written_by_others(directory)
    except OSError:
        return
    if foreign is not None:
        warnings.warn(
            f"compiled programs are not cached: other users can write {foreign}, or own it; take their permissions away"
            f" by chmod go-w, or delete {path}",
            stacklevel=2,
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _written_by_others(directory: Path) -> str | None:
    """Return a path that another user may write: the directory, its parent, or an entry; None if there is none."""
    if not hasattr(os, "getuid"):
        return None
    above, status = directory.parent.stat(), directory.stat()
    if above.st_uid not in (0, os.getuid()) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
        return str(directory.parent)
    # Entries have the modes that a umask left; no other user reaches entries of a directory that is not searchable.
    modes = 0o022 if status.st_mode & 0o011 else 0
    entries = [Path(root, name) for root, folders, names in os.walk(directory) for name in (*folders, *names)]
    for path, forbidden in ((directory, 0o022), *((entry, modes) for entry in entries)):
        # Another process may delete an entry meanwhile.
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(path)
            if status.st_uid != os.getuid() or status.st_mode & forbidden:
                return str(path)
    return None


def _has_started() -> bool:
    """Return whether jax has started its backend: it then refuses to change its number of CPU devices."""
    count = jax.config.values["jax_num_cpu_devices"]
    try:
        jax.config.update("jax_num_cpu_devices", count + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", count)
    return False


def check_fused(arch: ArchConfig, devices: Iterable[jax.Device]) -> None:
    """Refuse fused networks on GPUs that do not have the shared memory for them."""
    for device in devices if arch.fused_networks else ():
        capability = getattr(device, "compute_capability", None)
        if capability is not None and not str(capability).startswith(_FUSES):
            raise ConfigError(
                f"arch.fused_networks=true does not fit into the shared memory of a {device.device_kind}, smaller"
                " than an H100's: use false"
            )
