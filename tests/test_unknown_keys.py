import re

import pytest

from stoix_like import unknown_keys
from stoix_like.composition import compose_config, parse_overrides
from stoix_like.errors import ConfigError
from stoix_like.foreign_keys import foreign_keys, rows_of


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
        (
            ["system=dreamer/dreamer_v3", "agent.policy.units=64"],
            "use network.actor_network.pre_torso.layer_sizes (a list",
        ),
        # `dyn` and `policy` are groups here: neither the weight of a loss, nor the policy of Stable-Baselines3.
        (["system=dreamer/dreamer_v3", "agent.dyn.rssm.act=silu"], "choose from arch, "),
        # A name that several frameworks have leads into the group that it is in.
        (
            ["system=dreamer/dreamer_v3", "network.world_model.dynamics.hidden=64"],
            "did you mean 'network.world_model",
        ),
        (["system=search/ff_az", "system.depth=3"], "did you mean 'system.max_depth'"),
        (["env.eval_metric=solve_rate"], "it has no counterpart here: the metric of evaluations"),
    ],
)
def test_a_name_is_answered_by_its_whole_key_and_its_value(overrides, answer):
    with pytest.raises(ConfigError) as raised:
        compose_config(overrides)
    assert f": {answer}" in str(raised.value)
