import re

import pytest
from omegaconf import OmegaConf

from stoix_like import unknown_keys
from stoix_like.composition import compose_config, config_dir, group_choices, parse_overrides
from stoix_like.errors import ConfigError
from stoix_like.foreign_keys import foreign_keys, rows_of, tables


def test_every_name_of_the_table_is_answered_from_it():
    composed = compose_config([], return_hydra_config=True)
    for row in (row for row in foreign_keys() if "=" not in row.theirs):
        for unknown in unknown_keys.find(parse_overrides([f"{row.theirs}=x"]), composed):
            answer, rows = (
                unknown_keys.refusal([unknown], [], []),
                [*rows_of(row.theirs), *rows_of(row.theirs.rpartition(".")[2])],
            )
            ours = {name.partition("=")[0] for one in rows for name in one.ours}
            words = {word.partition("=")[0] for word in re.findall(r"[\w./=]+", answer)}
            assert ours & words if ours else answer.endswith(row.note), (row, answer)


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["system=dreamer/dreamer_v3", "agent.opt.agc=0.3"], "use system.max_relative_norm=0.3"),
        (
            ["system=dreamer/dreamer_v3", "agent.enc.simple.depth=16"],
            "use network.world_model.encoder.channels (times 1, 2, 3, … in its convolutions, theirs times 2, 3",
        ),
        (["system=dreamer/dreamer_v3", "dyn.rssm.act=silu"], "choose from arch, "),
        (["system=ppo/rec_ppo", "network.actor.rnn_layer.cell_type=lstm"], "did you mean 'network.actor_network'"),
        (
            ["hidden=64"],
            "use network.actor_network.pre_torso.layer_sizes and network.critic_network.pre_torso.layer_si",
        ),
        (["system=spo/ff_spo", "system.resampling.mode=ess"], "use system.resampling=ess"),
        (["norm_adv=true"], "use system.standardize_advantages=minibatch"),
        (["logger.kwargs.project=p"], "use logger.wandb.project=p"),
        (["NUM_MINIBATCHES=4"], "did you mean 'system.num_minibatches'"),
        (["env=minigrid/minigrid_doorkey_5x5"], "did you mean 'xminigrid/door_key_5x5'"),
        (["system=dreamer/dreamer_v3", "agent.imag_loss.lam=0.9"], "use system.gae_lambda=0.9"),
        (["system=tdmpc/td_mpc2", "num_pi_trajs=12"], "use system.num_policy_samples=12"),
        (["system=goals/ff_crl", "discounting=0.9"], "use system.gamma=0.9"),
        (["system=sac/ff_sac", "replay_buffer_class=HerReplayBuffer"], "use system.relabel=future (in an env"),
    ],
)
def test_a_name_is_answered_by_its_whole_key_and_its_value(overrides, answer):
    with pytest.raises(ConfigError) as raised:
        compose_config(overrides)
    assert f": {answer}" in str(raised.value)


@pytest.fixture(scope="module")
def hyperparameters():
    """The keys of all systems."""
    files = [OmegaConf.load(config_dir() / "system" / f"{system}.yaml") for system in group_choices("system")]
    return {f"system.{key}" for file in files for key in file}


@pytest.mark.parametrize("framework", tables()["keys"])
def test_rows_lead_to_keys_and_choices_that_exist(framework, hyperparameters):
    network = {"TD-MPC2": "mlp_tdmpc2", "JaxGCRL": "mlp_crl", "Q-chunking": "mlp_fql"}.get(framework, "dreamer_s")
    composed = compose_config([f"network={network}"], return_hydra_config=True)
    rows = [row for row in foreign_keys() if row.framework == framework]
    assert len(rows) > 10
    for key, _, choice in (name.partition("=") for row in rows for name in row.ours):
        if choice and "." not in key:
            assert choice in group_choices(key)
        elif key not in hyperparameters:
            path, _, name = key.rpartition(".")
            assert name in OmegaConf.select(composed, path), key
