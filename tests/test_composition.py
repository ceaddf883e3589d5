import re

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from stoix_like import composition
from stoix_like.composition import complete_overrides, compose_config, expand_sweep, group_choices, override_config
from stoix_like.config import GROUPS, flatten, parse_config
from stoix_like.envs import factory
from stoix_like.errors import ConfigError
from stoix_like.foreign_keys import tables
from support import composed, toys
from support.selections import first

ALL_CHOICES = [(group, choice) for group in (*GROUPS, "+experiment") for choice in group_choices(group.strip("+"))]


@pytest.mark.slow
@pytest.mark.parametrize(("group", "choice"), ALL_CHOICES, ids=[f"{g}={c}" for g, c in ALL_CHOICES])
def test_every_choice_composes_and_matches_its_types(group, choice):
    offline = ["system=offline/bc", "system.data=data.npz"] if choice == "offline" else []
    parse_config(compose_config([f"{group}={choice}", *offline]))


@pytest.mark.slow
@pytest.mark.parametrize("choice", group_choices("experiment"))
def test_every_value_of_an_experiment_is_composed(choice):
    """A value of `???` never replaces another one."""
    own = OmegaConf.to_container(OmegaConf.load(composition.config_dir() / f"experiment/{choice}.yaml"))
    found = dict(flatten(OmegaConf.to_container(compose_config([f"+experiment={choice}"]))))
    values = {key: value for key, value in flatten(own) if not key.startswith("defaults")}
    assert values == {key: found.get(key) for key in values}


def test_no_file_has_a_value_to_be_given():
    assert not [path for path in composition.config_dir().rglob("*.yaml") if ": ???" in path.read_text()]


VALUES = ["network.actor_network.pre_torso.layer_sizes=[8]", "arch.total_num_envs=4", "env.time_limit=30"]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        VALUES,
        ["env=gymnax/pendulum", "arch.population.hyperparams={gamma: [0.9, 0.99]}", "logger=silent", *VALUES],
        [*toys.overrides(nan_at=5), "env=probe/value", "+system.more=1", *VALUES],
        ["experiment=ppo_acrobot", "logger=silent", "system.gamma=0.5"],
        ["env._target_=support.custom_envs.Corridor", "+env.kwargs.size=3", "arch.seed=1"],
    ],
    ids=" ".join,
)
def test_tests_join_parts_to_what_is_composed(overrides):
    try:
        expected = compose_config(overrides)
    except ConfigError as error:
        with pytest.raises(ConfigError, match=re.escape(str(error))):
            composed.compose_config(overrides)
    else:
        assert composed.compose_config(overrides) == expected


@pytest.mark.slow
@pytest.mark.parametrize("system", ["search/ff_az", "search/ff_sampled_az", "search/ff_mz", "search/ff_sampled_mz"])
def test_every_length_of_a_search_fits_the_systems_that_search(system):
    for choice in group_choices("search"):
        config = parse_config(compose_config([f"system={system}", f"+search={choice}"])).system
        config.check(config.rollout_length, 1)
        assert config.search.num_simulations == config.search.evaluation_simulations


def test_the_default_run_directory_follows_the_primary_configuration():
    path = composition.default_run_dir(compose_config(["env=gymnax/acrobot", "arch.seed=7"]))
    assert path.parts[:4] == ("runs", "ppo", "ff_ppo", "Acrobot-v1")
    assert path.name.endswith("-seed7")


def test_sweeps_expand_to_the_combinations_to_check(monkeypatch):
    assert list(expand_sweep(["a=1,2", "b=3", "c=x,y"])) == [
        ["a=1", "b=3", "c=x"],
        ["a=1", "b=3", "c=y"],
        ["a=2", "b=3", "c=x"],
        ["a=2", "b=3", "c=y"],
    ]
    assert list(expand_sweep(["system.clip_eps=interval(0.1,0.3)"])) == [["system.clip_eps=0.1"]]
    assert list(expand_sweep(["env=glob(probe/v*)"])) == [["env=probe/value"]]
    with pytest.raises(ConfigError, match=r"^arch.seed=range\(5,5\) has no values"):
        list(expand_sweep(["arch.seed=range(5,5)"]))
    monkeypatch.setattr(composition, "MAX_CHECKED", 3)
    assert list(expand_sweep(["a=1,2", "c=x,y"])) == [["a=1", "c=x"], ["a=2", "c=x"], ["a=1", "c=y"]]
    assert list(expand_sweep(["a=range(1,4)"])) == [["a=1"], ["a=2"], ["a=3"]]
    assert list(expand_sweep(["a=[1,2]"])) == [["a=[1,2]"]]


