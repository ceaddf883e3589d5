import functools

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from stoix_like import composition
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.systems.ppo.anakin import ff_ppo
from support.composed import compose_config
from support.set_ups import config_of


def test_parsing_does_not_change_the_composed_configuration():
    composed = compose_config([])
    before = composed.copy()
    parse_config(composed)
    assert composed == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+system.foo=1"], "unknown key 'system.foo'"),
        (["+extra=1"], "unknown key 'extra'"),
        (["system.gamma=${arch.nothing}"], "cannot resolve the configuration"),
        (["system.gamma=???"], "cannot resolve the configuration"),
        (["system.module=os"], "system.module=os is not a system"),
        (["system.module=no.such.module"], "system.module=no.such.module is not a system"),
        (["~network"], "no group 'network'"),
        (["arch.matmul_precision=exact"], "arch.matmul_precision"),
        (["arch.architecture_name={a: 1}"], r"arch.architecture_name=\{'a': 1\} is not known: choose from"),
    ],
)
def test_configurations_that_do_not_match_their_types_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        config_of(*overrides)


def test_numbers_that_are_written_as_strings_are_recorded_as_numbers():
    given = ["arch.total_timesteps='1e5'", "system.gamma='0.5'", "logger.wandb.name='1e3'", "env.time_limit='30'"]
    run = config_of(*given, "arch.population.pbt.every_evals='2'")
    numbers = run.arch.total_timesteps, run.system.gamma, run.env.time_limit, run.arch.population.pbt.every_evals
    recorded = run.resolved["arch"], run.resolved["system"], run.resolved["env"]
    found = [recorded[0]["total_timesteps"], recorded[1]["gamma"], recorded[2]["time_limit"]]
    assert [*found, recorded[0]["population"]["pbt"]["every_evals"]] == [*numbers] == [100_000, 0.5, 30, 2]
    assert run.resolved["logger"]["wandb"]["name"] == "1e3"
    assert parse_config(OmegaConf.create(run.resolved)).resolved == run.resolved


def test_a_key_that_an_experiment_has_for_another_system_names_both():
    # The experiment is of SAC; TD3 has no temperature.
    given = ["+experiment=sac_pendulum", "system=ddpg/ff_td3"]
    said = "^unknown key 'system.alpha_lr' of system=ddpg/ff_td3: if experiment=sac_pendulum sets it for another system"
    with pytest.raises(ConfigError, match=f"{said}, leave it out with '~system.alpha_lr', or choose that system$"):
        parse_config(composition.compose_config(given, return_hydra_config=True))
    parse_config(composition.compose_config([*given, "~system.alpha_lr"], return_hydra_config=True))
    # Keys of a search are not those of the experiment.
    given = ["+experiment=ppo_cartpole", "+search=fast", "system=ppo/ff_ppo"]
    with pytest.raises(ConfigError, match="^unknown key 'system.num_simulations'(?!.*experiment)"):
        parse_config(composition.compose_config(given, return_hydra_config=True))


def test_a_value_that_refers_to_a_job_is_refused_without_one(monkeypatch):
    # Hydra keeps that of a command which ran before.
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
    with pytest.raises(ConfigError, match="^logger.wandb.group refers to Hydra's job, which only stoix-like train and"):
        config_of("logger.wandb.group=${hydra:job.name}")


OmegaConf.register_new_resolver("twice", lambda value: 2 * value, replace=True)
OmegaConf.register_new_resolver("whole", lambda value: int(1e4 * value), replace=True)
VARIED = "arch.population.hyperparams={ent_coef: [0.1, 0.2], actor_lr: [1e-3, 1e-2]}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["system.critic_lr=${system.actor_lr}"],
            r"system.critic_lr=\$\{system.actor_lr\} would not follow .*actor_lr,",
        ),
        (["system.critic_lr='${twice:${system.actor_lr}}'"], "system.critic_lr=.* would not follow system.actor_lr,"),
        (["system.gamma=${system.vf_coef}", "system.vf_coef=${system.ent_coef}"], "not follow system.ent_coef, which"),
        (["+callbacks=[{rates: [1, '${system.ent_coef}']}]"], r"callbacks.0.rates.1=\$\{system.ent_coef\} would not"),
    ],
)
def test_what_would_not_follow_a_hyperparameter_that_varies_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        config_of(*overrides, VARIED)


@pytest.mark.parametrize(
    "overrides",
    [
        ["system.critic_lr=${system.actor_lr}"],
        ["system.actor_lr=${system.critic_lr}", VARIED],
        # Both vary, by lists of their own.
        ["system.ent_coef=${system.actor_lr}", VARIED],
        ["arch.population.hyperparams={actor_lr: ['${system.actor_lr}', 1e-2]}"],
        ["+env.kwargs.limit=nan", "logger.wandb.project='lr ${system.actor_lr}'", VARIED],
        ["system.name='lr ${system.actor_lr}'", VARIED],
    ],
)
def test_values_may_depend_on_what_all_members_share(overrides):
    config_of(*overrides)


@pytest.mark.parametrize(
    "build", [lambda config, spec: None, functools.partial(lambda config, spec, extra: None, extra=1)]
)
def test_a_build_without_an_annotated_config_is_refused(build):
    with pytest.raises(ConfigError, match="with a subclass of"):
        parse_config(compose_config([]), build)


def test_a_build_whose_annotations_cannot_be_evaluated_is_refused():
    def build(config: ff_ppo.Config, spec: "EnvSpec") -> None:  # noqa: F821
        del config, spec

    with pytest.raises(ConfigError, match=r"build cannot be evaluated \(name 'EnvSpec' is not defined\): import"):
        parse_config(compose_config([]), build)


def test_build_may_be_a_partial():
    run = parse_config(compose_config([]), functools.partial(ff_ppo.build))
    assert isinstance(run.system, ff_ppo.Config)


def test_a_network_of_ones_own_extends_a_preset_and_replaces_a_block(tmp_path):
    (tmp_path / "network").mkdir()
    (tmp_path / "network/mine.yaml").write_text(
        "defaults: [mlp, _self_]\n"
        "actor_network:\n"
        "  pre_torso:\n"
        "    _replace_:\n"
        "      _target_: stoix_like.networks.torso.NoisyMLPTorso\n"
        "      layer_sizes: [8]\n"
        "critic_network: {pre_torso: {layer_sizes: [16]}}\n"
    )
    run = parse_config(composition.compose_config(["network=mine"], [tmp_path]))
    preset = config_of("network=mlp").network
    # Replaced as a whole: the activation of the preset is gone.
    assert run.network["actor_network"]["pre_torso"] == {
        "_target_": "stoix_like.networks.torso.NoisyMLPTorso",
        "layer_sizes": [8],
    }
    assert run.network["actor_network"]["action_head"] == preset["actor_network"]["action_head"]
    assert run.network["critic_network"]["pre_torso"] == preset["critic_network"]["pre_torso"] | {"layer_sizes": [16]}
    assert run.resolved["network"] == run.network | {"share": True}
    with pytest.raises(ConfigError, match="network.actor_network._replace_=3 must be a mapping"):
        config_of("+network.actor_network._replace_=3")


def test_physics_computes_in_full_precision_unless_told_otherwise():
    physics = config_of("env=brax/ant")
    assert physics.matmul_precision == "highest"
    assert config_of("env=brax/ant", "arch.matmul_precision=default").matmul_precision == "default"
    assert config_of("env=gymnax/cartpole").matmul_precision is None
    # The key itself stays as it was given, so that runs from before it was introduced can be resumed.
    assert physics.resolved["arch"]["matmul_precision"] is None
