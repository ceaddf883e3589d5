import functools

import pytest
from hydra.core.global_hydra import GlobalHydra

from stoix_like import config as configuration
from stoix_like.config import GROUPS, compose_config, default_run_dir, expand_sweep, group_choices
from stoix_like.errors import ConfigError
from stoix_like.systems.ppo.anakin import ff_ppo

ALL_CHOICES = [(group, choice) for group in GROUPS for choice in group_choices(group)]


@pytest.mark.parametrize(("group", "choice"), ALL_CHOICES, ids=[f"{g}={c}" for g, c in ALL_CHOICES])
def test_every_yaml_composes_and_fits_its_types(group, choice):
    parse_config(compose_config([f"{group}={choice}"]))


def test_every_yaml_is_a_choice_of_a_known_group_or_the_primary():
    root = configuration.config_dir()
    for path in root.rglob("*.yaml"):
        top = path.relative_to(root).parts[0]
        assert top in (*GROUPS, "experiment", "config.yaml"), path


def test_counts_may_be_written_as_powers_of_ten():
    run = parse_config(compose_config(["arch.total_timesteps=2e6", "system.rollout_length=1e1"]))
    assert run.arch.total_timesteps == 2_000_000
    assert run.system.rollout_length == 10


def test_the_composed_configuration_is_not_changed():
    composed = compose_config([])
    before = composed.copy()
    parse_config(composed)
    assert composed == before


def test_default_run_dir_follows_the_primary_configuration():
    path = default_run_dir(compose_config(["env=gymnax/acrobot", "arch.seed=7"]))
    assert path.parts[:4] == ("runs", "ppo", "ff_ppo", "Acrobot-v1")
    assert path.name.endswith("-seed7")


def test_scenario_by_name_names_the_task():
    run = parse_config(compose_config(["env=gymnax", "env.scenario.name=Acrobot-v1"]))
    assert run.env.scenario.task_name == "Acrobot-v1"


def test_sweeps_are_expanded_to_be_checked(monkeypatch):
    assert list(expand_sweep(["a=1,2", "b=3", "c=x,y"])) == [
        ["a=1", "b=3", "c=x"],
        ["a=1", "b=3", "c=y"],
        ["a=2", "b=3", "c=x"],
        ["a=2", "b=3", "c=y"],
    ]
    assert list(expand_sweep(["system.clip_eps=interval(0.1,0.3)"])) == [["system.clip_eps=0.1"]]
    assert list(expand_sweep(["env=glob(probe/v*)"])) == [["env=probe/value"]]
    monkeypatch.setattr(configuration, "MAX_CHECKED", 3)
    assert list(expand_sweep(["a=1,2", "c=x,y"])) == [["a=1", "c=x"], ["a=2", "c=x"], ["a=1", "c=y"]]
    assert list(expand_sweep(["a=range(1,4)"])) == [["a=1"], ["a=2"], ["a=3"]]
    assert list(expand_sweep(["a=[1,2]"])) == [["a=[1,2]"]]


def test_composing_leaves_a_running_hydra_alone():
    with configuration._hydra():
        outer = GlobalHydra.instance().hydra
        compose_config([])
        assert GlobalHydra.instance().hydra is outer
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["system=ppo/ff_pp"], "system=ppo/ff_pp is not known: did you mean 'ppo/ff_ppo'"),
        (["env=gymnax/cartpol"], "env=gymnax/cartpol is not known: did you mean 'gymnax/cartpole'"),
        (["network=mpl"], "network=mpl is not known: did you mean 'mlp'"),
        (["+experiment=nothing"], "experiment=nothing is not known"),
        (["system.gama=1"], "unknown key 'system.gama': did you mean 'system.gamma'"),
        (["foo.bar=1"], "unknown key 'foo.bar'"),
        (["env.params.gravity=1"], r"write \+env.params.gravity"),
        (["network=null"], "network"),
        (["nonsense"], "an override is written key=value"),
    ],
)
def test_what_cannot_be_composed(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose_config(overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+system.foo=1"], "unknown key 'system.foo'"),
        (["+extra=1"], "unknown key 'extra'"),
        (["system.gamma=${arch.nothing}"], "cannot be resolved"),
        (["system.gamma=???"], "cannot be resolved"),
        (["system.module=os"], "system.module=os cannot be used"),
        (["system.module=no.such.module"], "system.module=no.such.module cannot be used"),
        (["~network"], "no group 'network'"),
    ],
)
def test_what_cannot_be_typed(overrides, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(compose_config(overrides))


def test_a_directory_of_ones_own_joins_the_choices(tmp_path):
    own = tmp_path / "it's (mine)"
    (own / "env").mkdir(parents=True)
    (own / "env/short.yaml").write_text(
        "defaults: [gymnax/cartpole@_here_, _self_]\nparams: {max_steps_in_episode: 50}\n"
    )
    assert "short" in group_choices("env", [own])
    run = parse_config(compose_config(["env=short"], [own]))
    assert run.env.params == {"max_steps_in_episode": 50}
    with pytest.raises(ConfigError, match="env=shrt is not known: did you mean 'short'"):
        compose_config(["env=shrt"], [own])


@pytest.mark.parametrize(
    "build", [lambda config, spec: None, functools.partial(lambda config, spec, extra: None, extra=1)]
)
def test_a_build_that_does_not_name_its_hyperparameters(build):
    with pytest.raises(ConfigError, match="must be a subclass of"):
        parse_config(compose_config([]), build)


def test_a_variant_may_be_a_partial():
    run = parse_config(compose_config([]), functools.partial(ff_ppo.build))
    assert isinstance(run.system, ff_ppo.Config)
