"""The cache of compiled programs: a run like an earlier one neither traces nor lowers nor compiles anything.

jax's compile cache finds an executable by the lowered program, so Python traces and lowers first, which takes most of
what is left of a start after the imports. Here, a file named by the digest of what tracing depends on (configuration,
devices, settings of jax and XLA) lists the executables of a run, and times and sizes of the source files of all modules
that were imported: after any change to them, the run traces again. Each executable is a file of its own, named by the
digest of the lowered program, so that runs share them.

What a script, a notebook or a custom environment holds has no digest: their runs trace, and share executables only. The
files are executable code, like those of jax's cache, in whose directory they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.monitoring
from jax.experimental import serialize_executable
from jax.sharding import Mesh

from stoix_like.architectures.types import LearnerState
from stoix_like.config import RunConfig
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.own import OWN
from stoix_like.run.devices import set_compile_cache
from stoix_like.run.memory import Shapes
from stoix_like.run.population import count_members
from stoix_like.storage.config_file import flatten
from stoix_like.storage.files import read_bytes, replaced
from stoix_like.versions import versions

# Earlier ones hold executables that are not complete.
_FORMAT = 2
_MAX_BYTES = 2**30
_DIGEST_BYTES = 32
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_INSTALLED = (_PACKAGE, *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")))
_SITES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
# Keys of the configuration that no program depends on.
_HOST = ("arch.resume_from", "arch.init_from", "callbacks", "checkpoint.", "logger.")
# Commands choose this setting in different ways; how many devices there are counts.
_NUM_DEVICES = "jax_num_cpu_devices"
_VARIABLES = ("CUDA", "JAX_", "LIBTPU", "NVIDIA_", "ROCM", "TF_", "TPU_", "XLA_")
# A file that changed after it was imported would be recorded in place of what was traced.
_SECONDS_BEFORE_START = 2.0
# Functions outside of the executable that jax provides in every process; those of the host, above all, it does not.
_CUSTOM_CALL = re.compile(r'custom_call @"?([^"(\s]+)')
_KNOWN_CALLS = ("Sharding", "SPMD", "lapack_", "cu", "mhlo.", "__gpu$", "__cublas$", "__cudnn$", "TopK", "ApproxTopK")

Sources = dict[str, tuple[int, int, int]]
"""By path, when a file and its entry in the file system changed last, in nanoseconds, and its size in bytes."""


class _Compiled(threading.local):
    """Counts the executables that jax compiled in this thread, without those that it read from its own cache."""

    count = 0

    def hit(self, event: str, **_: Any) -> None:
        self.count -= event == "/jax/compilation_cache/cache_hits"

    def made(self, event: str, duration_secs: float, **_: Any) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


_compiled = _Compiled()
jax.monitoring.register_event_listener(_compiled.hit)
jax.monitoring.register_event_duration_secs_listener(_compiled.made)


class _Entry(NamedTuple):
    """What a run like an earlier one does not trace.

    Attributes:
        shapes: shapes of the arrays of one shard.
        state: shapes of the learner state.
        programs: by name, the digest of a lowered program, and the structures of its arguments and results, which it
            does not tell.
    """

    shapes: Shapes
    state: LearnerState
    programs: dict[str, tuple[str, Any, Any]]


class ProgramCache:
    """The compiled programs of a run, as far as they are in the cache.

    Args:
        directory: the directory of the cache; None caches nothing.
        settings: what compiling depends on, apart from the program.
        run: digest of what tracing depends on; None for runs that always trace.
        devices: the devices of the run.
        started: when the process started, in seconds since the epoch.
    """

    def __init__(
        self,
        directory: Path | None = None,
        settings: str = "",
        run: str | None = None,
        devices: tuple[jax.Device, ...] = (),
        started: float = 0.0,
    ) -> None:
        self._directory, self._settings, self._devices, self._started = directory, settings, devices, started
        self._path = directory / run if directory is not None and run is not None else None
        self._entry = None if self._path is None else _read_entry(self._path)
        self._loads: dict[str, Callable[[], Any]] = {}
        if self._entry is not None:
            self._loads = {name: partial(self._load, *parts) for name, parts in self._entry.programs.items()}
        self._shapes: Shapes | None = None
        self._programs: dict[str, tuple[str, Any, Any]] = {}

    def shapes(self, trace: Callable[[], Shapes]) -> Shapes:
        """Return the shapes of the arrays of one shard.

        Args:
            trace: returns them where they are not in the cache.
        """
        self._shapes = trace() if self._entry is None else self._entry.shapes
        return self._shapes

    def start_loading(self) -> None:
        """Load the programs in threads, while other parts of the run start."""
        threads = ThreadPoolExecutor(thread_name_prefix="load")
        self._loads = {name: threads.submit(load).result for name, load in self._loads.items()}
        threads.shutdown(wait=False)

    def load(self) -> tuple[dict[str, Callable[[], Any]], LearnerState | None]:
        """Return what a run like an earlier one does not trace.

        Returns:
            By name, functions that load the compiled programs, and raise an exception if they cannot; empty if the run
            has to trace. And the shapes of the learner state.
        """
        return self._loads, None if self._entry is None else self._entry.state

    @staticmethod
    def initialise_lapack() -> None:
        """Let executables for a CPU find the functions of LAPACK, which jax loads when it lowers a call of them."""
        jax.jit(jax.lax.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), "float32"))

    def compile(self, name: str, lowered: jax.stages.Lowered) -> Any:
        """Return the compiled program, from the cache if it is there.

        Args:
            name: its name.
            lowered: the lowered program.
        """
        if self._directory is None:
            return lowered.compile()
        text = lowered.as_text()
        if not all(target.startswith(_KNOWN_CALLS) for target in _CUSTOM_CALL.findall(text)):
            return lowered.compile()
        given, in_tree = jax.tree.flatten(lowered.args_info)
        # The text has the arguments that the program uses, and the executable their positions among all of them.
        places = len(given), sorted(lowered._lowering.compile_args["kept_var_idx"])
        digest = hashlib.sha256(repr((self._settings, places, text)).encode()).hexdigest()
        parts = (digest, in_tree, lowered.out_tree)
        with contextlib.suppress(Exception):  # whatever is wrong with the file
            compiled = self._load(*parts)
            self._programs[name] = parts
            return compiled
        before = _compiled.count
        compiled = lowered.compile()
        # XLA does not serialise all of an executable that it has deserialised; and jax keeps that of a lowered program.
        if _compiled.count > before:
            with contextlib.suppress(Exception):  # a full disk, or an executable of another kind
                _write(self._directory / digest, serialize_executable.serialize(compiled)[0])
                self._programs[name] = parts
        return compiled

    def write(self, names: list[str], state: LearnerState) -> None:
        """Write what the next run like this one need not trace; a full disk costs the cache only.

        Args:
            names: names of all programs.
            state: shapes of the learner state.
        """
        if self._path is None or self._shapes is None or set(names) != set(self._programs):
            return
        with contextlib.suppress(Exception):
            sources = _sources()
            if sources is None or max(max(times[:2]) for times in sources.values()) / 1e9 > self._started:
                return
            bare = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
            entry = pickle.dumps(_Entry(self._shapes, bare, self._programs))
            _write(self._path, pickle.dumps((sources, entry)))

    def _load(self, digest: str, in_tree: Any, out_tree: Any) -> Any:
        assert self._directory is not None
        executable = _read(self._directory / digest)
        client = self._devices[0].client
        return serialize_executable.deserialize_and_load(executable, in_tree, out_tree, client, self._devices)


def open_cache(
    config: RunConfig, env: VectorEnvironment, mesh: Mesh, num_processes: int, started: float
) -> ProgramCache:
    """Look for the programs of a run.

    Args:
        config: the typed configuration.
        env: the environments to train in.
        mesh: the devices.
        num_processes: number of processes of the run.
        started: when the process started, on the clock of `time.perf_counter`.

    Returns:
        The cache.
    """
    set_compile_cache(config.arch.compile_cache)
    directory = _make_directory()
    # Actors on the host have devices and callbacks of their own.
    if directory is None or not config.arch.compile_cache or env.on_host or num_processes > 1:
        return ProgramCache()
    settings, devices = f"{_FORMAT} {_settings(mesh)}", tuple(mesh.devices.flat)
    # Models in files of the user's own may change, as custom environments may.
    is_own = config.env.env_name == OWN or config.own_env is not None or config.env.assets is not None
    run = None if is_own or config.arch.profile or _sources() is None else _digest_of_run(config, settings)
    wall_started = time.time() - (time.perf_counter() - started) - _SECONDS_BEFORE_START
    return ProgramCache(directory, settings, run, devices, wall_started)


def _make_directory() -> Path | None:
    """Return the directory of the cache, which no other user may write; None if there is none."""
    place = jax.config.values["jax_compilation_cache_dir"]
    if not place or "://" in place:
        return None
    directory = Path(place) / "programs"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError:
        return None
    is_own = not hasattr(os, "getuid") or (status.st_uid == os.getuid() and status.st_mode & 0o022 == 0)
    return directory if is_own else None


def _settings(mesh: Mesh) -> str:
    """Return what compiling depends on, apart from the program."""
    devices = list(mesh.devices.flat)
    return repr(
        (
            [(device.id, device.platform, device.device_kind) for device in devices],
            (sorted(mesh.shape.items()), len(jax.devices()), devices[0].client.platform_version, *_processor()),
            sorted((key, repr(value)) for key, value in jax.config.values.items() if key != _NUM_DEVICES),
            sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES)),
            sorted(versions().items()),
        )
    )


def _processor() -> Iterator[str]:
    """Yield what executables for a CPU depend on, where Linux tells it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.isspace():
                return
            if line.startswith(("model name", "flags", "Features", "CPU ")):
                yield line


