import re
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
NUM_ENVS = 2
CONFIGS = Path(__file__).parents[3] / "configs" / "env"


def choices_of(suite):
    files = sorted(CONFIGS.glob(f"{suite}/[!_]*.yaml"))
    return {f"{suite}/{path.stem}": yaml.safe_load(path.read_text())["scenario"] for path in files}


@pytest.mark.parametrize("suite", suites.SUITES)
def test_every_choice_has_a_name_of_its_own(suite):
    names = [scenario.get("task_name", scenario["name"]) for scenario in choices_of(suite).values()]
    assert len({*names}) == len(names)


def sampled(suite, known):
    """Return the scenarios to try: all, but of envpool one of each class: its 1,576 take most of an hour."""
    if suite != "envpool":
        return known
    from envpool.registration import registry

    return list({registry.specs[name][:2]: name for name in known}.values())


@pytest.mark.filterwarnings("ignore:.*is out of date")  # of gymnasium's older versions
@pytest.mark.parametrize("suite", suites.SUITES)
def test_every_environment_resets_and_steps(suite):
    choices = choices_of(suite)
    named = {scenario["name"] for scenario in choices.values()}
    known = suites.list_scenarios()[suite]  # with all suites imported: one of them may register ids in another
    assert named <= {*known}
    others = [[f"env={suite}", f"env.scenario.name={name}"] for name in sampled(suite, known) if name not in named]
    failures = {}
    for overrides in [[f"env={choice}"] for choice in choices] + others:
        try:
            play(overrides)
        except Exception as error:  # of suites: anything
            # Sprites of games and models of robots have other licences, and Qt is a library of the system.
            if not re.search("install_sprites|mujoco_menagerie|system Qt 5", str(error)):
                failures[overrides[-1]] = f"{type(error).__name__}: {error}"
    assert failures == {}


def play(overrides):
    config = from_mapping(EnvConfig, OmegaConf.to_container(compose_config(overrides).env, resolve=True), "env")
    if robot := config.env_name == "playground" and menagerie.ROBOTS.get(config.scenario.name):
        config.assets = menagerie.models_of(robot)
    env = make(config)
    rows = NUM_ENVS * env.num_agents

    def act(key, mask):
        return jax.vmap(env.action_space.sample)(jax.random.split(key, rows), *[mask] * (mask is not None))

    def start_and_step(key):
        keys = jax.random.split(key, rows)
        state, first = env.reset(keys)
        return first, env.step(keys, state, act(key, first.observation.action_mask))[1]

    key = jax.random.key(0)
    for timestep in jax.eval_shape(start_and_step, key):
        views, spaces = entries(timestep.observation.agent_view), entries(env.observation_space)
        assert {name: (view.shape, view.dtype) for name, view in views.items()} == {
            name: ((rows, *space.shape), jax.dtypes.canonicalize_dtype(space.dtype)) for name, space in spaces.items()
        }
    if env.on_host:
        batch, host = env.unwrapped.open(NUM_ENVS), env.unwrapped
        batch.reset(host.seeds(jax.random.split(key, NUM_ENVS)))
        batch.step(jax.vmap(host.action_space.sample)(jax.random.split(key, NUM_ENVS)))
        env.close()