def test_globs_are_the_choices_of_a_group_at_any_depth(tmp_path):
    systems = composition.resolve_globs(["system=glob(vpg/*)", "arch.seed=0,1", "system.gamma=0.9"])
    assert systems == ["system=vpg/ff_a2c,vpg/ff_reinforce", "arch.seed=0,1", "system.gamma=0.9"]
    (archs,) = composition.resolve_globs(["arch=glob(*)"])
    assert archs == "arch=anakin,offline,sebulba"
    (tmp_path / "system").mkdir()
    (tmp_path / "system/vpg_mine.yaml").write_text("")
    found = composition.resolve_globs(["system=glob(*vpg*)", f"hydra.searchpath=[file://{tmp_path}]"])
    assert found[0] == "system=vpg/ff_a2c,vpg/ff_reinforce,vpg_mine"
    with pytest.raises(ConfigError, match=r"^network=glob\(zzz\*\) matches no choice of network"):
        composition.resolve_globs(["network=glob(zzz*)"])


def test_ids_of_gymnasium_are_completed_in_lists_and_quotes():
    expected = ["env=gymnax", "env.scenario.name=Pendulum-v1,MountainCar-v0"]
    assert complete_overrides(["env=Pendulum-v1,MountainCar-v0"]) == expected
    assert complete_overrides(["env='Pendulum-v1'"]) == ["env=gymnax", "env.scenario.name=Pendulum-v1"]
    with pytest.raises(ConfigError, match="these ids are of env=gymnasium and env=gymnax: start a run of each"):
        complete_overrides(["env=Pendulum-v1,Hopper-v5"])


def test_a_file_with_the_name_of_one_of_the_package_is_refused(tmp_path):
    (tmp_path / "system/ppo").mkdir(parents=True)
    own = tmp_path / "system/ppo/ff_ppo.yaml"
    own.write_text((composition.config_dir() / "system/ppo/ff_ppo.yaml").read_text())
    for overrides, directories in (([], [tmp_path]), ([f"hydra.searchpath=[file://{tmp_path}]"], [])):
        with pytest.raises(ConfigError, match=f"^{own} has the name of a file of the package, which counts: rename it"):
            compose_config(overrides, directories)
    # That of a program of the user's is no choice.
    own.rename(tmp_path / "config.yaml")
    compose_config([], [tmp_path])
    # The package's own directory adds nothing.
    compose_config([], [composition.config_dir()])