def _digest_of_run(config: RunConfig, settings: str) -> str:
    """Return the digest of what tracing depends on, apart from the sources."""
    hyperparams, members = config.arch.population.hyperparams or {}, count_members(config)
    # Hyperparameters are arguments of the programs of several members, and constants of those of a lone member, whose
    # seed may draw them.
    lone = ("arch.seed",) if not hyperparams else ()
    ignored = (*_HOST, *(("arch.seed", "arch.population.hyperparams.") if members > 1 else lone))
    pairs = sorted((key, repr(value)) for key, value in flatten(config.resolved) if not key.startswith(ignored))
    sizes = (members, sorted(hyperparams))
    depends_on = (pairs, sizes, config.logger.every_updates, config.logger.diagnostics, settings)
    return hashlib.sha256(repr(depends_on).encode()).hexdigest()


def _sources() -> Sources | None:
    """Return the files of all imported modules; None if some are neither of this package nor installed."""
    found: Sources = {}
    main = sys.modules["__main__"]  # also as `__mp_main__`
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__dict__", {}).get("__file__")
        if module is main:
            known = path is not None and (path.startswith(_PACKAGE) or Path(path).stem == "stoix-like")
        else:
            installed = path is None or path.startswith(_INSTALLED) or any(site in path for site in _SITES)
            known = installed or name.startswith("hydra_plugins.stoix_like")
        if not known:
            return None
        if path is not None:
            found[path] = _changed(path)
    return found


