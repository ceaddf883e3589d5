"""Processes, tiny runs and comparisons of the soak test."""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import importlib
import json
import os
import pkgutil
import random
import resource
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tiny_data import offline, write_random

if TYPE_CHECKING:
    from omegaconf import DictConfig

ROOT = Path(__file__).resolve().parents[2]
# The only fields of a record that differ between two equal runs.
TIMES = ("wall_seconds", "steps_per_second")
REFUSED = 2
TIMEOUT = 240.0  # seconds of wall time of one process, on a busy machine
MAX_ERROR_LINES = 20
COMMON = (
    "logger=silent",
    "arch.total_num_envs=2",
    "arch.total_timesteps=704",
    "arch.num_evaluation=10",
    "arch.num_eval_episodes=2",
    "arch.max_eval_steps=20",
    "arch.absolute_metric=false",
    "checkpoint.keep=3",
)
COMPILED = ("arch.num_devices=1",)
ON_HOST = ("arch=sebulba", "env.vectorization=sync")
# Of a system, those that it has.
SIZES = {
    "rollout_length": 4,
    "epochs": 1,
    "num_minibatches": 1,
    "warmup_steps": 16,
    "total_buffer_size": 64,
    "total_batch_size": 8,
    "burn_in_length": 4,
    "sequence_length": 4,
    "sequence_period": 4,
    "latent_period": 2,
    "online_sequences": 2,
    "train_ratio": 4,
    "imagination_length": 2,
    "unroll_steps": 3,
    "n_step": 2,
    "num_simulations": 4,
    "horizon": 4,
    "iterations": 2,
    "num_samples": 8,
    "num_policy_samples": 2,
    "num_elites": 4,
}
# Sebulba has no warm-up: its first rollout holds a batch.
HOST_SIZES = {**SIZES, "warmup_steps": 0, "rollout_length": 32, "total_buffer_size": 128}
# Programs compile quickly and are kept for every later process.
ENVIRONMENT = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache" / "soak"),
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_ENABLE_COMPILATION_CACHE": "1",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_PLATFORMS": "cpu",
}
_COMPOSING = threading.Lock()

Event = tuple[float, str, Callable[[int], Any]]
"""Seconds after the start of a process, a description, and what then happens to its process id."""


class Done(NamedTuple):
    """A process that ended: its exit code, its output, its duration, and whether it was killed as a hang."""

    code: int
    out: str
    err: str
    seconds: float
    hung: bool = False


class Outcome(NamedTuple):
    """The result of one try: what was tried, the problems that were found, and how to see them again."""

    what: str
    problems: list[str]
    commands: list[str]


class Worker:
    """A process that has imported everything, and forks one child per job; the import alone takes seconds."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "scripts/soak"), os.environ.get("PYTHONPATH", "")])
        environment = {**ENVIRONMENT, **os.environ, "PYTHONPATH": path}
        # Unbuffered, so that `select` sees every answer.
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
        )

    def run(self, job: dict[str, Any], events: Sequence[Event] = (), timeout: float = TIMEOUT) -> Done:
        """Run a job in a child of its own; act on it at the given moments, and kill it at the end of `timeout`."""
        pipes, directory = self._process, Path(job["cwd"])
        pipes.stdin.write(json.dumps(job).encode() + b"\n")
        pid, start, hung = int(pipes.stdout.readline()), time.monotonic(), False
        for moment, _, act in sorted([*events, (timeout, "", None)], key=lambda event: event[0]):
            if select.select([pipes.stdout], [], [], max(0.0, start + moment - time.monotonic()))[0]:
                break
            hung = act is None
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                (act or kill)(pid)
        code = int(pipes.stdout.readline())
        out, err = ((directory / name).read_text(errors="replace") for name in ("out", "err"))
        return Done(code, out, err, time.monotonic() - start, hung)

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


def kill(pid: int) -> None:
    """Kill a process."""
    os.kill(pid, signal.SIGKILL)


def serve() -> None:
    """Fork a child for each job on standard input; answer with its process id and its exit code."""
    _preload()
    while line := os.read(0, 2**20):
        job = json.loads(line)
        pid = os.fork()
        if not pid:
            _be_child(job)
            return
        os.write(1, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _preload() -> None:
    """Import what a run imports, except gymnax: it starts jax's threads, which do not survive a fork."""
    for package in ("stoix_like.systems", "stoix_like.run", "stoix_like.inference", "stoix_like.lab.tuning"):
        root = importlib.import_module(package)
        for module in pkgutil.walk_packages(root.__path__, f"{package}."):
            importlib.import_module(module.name)
    for module in ("stoix_like.cli", "stoix_like.envs.suites.probes", "stoix_like.networks.heads"):
        importlib.import_module(module)


