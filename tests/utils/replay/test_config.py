import pytest

from stoix_like.errors import ConfigError
from support.set_ups import setup_of

DQN = "system=q_learning/ff_dqn"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["system=awr/ff_awr", "system.store_next_observation=false"], "store_next_observation=false.*use true"),
        ([DQN, "system.reset=last_layers"], "reset=last_layers has no effect: set system.reset_every"),
        (["system=mpo/ff_mpo", "+system.data=some.npz"], "data=some.npz: this system learns from windows of its own"),
        (["system=mpo/ff_mpo", "+system.relabel=final"], "relabel=final: this system .* whole windows"),
        ([DQN, "system.relabel=final", "system.store_next_observation=false"], "observation=false does not store: use"),
        ([DQN, "system.total_batch_size=127", "arch.update_batch_size=2"], "total_batch_size=127.*use 126 or 128"),
        ([DQN, "system.total_buffer_size=32", "system.rollout_length=8"], "=32 holds 0 step.*least 64"),
        ([DQN, "system.total_buffer_size=64", "system.total_batch_size=128"], "total_batch_size=128.*at least 128"),
        ([DQN, "system.warmup_steps=0", "system.total_batch_size=128"], "warmup_steps=0.*use at least 8"),
    ],
)
def test_what_does_not_fit_a_replay_buffer_is_refused(overrides, words):
    with pytest.raises(ConfigError, match=words):
        setup_of(*overrides)


@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        # Whole rollouts of 8 steps of each of 8 environments, which two update batches share.
        (["system.total_buffer_size=1001", "arch.update_batch_size=2"], "1,001 rounded down to 960: a multiple of 64"),
        (["system.total_buffer_size=1001", "system.rollout_length=1"], "1,001 rounded down to 1,000: a multiple of 8"),
    ],
)
def test_buffers_are_rounded_down_with_a_note(overrides, note):
    setup = setup_of("system=q_learning/ff_dqn", *overrides)
    assert f"system.total_buffer_size={note}" in setup.plan.notes
