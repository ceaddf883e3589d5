"""Accelerators to compile for, by name or by a description in a file."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import NamedTuple

from stoix_like.errors import ConfigError, nearest
from stoix_like.lab.aot.kernels import Rates


class Target(NamedTuple):
    """Devices to compile for."""

    name: str  # as the user wrote it
    title: str  # what the devices are
    platform: str  # `cuda` or `tpu`
    topology: str  # a TPU slice, such as `v5e:2x2`; of a GPU, its description: XLA's `GpuTargetConfigProto` as text
    memory: int  # of each device, in bytes; of a TPU, what the compiler leaves to programs
    num_devices: int = 1  # all devices of a slice; a run uses one GPU unless its configuration says otherwise

    @property
    def usable(self) -> int:
        """Bytes that a run can use: of the memory of a GPU, jax reserves three quarters unless it is told otherwise."""
        if self.platform == "tpu":
            return self.memory
        given = os.environ.get("XLA_CLIENT_MEM_FRACTION") or os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION") or "0.75"
        return int(float(given) * self.memory)

    @property
    def rates(self) -> Rates | None:
        """What a GPU does in a microsecond, fitted to an H100; None of a TPU: its compiler predicts all kernels."""
        if self.platform == "tpu":
            return None
        numbers = {name: float(match[1]) for name, field in _FIELDS.items() if (match := field.search(self.topology))}
        version = dict(_NUMBER.findall(_CAPABILITY.search(self.topology)[1]))  # type: ignore[index]
        capability = int(version["major"]), int(version.get("minor", 0))
        clocks = numbers["core_count"] * numbers["clock_rate_ghz"] * 1e3
        flops, exact = _FLOPS.get(capability, _FLOPS[9, 0]), 2 * numbers["fpus_per_core"]
        bandwidth = numbers["memory_bandwidth"] / 1e6
        cache = numbers["l2_cache_size"] / 2
        return Rates(0.84 * bandwidth, 1.8 * bandwidth, cache, 0.37 * clocks * flops, 0.37 * clocks * exact)


class _Gpu(NamedTuple):
    """A GPU, by the numbers that its compiler asks for."""

    title: str  # its name
    capability: tuple[int, int]  # its compute capability
    cores: int  # streaming multiprocessors
    memory: int  # in bytes
    bandwidth: int  # of the memory, in GB/s
    l2_cache: int  # in MiB
    clock: float  # in GHz
    shared_memory: int  # of a core, in KiB
    threads: int  # of a core
    fpus: int  # of a core

    def description(self) -> str:
        """Return the description of the GPU as text."""
        return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: {self.threads}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {1024 * (self.shared_memory - 1)}
  shared_memory_per_core: {1024 * self.shared_memory}
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  core_count: {self.cores}
  fpus_per_core: {self.fpus}
  clock_rate_ghz: {self.clock}
  l2_cache_size: {2**20 * self.l2_cache}
  memory_bandwidth: {10**9 * self.bandwidth}
  device_memory_size: {self.memory}
  cuda_compute_capability {{ major: {self.capability[0]} minor: {self.capability[1]} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{self.title}"
"""


_GPUS = {
    "b200": _Gpu("NVIDIA B200", (10, 0), 148, 191_514_411_008, 7672, 126, 1.965, 228, 2048, 128),
    "h200": _Gpu("NVIDIA H200", (9, 0), 132, 151_397_597_184, 4800, 50, 1.98, 228, 2048, 128),
    "h100": _Gpu("NVIDIA H100 80GB SXM", (9, 0), 132, 84_942_979_072, 3352, 50, 1.98, 228, 2048, 128),
    "a100": _Gpu("NVIDIA A100 80GB SXM", (8, 0), 108, 85_100_068_864, 2039, 40, 1.41, 164, 2048, 64),
    "a100-40": _Gpu("NVIDIA A100 40GB SXM", (8, 0), 108, 42_331_013_120, 1555, 40, 1.41, 164, 2048, 64),
    "l40s": _Gpu("NVIDIA L40S", (8, 9), 142, 47_622_258_688, 864, 96, 2.52, 100, 1536, 128),
    "l4": _Gpu("NVIDIA L4", (8, 9), 58, 23_580_639_232, 300, 48, 2.04, 100, 1536, 128),
    "rtx4090": _Gpu("NVIDIA GeForce RTX 4090", (8, 9), 128, 25_393_692_672, 1008, 72, 2.52, 100, 1536, 128),
    "rtx3090": _Gpu("NVIDIA GeForce RTX 3090", (8, 6), 82, 25_438_126_080, 936, 6, 1.695, 100, 1536, 128),
}


