"""Adapters for suites of environments, and their registry; a suite is imported when it is used, by its name."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, NamedTuple

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


def _suite(name: str, package: str | None = None, extra: str | None = None, **options: Any) -> Suite:
    """Return a suite whose module, package and extra have its name, unless they are given."""
    module = f"stoix_like.envs.suites.{name}"
    return Suite(module, name if package is None else package, name if extra is None else extra, **options)


_MUJOCO = ("mujoco", "mujoco-mjx")
SUITES: dict[str, Suite] = {
    "brax": _suite("brax", engines=_MUJOCO),
    "craftax": _suite("craftax"),
    "envpool": _suite("envpool", on_host=True),
    "goals": _suite("goals", "jax", "", engines=("gymnasium", *_MUJOCO)),
    "gymnasium": _suite("gymnasium", on_host=True, engines=("mujoco", "ale-py", "box2d")),
    "gymnax": _suite("gymnax", extra="envs"),
    "jaxmarl": _suite("jaxmarl"),
    "jaxtari": _suite("jaxtari"),
    "jumanji": _suite("jumanji"),
    "kinetix": _suite("kinetix", without_dependencies="kinetix-env"),
    "memory": _suite("memory", "jax", ""),
    "mjx": _suite("mjx", "mujoco", engines=("gymnasium", *_MUJOCO)),
    "navix": _suite("navix"),
    "octax": _suite("octax"),
    "pgx": _suite("pgx"),
    "playground": _suite("playground", "mujoco_playground", has_assets=True, engines=("playground", *_MUJOCO)),
    "popgym_arcade": _suite("popgym_arcade"),
    "probe": _suite("probes", "jax", ""),
    "robotics": _suite("robotics", "gymnasium_robotics", on_host=True, engines=("gymnasium", "mujoco")),
    "xminigrid": _suite("xminigrid"),
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
        ours = suite.without_dependencies or missing in (suite.package, *suite.engines)
        if not ours or missing in ("", "stoix_like"):
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
