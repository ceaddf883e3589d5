"""Adapters for suites of environments, and their registry; a suite is imported when it is used, by its name."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple

from stoix_like.errors import ConfigError, MissingExtraError, nearest

OWN = "own"
"""The value of `env.env_name` that selects a custom environment."""


class Suite(NamedTuple):
    """A suite of environments."""

    # Import path of a module with `scenarios() -> list[str]` and `make(name, kwargs, params) -> VectorEnvironment`.
    module: str
    package: str  # the package that the module imports
    extra: str  # the extra of stoix_like that installs the package
    on_host: bool = False  # whether the environments run on the host; `make` then takes `HostOptions` as well
    # Whether `make` takes `env.assets` as well, the directory of models that are not part of the package.
    has_assets: bool = False
    # A package that the extra cannot install, because it asks for older ones than it needs.
    without_dependencies: str = ""
    # Packages, by the names that pip knows, with versions that change what the environments do.
    engines: tuple[str, ...] = ()

    @property
    def distributions(self) -> tuple[str, ...]:
        """Names of the packages that results depend on; pip may know `package` by another one."""
        return tuple(filter(None, (self.package, self.without_dependencies, *self.engines)))


SUITES: dict[str, Suite] = {
    "brax": Suite("stoix_like.envs.suites.brax", "brax", "brax", engines=("mujoco", "mujoco-mjx")),
    "craftax": Suite("stoix_like.envs.suites.craftax", "craftax", "craftax"),
    "envpool": Suite("stoix_like.envs.suites.envpool", "envpool", "envpool", on_host=True),
    "gymnasium": Suite(
        "stoix_like.envs.suites.gymnasium",
        "gymnasium",
        "gymnasium",
        on_host=True,
        engines=("mujoco", "ale-py", "box2d"),
    ),
    "gymnax": Suite("stoix_like.envs.suites.gymnax", "gymnax", "envs"),
    "jaxmarl": Suite("stoix_like.envs.suites.jaxmarl", "jaxmarl", "jaxmarl"),
    "jaxtari": Suite("stoix_like.envs.suites.jaxtari", "jaxtari", "jaxtari"),
    "jumanji": Suite("stoix_like.envs.suites.jumanji", "jumanji", "jumanji"),
    "kinetix": Suite("stoix_like.envs.suites.kinetix", "kinetix", "kinetix", without_dependencies="kinetix-env"),
    "memory": Suite("stoix_like.envs.suites.memory", "jax", ""),
    "navix": Suite("stoix_like.envs.suites.navix", "navix", "navix"),
    "octax": Suite("stoix_like.envs.suites.octax", "octax", "octax"),
    "pgx": Suite("stoix_like.envs.suites.pgx", "pgx", "pgx"),
    "playground": Suite(
        "stoix_like.envs.suites.playground",
        "mujoco_playground",
        "playground",
        has_assets=True,
        engines=("playground", "mujoco", "mujoco-mjx"),
    ),
    "popgym_arcade": Suite("stoix_like.envs.suites.popgym_arcade", "popgym_arcade", "popgym_arcade"),
    "probe": Suite("stoix_like.envs.suites.probes", "jax", ""),
    "xminigrid": Suite("stoix_like.envs.suites.xminigrid", "xminigrid", "xminigrid"),
}


# Its `make` takes an environment, or its import path, in place of a name.
_CUSTOM = Suite("stoix_like.envs.custom", "jax", "", on_host=True)


def find_suite(name: str) -> Suite:
    """Return the entry of a suite, or of custom environments."""
    if name != OWN and name not in SUITES:
        raise ConfigError(f"env.env_name={name!r} is not a suite of environments: {nearest(name, [*SUITES, OWN])}")
    return _CUSTOM if name == OWN else SUITES[name]


def load_suite(name: str, setting: str | None = None) -> ModuleType:
    """Import the adapter of a suite, or of custom environments.

    `setting`: the key and the value that ask for it, for messages; None for `env.env_name`.
    """
    suite = find_suite(name)
    try:
        return importlib.import_module(suite.module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "stoix_like") or (missing != suite.package and not suite.without_dependencies):
            raise
        then = suite.without_dependencies and f"pip install --no-deps {suite.without_dependencies}"
        raise MissingExtraError(setting or f"env.env_name={name}", missing, suite.extra, then=then) from error


def list_scenarios() -> dict[str, list[str]]:
    """List the values of `env.scenario.name`."""
    scenarios = {}
    for name in SUITES:
        try:
            scenarios[name] = load_suite(name).scenarios()
        except MissingExtraError:
            scenarios[name] = []
    return scenarios
