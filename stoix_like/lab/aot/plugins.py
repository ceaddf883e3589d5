"""The compilers for accelerators, which are plugins of jax."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import resource
from collections.abc import Iterator

from stoix_like.errors import MissingExtraError
from stoix_like.lab.aot.targets import Target

# Variables that keep the plugins from looking for a device or for other hosts, and from logging.
_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "JAX_PLATFORMS": "cpu",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
_PLUGINS = {
    "cuda": (("jax_plugins.xla_cuda12", "nvidia.cuda_nvcc"), "jax-cuda12-plugin", "aot-cuda12"),
    "tpu": (("libtpu",), "libtpu", "aot-tpu"),
}


def prepare(target: Target) -> None:
    """Let jax compile for a target from the CPU of this machine; before jax is imported, so that it logs nothing."""
    modules, package, extra = _PLUGINS[target.platform]
    if not all(map(_is_installed, modules)):
        # On a machine without a GPU, jax with such a plugin says at every start that it found none.
        then = "compile again, both in an environment of its own, not the one that you train in"
        raise MissingExtraError(f"--for {target.name}", package, extra, then=then)
    os.environ.update({name: value for name, value in _ENVIRONMENT.items() if name not in os.environ})
    with silence():
        import jax

    jax.config.update("jax_platforms", "cpu")
    # No process could read the programs.
    jax.config.update("jax_enable_compilation_cache", False)


def stack_note(target: Target) -> str | None:
    """Return advice where the compiler of TPUs may overflow its stack: up to libtpu 0.0.42, networks with atoms."""
    if target.platform != "tpu" or resource.getrlimit(resource.RLIMIT_STACK)[0] == resource.RLIM_INFINITY:
        return None
    installed = importlib.metadata.version("libtpu")
    if tuple(map(int, installed.split(".")[:3])) > (0, 0, 42):
        return None
    return f"libtpu {installed} may end with SIGSEGV STACK OVERFLOW: call ulimit -s unlimited before"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Drop what plugins write to standard error while they load, before they read the level of their logging."""
    if os.environ.get("HYDRA_FULL_ERROR"):
        yield
        return
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