def _be_child(job: dict[str, Any]) -> None:
    os.chdir(job["cwd"])
    for number, name in ((0, os.devnull), (1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    for name, value in job.get("limits", {}).items():
        limit = value + _virtual_memory() if name == "RLIMIT_AS" else value
        kind = getattr(resource, name)
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    sys.argv = ["stoix-like", *job["arguments"]]
    module, function = job["call"].split(":")
    # A command reads `sys.argv`, and owns the process, as for users.
    arguments = () if function == "main" else (job["arguments"],)
    getattr(importlib.import_module(module), function)(*arguments)


def _virtual_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class Bench:
    """Tools of a try: a worker, directories, and uninterrupted runs to compare with.

    Args:
        worker: runs the processes.
        scratch: an empty directory of the try.
        references: uninterrupted runs, shared by all tries.
        seed: of all tries.
    """

    def __init__(self, worker: Worker, scratch: Path, references: References, seed: int) -> None:
        self.worker, self.scratch, self.seed, self._references = worker, scratch, seed, references
        self.commands: list[str] = []

    def cli(self, *arguments: object, events: Sequence[Event] = (), **limits: int) -> Done:
        """Run `stoix-like`; record the command line and what happened to it."""
        words = [str(argument) for argument in arguments]
        notes = [f"{what} after {moment:.2f} s" for moment, what, _ in events]
        notes += [f"{name}={value}" for name, value in limits.items()]
        self.commands.append(shlex.join(["stoix-like", *words]) + (f"  # {', '.join(notes)}" if notes else ""))
        return self.call("stoix_like.cli:main", words, events, **limits)

    def call(self, function: str, arguments: list[str], events: Sequence[Event] = (), **limits: int) -> Done:
        """Run a function in a child."""
        job = {"call": function, "arguments": arguments, "cwd": str(self.scratch), "limits": limits}
        return self.worker.run(job, events)

    def digest(self, run_dir: Path) -> dict[str, Any]:
        """Return the metrics of a run, and hashes of the arrays of its newest checkpoint."""
        done = self.call("tiny_runs:print_digest", [str(run_dir)])
        return json.loads(done.out) if done.code == 0 else {"unreadable": done.err[-500:]}

    def reference(self, system: str) -> Reference:
        """Return an uninterrupted run of a system."""
        return self.measured(system, lambda run_dir: train_command(run_dir, overrides(system)), self.digest)

    def measured(
        self, name: str, command: Callable[[Path], list[str]], digest: Callable[[Path], dict[str, Any]]
    ) -> Reference:
        """Return what a command leaves in a directory without interruption; run it at the first use of its name."""
        return self._references.once(name, lambda: self._references.measure(self, name, command, digest))

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what is the same for all tries; compute it at its first use."""
        return self._references.once(name, compute)

    def in_turn(self, items: Sequence[Any], index: int) -> Any:
        """Return the item of a try: tries take all items in turn, in an order that the seed determines."""
        return random.Random(self.seed).sample(items, len(items))[index % len(items)]

    def same_end(self, run_dir: Path, reference: Reference) -> list[str]:
        """Compare the end of a run with that of an uninterrupted one; return the differences."""
        return differences(self.digest(run_dir), reference)

    def unfinished(self, system: str) -> Path:
        """Return a copy of a run as it was before its last interval: two older checkpoints, and no summary."""
        reference = self.reference(system)
        run_dir = Path(shutil.copytree(reference.run_dir, self.scratch / "run"))
        (run_dir / "summary.json").unlink()
        newest = max((run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name))
        shutil.rmtree(newest)
        self.commands.append(f"stoix-like {shlex.join(train_command(run_dir, overrides(system)))}")
        self.commands.append(f"rm -r {run_dir}/summary.json {newest}")
        return run_dir


class Reference(NamedTuple):
    """An uninterrupted run: its directory, its seconds with compiled programs at hand, and its digest."""

    run_dir: Path
    seconds: float
    digest: dict[str, Any]


class References:
    """Uninterrupted runs of systems, each trained twice if it had to compile, so that a quick one is measured."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._found: dict[str, Any] = {}
        self._locks: collections.defaultdict[str, threading.Lock] = collections.defaultdict(threading.Lock)

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return the value of a name; compute it at its first use, while others wait."""
        with self._locks[name]:
            if name not in self._found:
                self._found[name] = compute()
        return self._found[name]

    def measure(
        self,
        bench: Bench,
        name: str,
        command: Callable[[Path], list[str]],
        digest: Callable[[Path], dict[str, Any]],
    ) -> Reference:
        """Run a command without interruption, see `Bench.measured`."""
        digests: list[dict[str, Any]] = []
        for number in range(2):
            run_dir = self.directory / f"{name.replace('/', '-')}-{number}"
            cached = _cached_programs()
            done = bench.call("stoix_like.cli:main", command(run_dir))
            compiled = _cached_programs() != cached
            if done.code:
                raise RuntimeError(f"{name} does not train: {done.err[-2000:]}")
            digests.append(digest(run_dir))
            found = Reference(run_dir, done.seconds, digests[-1])
            if not compiled:
                break
        if digests[0] != digests[-1]:
            raise RuntimeError(f"{name}: two uninterrupted runs differ")
        return found


def _cached_programs() -> int:
    directory = Path({**ENVIRONMENT, **os.environ}["JAX_COMPILATION_CACHE_DIR"])
    return len(list(directory.iterdir())) if directory.is_dir() else 0


def overrides(system: str, on_host: bool = False) -> tuple[str, ...]:
    """Return the overrides of a tiny run; `on_host`: of Sebulba, in an environment of the host."""
    from stoix_like.config import parse_config
    from stoix_like.envs import Discrete
    from stoix_like.envs.spaces import fits

    config = composed(f"system={system}")
    parsed = parse_config(config).system
    discrete = fits(parsed, Discrete(2))
    if on_host:
        env, own, sizes = f"gymnasium/{'cartpole' if discrete else 'pendulum'}", ON_HOST, HOST_SIZES
    else:
        probe = f"probe/{'policy' if discrete else 'continuous_policy'}"
        env, own, sizes = "goals/point_maze" if parsed.needs_goals else probe, COMPILED, SIZES
    given = (f"system.{name}={size}" for name, size in sizes.items() if name in config.system)
    words = (f"system={system}", f"env={env}", *COMMON, *own, *given)
    return (*words, "arch=offline", f"system.data={random_data(words[:2])}") if offline(system) else words


def random_data(words: tuple[str, ...]) -> Path:
    """Return the file of random steps of an environment, the same in all tries; `words` name the system and it."""
    with _COMPOSING:
        return _write_once(words)


@functools.cache
def _write_once(words: tuple[str, ...]) -> Path:
    path = Path(tempfile.mkdtemp(prefix="soak-data-"), "random.npz")
    write_random(path, words)
    return path


def composed(*words: str) -> DictConfig:
    """Compose a configuration; Hydra's state is global, and tries run in threads."""
    from stoix_like.composition import compose_config

    with _COMPOSING:
        return compose_config(words)


def train_command(run_dir: Path, words: Sequence[str]) -> list[str]:
    """Return the arguments that train in a directory."""
    return ["train", *words, f"hydra.run.dir={run_dir}"]


def differences(found: dict[str, Any], reference: Reference) -> list[str]:
    """Return which entries of a digest differ from those of an uninterrupted run."""
    names = {name for name in (*found, *reference.digest) if found.get(name) != reference.digest.get(name)}
    return [f"DIFFERENCE: {', '.join(sorted(names)[:5])} differ from the uninterrupted run"] if names else []


def systems() -> list[str]:
    """List the systems."""
    from stoix_like.composition import group_choices

    return group_choices("system")


def complaints(done: Done, allowed: Sequence[int] = (0, REFUSED)) -> list[str]:
    """Return what is wrong with the end of a process, whatever it was to do."""
    lines = done.err.strip().splitlines()
    last = lines[-1][:300] if lines else ""
    if done.hung:
        return [f"HANG: still running after {done.seconds:.0f} s"]
    if "Traceback" in done.err:
        return [f"TRACEBACK (exit {done.code}): {last}"]
    if done.code not in allowed:
        return [f"EXIT {done.code}: {last}"]
    if done.code == REFUSED and not last.startswith("stoix-like: "):
        return [f"exit 2 without its line: {last}"]
    return [f"{len(lines)} lines on standard error"] if len(lines) > MAX_ERROR_LINES else []


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Return the records of a run, without times."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMES} for line in lines]


def print_digest(arguments: list[str]) -> None:
    """Print the metrics of a run, and hashes of every array of its newest checkpoint, as JSON."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    run_dir = Path(arguments[0])
    digest: dict[str, Any] = {f"metrics.{number}": record for number, record in enumerate(records(run_dir))}
    kept = sorted(int(path.name) for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit())
    newest = run_dir / "checkpoints" / str(kept[-1])
    items = [path.name for path in newest.iterdir() if path.is_dir() and path.name != "host_state"]
    with ocp.CheckpointManager(newest.parent, options=ocp.CheckpointManagerOptions(read_only=True)) as manager:
        wanted = ocp.args.Composite(**{name: ocp.args.StandardRestore() for name in items})
        leaves = jax.tree_util.tree_leaves_with_path(dict(manager.restore(kept[-1], args=wanted).items()))
    for path, leaf in leaves:
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        described = f"{array.dtype}{array.shape}".encode()
        digest[jax.tree_util.keystr(path)] = hashlib.sha256(described + array.tobytes()).hexdigest()[:16]
    print(json.dumps({"checkpoint": kept[-1], **digest}))


if __name__ == "__main__":
    serve()