@pytest.mark.slow
def test_choices_in_a_search_path_are_known_when_another_override_is_refused(tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env/Mine-v0.yaml").write_text("defaults: [/env/gymnax/cartpole@_here_]\n")
    for place in (f"file://{tmp_path}", tmp_path):
        given = [f"hydra.searchpath=[{place}]", "env=Mine-v0"]
        with pytest.raises(ConfigError, match="^unknown key 'system.gama': did you mean 'system.gamma'"):
            compose_config([*given, "system.gama=1"])
        with pytest.raises(ConfigError, match="^env=Mine is not known: did you mean 'Mine-v0'"):
            compose_config([given[0], "env=Mine"])


def test_a_file_of_networks_may_give_each_agent_its_own(tmp_path):
    (tmp_path / "network").mkdir()
    (tmp_path / "network/mine.yaml").write_text("defaults: [/network/mlp@_here_, _self_]\nshare: false\n")
    assert not parse_config(compose_config(["network=mine"], [tmp_path])).share_networks
    assert parse_config(compose_config(["network=mine", "network.share=true"], [tmp_path])).share_networks
    assert not parse_config(compose_config(["network.share=false"])).share_networks


def test_a_logger_of_ones_own_may_be_beside_one_of_the_package(tmp_path):
    (tmp_path / "logger").mkdir()
    text = "defaults: [default, _self_]\nmine: {_target_: my_package.MyLogger}\n"
    (tmp_path / "logger/mine.yaml").write_text(text)
    logger = compose_config(["logger=[mine,tensorboard]"], [tmp_path]).logger
    assert (logger.tensorboard.enabled, logger.console.enabled, "mine" in logger) == (True, True, True)
    # Its defaults would switch the other one off.
    with pytest.raises(ConfigError, match="choose one, last in a list"):
        compose_config(["logger=[tensorboard,mine]"], [tmp_path])


def test_experiments_come_before_other_groups_that_are_added(tmp_path):
    completed = complete_overrides(
        ["+search=fast", "arch.seed=1", "experiment=az_connect_four", "+observations=critic"]
    )
    assert completed == ["+experiment=az_connect_four", "arch.seed=1", "+search=fast", "+observations=critic"]
    # The experiment has 32 simulations, the short search 8.
    for added in (["+search=fast", "+experiment=az_connect_four"], ["+experiment=az_connect_four", "+search=fast"]):
        assert compose_config(added).system.num_simulations == 8
    # Without a plus, one that the experiment has chosen is replaced.
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults: [/search: wide, override /system: search/ff_az]\n"
    (tmp_path / "experiment/mine.yaml").write_text(text)
    assert compose_config(["experiment=mine", "search=fast"], [tmp_path]).system.num_simulations == 8
    with pytest.raises(ConfigError, match="the experiment has chosen search, which search=… without the plus repl"):
        compose_config(["experiment=mine", "+search=fast"], [tmp_path])


def test_composing_restores_the_hydra_of_the_caller():
    with composition.hydra_session():
        outer = GlobalHydra.instance().hydra
        compose_config([])
        assert GlobalHydra.instance().hydra is outer
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["system=ppo/ff_pp"], "system=ppo/ff_pp is not known: did you mean 'ppo/ff_ppo'"),
        (["env=gymnaxx/pong"], "env=gymnaxx/pong: 'gymnaxx' is not a known suite .* did you mean 'gymnax'"),
        (["experiment=nothing", "system.q_lr=1", "seed=1"], "^experiment=.*\nunknown key 'seed': use arch.seed=1$"),
        (["system.gama=1"], "unknown key 'system.gama': did you mean 'system.gamma'"),
        (["env.params.gravity=1"], r"write \+env.params.gravity"),
        (["+arch.seed=1"], r"^\+arch\.seed=1 adds a key that exists: leave out the plus$"),
        (["search=fast", "system=search/ff_az"], r"^search=fast needs a plus, \+search=fast"),
        (
            ["logger=[wandb,tensorboard]"],
            "is a list of choices: choose one, last in a list, and switch the others on,"
            " logger=wandb logger.tensorboard.enabled=true$",
        ),
        (["logger=wandb,tensorboard"], r"add -m to run each of them .*, or choose one, last in a list, and"),
        (["env=gymnax/pong,gymnax/acrobot"], r"add -m to run each of them .*, or choose one$"),
        (["arch.seed=0,1"], r"add -m to run each of them .*, or write a list in brackets, key=\[1,2\]$"),
        (
            ["+experiment=[ppo_cartpole]", "experiment=ppo_acrobot"],
            r"experiment is given 2 times: write one list, \+experiment=\[ppo_cartpole,ppo_acrobot\]$",
        ),
        (["nonsense"], "write it as key=value"),
        (
            ["arch.seed=1", "logger.wandb.name=lr=3"],
            "logger.wandb.name=lr=3 cannot be read: quote the value, '.*=\"lr=3\"'",
        ),
        (["arch.seed=[1,2"], r"arch.seed=\[1,2 cannot be read: (?!quote)"),
        (["system.data=~/data.npz"], r"system.data=~/data.npz cannot be read: write \$HOME in place of ~"),
        (["env=pong"], "env=pong is not known: did you mean .*'gymnax/pong'"),
        # cnn_large_dqn is nearer, but of other systems.
        (
            ["env=walker", "system=vmpo", "num_envs=8", "system.eps=1", "arch.sed=1"],
            "^env=walker is not known: did you mean 'kinetix/walker'.\nsystem=vmpo is not known: did you mean"
            # What else `system` has depends on its choice.
            " 'mpo/ff_vmpo'.\nunknown keys:\n  'num_envs': use arch.total_num_envs .*\n  'arch.sed': .*'arch.seed'",
        ),
        # Names of other frameworks are translated.
        (
            ["system=sac/ff_sac", "learning_rate=1"],
            "'learning_rate': use system.actor_lr, system.q_lr and system.alpha_lr",
        ),
        (["system=q_learning/ff_dqn", "batch_size=64"], "use system.total_batch_size"),
        (["env.kwargs.seed=3"], r"unknown key 'env.kwargs.seed': write \+env.kwargs.seed="),
        # No name here is one of the key, nor a group that it is in.
        (["system.period=5"], "unknown key 'system.period': systems that have it call it system.sequence_period$"),
        (
            ["system=ppo/rec_ppo", "network.cell_type=lstm"],
            "did you mean 'network.actor_network.rnn_layer.cell_type' or 'network.critic",
        ),
        (["PongNoFrameskip-v4"], "'PongNoFrameskip-v4' is not an override: use env=ALE/Pong-v5$"),
        (
            ["system=sac/ff_sac", "env=brax/ant", "system.gama=1", "arch.seed=1", "n_envs=4", "+arch.new=3"],
            r"unknown keys:\n  'system.gama': did you mean 'system.gamma'.*\n  'n_envs': use arch.total_num_envs",
        ),
        (["system=MuZero"], "system=MuZero is not known: use system=search/ff_mz"),
        (["ppo/ff_ppo"], "'ppo/ff_ppo' is not an override: use system=ppo/ff_ppo$"),
        (["PPO"], "'PPO' is not an override: use system=ppo/ff_ppo or system=ppo/rec_ppo"),
        (["rec_ppo"], "'rec_ppo' is not an override: use system=ppo/rec_ppo$"),
        (["runs/toy-v2"], "Error parsing override 'runs/toy-v2'"),
        (["horizon"], r"'horizon' is not an override: use system.horizon=… \(steps of a plan; of Dre"),
        (["qmix"], "'qmix' is not an override: use system=q_learning/ff_pqn_vdn system.mixer=qmix"),
        (["size12m"], "'size12m' is not an override: use network=dreamer_s"),
        (["Hopper-v5"], "'Hopper-v5' is not an override: use env=Hopper-v5"),
        (["env_id=Hopper-v5"], "use env=Hopper-v5, env=brax/hopper or env=envpool/hopper"),
    ],
)
def test_overrides_that_cannot_be_composed_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose_config(overrides)


