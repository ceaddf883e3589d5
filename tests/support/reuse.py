"""What tests share within a process, so that each costs less.

Contexts of lowering, merged configuration files, and the compiled programs of runs.
"""

import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import jax
from hydra._internal import config_loader_impl as hydra_loader
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from jax._src.interpreters import mlir

# Constants stay in a context for as long as it is used.
LOWERINGS_PER_CONTEXT = 200
OWN_CONFIGS = str(Path(__file__).parents[2] / "configs")
# Keys of `arch` that no program of a run depends on; budgets count as the number of updates.
ON_HOST = (
    *("seed", "total_timesteps", "num_evaluation", "stop_at_return", "absolute_metric"),
    *("resume_from", "init_from"),
)
OWN_SOURCES = {"hydra.conf", OWN_CONFIGS, ""}

_patching_test: str | None = None


def set_test(item: Any) -> None:
    """Let a test that may patch the code of programs share them with no other test."""
    global _patching_test
    _patching_test = item.nodeid if "monkeypatch" in getattr(item, "fixturenames", ()) else None


def share_contexts() -> None:
    """Let jax lower many programs in one MLIR context: creating one takes longer than lowering one operation."""
    make: Callable[[], Any] = mlir.make_ir_context
    # Threads lower at the same time, and a context belongs to one of them.
    local = threading.local()

    def shared() -> Any:
        count = getattr(local, "count", 0)
        if count % LOWERINGS_PER_CONTEXT == 0:
            local.context = make()
        local.count = count + 1
        return local.context

    mlir.make_ir_context = shared


def share_compositions() -> None:
    """Let Hydra read each file once, and merge those of each choice of groups once.

    Overrides of values apply to copies, as always. Files outside of this repository may change, and are read each time.
    """
    create, merge = hydra_loader.create_defaults_list, hydra_loader.ConfigLoaderImpl._compose_config_from_defaults_list
    load = FileConfigSource.load_config
    loaded: dict[Hashable, Any] = {}  # by provider and path
    created: dict[Hashable, Any] = {}  # by sources and choices
    merged: dict[int, Any] = {}  # by identity of the list of defaults, which `created` keeps alive

    def load_once(source: Any, config_path: str) -> Any:
        if source.path != OWN_CONFIGS:
            return load(source, config_path)
        key = (source.provider, config_path)
        if key not in loaded:
            loaded[key] = load(source, config_path)
        return deepcopy(loaded[key])

    def create_once(repo: Any, config_name: str, overrides_list: Sequence[Any], **options: bool) -> Any:
        paths = tuple(source.path for source in repo.get_sources())
        if not {path.rpartition("://")[2] for path in paths} <= OWN_SOURCES:
            return create(repo=repo, config_name=config_name, overrides_list=overrides_list, **options)
        single = [override for override in overrides_list if not override.is_sweep_override()]
        choices = [each for each in single if repo.group_exists(each.key_or_group) and _is_choice(each)]
        key = (paths, config_name, tuple(choice.input_line for choice in choices), tuple(sorted(options.items())))
        if key not in created:
            created[key] = create(repo=repo, config_name=config_name, overrides_list=choices, **options)
            merged[id(created[key].defaults)] = None
        values = [override for override in single if override not in choices]
        return dataclasses.replace(created[key], config_overrides=values)

    def merge_once(loader: Any, defaults: list[Any], repo: Any) -> Any:
        if id(defaults) not in merged:
            return merge(loader, defaults, repo)
        if merged[id(defaults)] is None:
            merged[id(defaults)] = merge(loader, defaults, repo)
        return deepcopy(merged[id(defaults)])

    FileConfigSource.load_config = load_once
    hydra_loader.create_defaults_list = create_once
    hydra_loader.ConfigLoaderImpl._compose_config_from_defaults_list = merge_once


def _is_choice(override: Any) -> bool:
    """Whether an override of a group names a choice; a dictionary is merged as a value."""
    return not isinstance(override.value(), dict)


def share_programs() -> None:
    """Let runs that differ in what happens on the host alone, such as seed and directory, compile once."""
    from stoix_like.run import training_loop
    from stoix_like.run.compile import make_keys

    compile_run = training_loop.compile_run
    compiled: dict[str, Any] = {}

    def compile_once(setup: Any) -> Any:
        run, resolved = setup.config, setup.config.resolved
        if setup.env.on_host or run.own_env is not None or run.arch.architecture_name != "anakin":
            return compile_run(setup)
        on_host = {*ON_HOST} - ({"seed"} if run.arch.population.hyperparams else set())
        arch = {name: value for name, value in resolved["arch"].items() if name not in on_host}
        parts = [arch, *(resolved[group] for group in ("system", "network", "env")), run.logger.every_updates]
        optimized = not jax.config.read("jax_disable_most_optimizations")
        key = repr((parts, setup.plan.num_updates, setup.plan.num_shards, optimized, _patching_test))
        if key not in compiled:
            compiled[key] = compile_run(setup)
        return compiled[key]._replace(keys=make_keys(setup))

    training_loop.compile_run = compile_once
