"""Every environment that is listed or has a YAML file can be built, reset and stepped."""

from pathlib import Path

import jax
import pytest
import yaml
from omegaconf import OmegaConf

from stoix_like.envs import make, suites
from stoix_like.envs.factory import EnvConfig
from stoix_like.envs.spaces import entries
from stoix_like.schema import from_mapping
from support import menagerie
from support.composed import compose_config

pytestmark = pytest.mark.slow
CONFIGS = Path(__file__).parents[3] / "configs" / "env"


def choices_of(suite):
    """Return the scenarios of the YAML files of a suite."""
    files = sorted(CONFIGS.glob(f"{suite}/[!_]*.yaml"))
    return {f"{suite}/{path.stem}": yaml.safe_load(path.read_text())["scenario"] for path in files}


@pytest.mark.parametrize("suite", suites.SUITES)
def test_every_choice_has_a_name_of_its_own(suite):
    """Run directories tell the choices of a suite apart by their task names."""
    names = [scenario.get("task_name", scenario["name"]) for scenario in choices_of(suite).values()]
    assert len({*names}) == len(names)


@pytest.mark.parametrize("suite", suites.SUITES)
def test_every_environment_resets_and_steps(suite):
    """Environments in JAX are traced, which takes seconds each; those on the host play a step."""
    choices = choices_of(suite)
    named = {scenario["name"] for scenario in choices.values()}
    known = suites.load_suite(suite).scenarios()
    assert named <= {*known}
    others = [[f"env={suite}", f"env.scenario.name={name}"] for name in known if name not in named]
    failures = {}
    for overrides in [[f"env={choice}"] for choice in choices] + others:
        try:
            play(overrides)
        except Exception as error:  # of suites: anything
            if "install_sprites" not in str(error):  # of games, with another licence
                failures[overrides[-1]] = f"{type(error).__name__}: {error}"
    assert failures == {}


def play(overrides):
    """Take a step, and compare what is observed with the space."""
    config = from_mapping(EnvConfig, OmegaConf.to_container(compose_config(overrides).env, resolve=True), "env")
    if robot := config.env_name == "playground" and menagerie.ROBOTS.get(config.scenario.name):
        config.assets = menagerie.models_of(robot)
    env = make(config)

    def start_and_step(key):
        keys = jax.random.split(key, env.num_agents)
        state, first = env.reset(keys)
        masks = [] if first.observation.action_mask is None else [first.observation.action_mask]
        return first, env.step(keys, state, jax.vmap(env.action_space.sample)(keys, *masks))[1]

    call = jax.jit if env.on_host else lambda function: lambda key: jax.eval_shape(function, key)
    timesteps = jax.block_until_ready(call(start_and_step)(jax.random.key(0)))
    env.check()
    env.close()
    for timestep in timesteps:
        views = entries(timestep.observation.agent_view)
        spaces = entries(env.observation_space)
        assert {name: (view.shape, view.dtype) for name, view in views.items()} == {
            name: ((env.num_agents, *space.shape), jax.dtypes.canonicalize_dtype(space.dtype))
            for name, space in spaces.items()
        }