@pytest.mark.parametrize("written", first(6, [*tables()["algorithms"].values()]), ids=tables()["algorithms"])
def test_what_is_written_for_an_algorithm_composes(written):
    compose_config([word.rstrip(",") for word in written.split() if "=" in word and "env.kwargs" not in word][:4])


def test_a_config_directory_of_the_user_adds_choices(tmp_path):
    own = tmp_path / "it's \\(mine)\\"
    (own / "env").mkdir(parents=True)
    (own / "env/short.yaml").write_text(
        "defaults: [gymnax/cartpole@_here_, _self_]\nparams: {max_steps_in_episode: 50}\n"
    )
    assert "short" in group_choices("env", [own])
    run = parse_config(compose_config(["env=short"], [own]))
    assert run.env.params == {"max_steps_in_episode": 50}
    with pytest.raises(ConfigError, match="env=shrt is not known: did you mean 'short'"):
        compose_config(["env=shrt"], [own])


@pytest.mark.parametrize("override", ["logger=[]", "logger=-0.0", "checkpoint=null", "arch=3", "env=gymnax/acrobot"])
def test_a_group_of_a_resumed_run_is_chosen_by_name(override):
    below = "+network.actor_network.pre_torso.layer_sizes.a=1"
    words = "names no choice .* only logger and checkpoint can be chosen"
    for given, message in ((override, words), (below, "does not fit the configuration")):
        with pytest.raises(ConfigError, match=message):
            override_config(composed.compose_config([]), [given])