def _changed(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:  # of a module in an archive
        return (0, 0, 0)
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _read_entry(path: Path) -> _Entry | None:
    """Return an entry whose sources are what they were; None for any other file, which is replaced."""
    try:
        sources, entry = pickle.loads(_read(path))
        if any(_changed(file) != times for file, times in sources.items()):
            return None
        return _Entry(*pickle.loads(entry))
    except Exception:  # whatever is wrong with the file
        return None


def _read(path: Path) -> bytes:
    """Return the content of a file of the cache, which is complete and was written under this name."""
    content = read_bytes(path, _MAX_BYTES)
    if content[:_DIGEST_BYTES] != _checksum(path, content[_DIGEST_BYTES:]):
        raise ValueError(f"{path} is damaged")
    os.utime(path)  # those that were used longest ago are deleted first
    return content[_DIGEST_BYTES:]


def _write(path: Path, content: bytes) -> None:
    with replaced(path, mode=0o600) as file:
        file.write(_checksum(path, content))
        file.write(content)
    total = 0
    for other, status in sorted(_files(path.parent), key=lambda item: item[1].st_mtime, reverse=True):
        total += status.st_size
        if total > _MAX_BYTES:
            other.unlink(missing_ok=True)


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in directory.iterdir():
        with contextlib.suppress(OSError):  # another process has deleted it
            yield path, path.stat()


def _checksum(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + content).digest()