class _Tpu(NamedTuple):
    """A generation of TPUs."""

    title: str  # its name
    memory: int  # of a device, in bytes, for programs
    per_device: int  # what the number in the name of a slice counts per device
    dimensions: int  # of a slice
    largest: int  # devices of the largest slice


_TPUS = {
    "v5e": _Tpu("TPU v5e", 63 * 2**28, 1, 2, 256),
    # Slices of a v5p are named by their cores, two per device.
    "v5p": _Tpu("TPU v5p", 95 * 2**30, 2, 3, 4096),
    "v6e": _Tpu("TPU v6e", 125 * 2**28, 1, 2, 256),
}
_KINDS = dict.fromkeys(("gpu", "cuda"), "") | {"tpu": "; the number is the size of the slice, up to v5e-256"}
_TPU_NAME = re.compile(r"(v\d+[a-z]+)-(\d+)")
_MEMORY = re.compile(r"\bdevice_memory_size:\s*(\d+)")
_FIELDS = {
    name: re.compile(rf"\b{name}:\s*([\d.]+)")
    for name in ("memory_bandwidth", "l2_cache_size", "core_count", "fpus_per_core", "clock_rate_ghz")
}
_CAPABILITY, _NUMBER = re.compile(r"cuda_compute_capability\s*:?\s*\{([^}]*)\}"), re.compile(r"(\w+):\s*(\d+)")
# Operations per clock of a core's matrix units in TF32, by compute capability; a GeForce of 8.9 has half.
_FLOPS = {(8, 0): 1024, (8, 6): 256, (8, 9): 512, (9, 0): 2048, (10, 0): 4096}
_TITLE = re.compile(r'\bdevice_description_str:\s*"([^"]*)"')


def names() -> list[str]:
    """Return the names of the targets."""
    return [*_GPUS, *(f"{name}-{4 * tpu.per_device}" for name, tpu in _TPUS.items())]


def find_target(name: str) -> Target:
    """Return a target."""
    if name.lower() in _KINDS:
        sizes = [one for one in names() if (one in _GPUS) == (name.lower() != "tpu")]
        raise ConfigError(f"--for {name}: which one? Use {', '.join(sizes[:-1])} or {sizes[-1]}{_KINDS[name.lower()]}")
    if name in _GPUS:
        gpu = _GPUS[name]
        return Target(name, gpu.title, "cuda", gpu.description(), gpu.memory)
    match = _TPU_NAME.fullmatch(name)
    if match and match[1] in _TPUS:
        return _slice(name, match[1], int(match[2]))
    if Path(name).is_file():
        return _described(Path(name))
    raise ConfigError(
        f"--for {name} names no GPU, no slice of TPUs such as v5e-4, and no file that describes a GPU:"
        f" {nearest(name, names())}"
    )


def _slice(name: str, generation: str, size: int) -> Target:
    """Return a slice of TPUs: its sides are powers of two that differ by a factor of two at most."""
    tpu = _TPUS[generation]
    count = size // tpu.per_device
    if size % tpu.per_device or not 1 <= count <= tpu.largest or count & (count - 1):
        sizes = [f"{generation}-{tpu.per_device * devices}" for devices in (4, 8, 16, tpu.largest)]
        raise ConfigError(
            f"--for {name}: there is no slice of this size; use {', '.join(sizes[:-1])}, … or {sizes[-1]}"
        )
    # A host has four devices; a run on fewer leaves the others idle.
    power = int(math.log2(max(count, 4)))
    sides = [2 ** ((power + index) // tpu.dimensions) for index in range(tpu.dimensions)]
    if tpu.dimensions == 3 and power == 2:
        sides = [2, 2, 1]
    topology = f"{generation}:{'x'.join(map(str, sides))}"
    return Target(name, tpu.title, "tpu", topology, tpu.memory, count)


def _described(path: Path) -> Target:
    text = path.read_text(encoding="utf-8", errors="replace")
    size, title = _MEMORY.search(text), _TITLE.search(text)
    # The compiler crashes where a number is missing.
    needed = ["gpu_device_info", *re.findall(r"^  (\w+)", next(iter(_GPUS.values())).description(), re.MULTILINE)]
    missing = [field for field in needed if not re.search(rf"\b{field}\b", text)]
    if size is None or missing:
        raise ConfigError(
            f"--for {path}: not a description of a GPU, which is XLA's GpuTargetConfigProto as text: it has no"
            f" {', '.join(missing) or 'number for device_memory_size'}"
        )
    return Target(str(path), title[1] if title else path.stem, "cuda", text, int(size[1]))