def test_keys_of_a_chosen_group_keep_their_values_in_any_order():
    words = ["logger.wandb.project=mine", "logger=wandb"]
    for given in (words, words[::-1]):
        found = override_config(composed.compose_config([]), given).logger.wandb
        assert (found.project, found.enabled) == ("mine", True)


def test_keys_directories_and_launchers_that_are_not_there_are_named(tmp_path):
    config = compose_config(["hydra.run.dir=runs/${system.learning_rate}"], (), True)
    with pytest.raises(ConfigError, match="hydra.run.dir: Interpolation key .*learning_rate' not found: set what"):
        composition.run_dir_of(config)
    with pytest.raises(ConfigError, match=f"config_dir={tmp_path}/lost does not exist"):
        compose_config(["system=mine"], [tmp_path / "lost"])
    with pytest.raises(ConfigError, match=r"^hydra/launcher=jobli is not known, or not installed: .*\[launchers\]'"):
        compose_config(["arch.seed=1", "hydra/launcher=jobli"], return_hydra_config=True)


@pytest.mark.parametrize(
    ("name", "suite", "said"),
    [
        # gymnax has the same id, and other choices of this package keep their meaning.
        (
            "Acrobot-v1",
            "gymnax",
            "env=Acrobot-v1 is env=gymnax env.scenario.name=Acrobot-v1; gymnasium's own: env=gymnas",
        ),
        ("my_package:MyEnv-v0", "gymnasium", "on the host"),
        ("Walker2d-v5", "gymnasium", "is env=gymnasium env.scenario.name=Walker2d-v5, on the host"),
        # Ids that the files of one other suite have.
        ("Snake-v1", "jumanji", "env=Snake-v1 is env=jumanji env.scenario.name=Snake-v1; gymnasium's own: env=gym"),
    ],
)
def test_ids_of_gymnasium_select_a_suite(name, suite, said, capsys):
    config = compose_config([f"env={name}"])
    assert (config.env.env_name, config.env.scenario.name) == (suite, name)
    compose_config([f"env={name}"])
    assert capsys.readouterr().err.count(said) == 1


def test_nothing_is_said_of_an_id_that_does_not_exist(capsys):
    config = parse_config(compose_config(["env=CartPol-v1"]))
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match=r"'CartPol-v1' is not an id of gymnasium: did you mean 'CartPole-v1' or "):
        factory.make(config.env)


def test_an_id_of_an_atari_game_is_the_task_of_its_file(capsys):
    for name, choice in (("ALE/Pong-v5", "gymnasium/pong"), ("Pong-v5", "envpool/pong")):
        assert compose_config([f"env={name}"]).env == compose_config([f"env={choice}"]).env
    # One that names its module is preprocessed too.
    freeway = compose_config(["env=gymnasium/_atari", "env.scenario.name=ale_py:ALE/Freeway-v5"]).env
    assert compose_config(["env=ale_py:ALE/Freeway-v5"]).env == freeway
    assert (freeway.reward_clip, freeway.kwargs.repeat_action_probability) == (1.0, 0.0)
    compose_config(["env=ALE/Freeway-v5"])
    said = "env=ALE/Freeway-v5 is env=gymnasium/_atari env.scenario.name=ALE/Freeway-v5; gymnasium's own: env=gymnasium"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["BreakoutNoFrameskip-v4", "Breakout-v4", "Breakout-v0", "ale_py:Breakout-v4"])
def test_an_id_of_a_raw_atari_game_is_refused_with_the_one_that_is_preprocessed(name):
    with pytest.raises(ConfigError) as raised:
        compose_config([f"env={name}"])
    assert str(raised.value).startswith(f"env={name} is the raw game: use env=ALE/Breakout-v5, which has ")
    assert str(raised.value).endswith(f"for the raw game, env=gymnasium env.scenario.name={name}")
    assert compose_config(["env=gymnasium", f"env.scenario.name={name}"]).env.reward_clip is None


def test_choices_with_the_name_of_an_id_come_first(tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env/Mine-v0.yaml").write_text("defaults: [/env/gymnax/cartpole@_here_]\n")
    assert complete_overrides(["env=Mine-v0"], [tmp_path]) == ["env=Mine-v0"]
    assert complete_overrides(["env=gymnax/cart-v1"]) == ["env=gymnax/cart-v1"]
