"""Sizes of replay buffers."""

import pytest

from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.run.set_up.setup import set_up
from support.composed import compose_config


def test_whole_windows_need_their_successors():
    config = parse_config(compose_config(["system=awr/ff_awr", "system.store_next_observation=false"])).system
    with pytest.raises(ConfigError, match="system.store_next_observation=false: this system needs .*: use true"):
        config.check(8, 1)


def test_a_kind_of_resets_needs_their_period():
    config = parse_config(compose_config(["system=q_learning/ff_dqn", "system.reset=last_layers"])).system
    with pytest.raises(ConfigError, match="system.reset=last_layers has no effect: set system.reset_every"):
        config.check(8, 1)


INVALID_SIZES = {
    "batch": (["system.total_batch_size=127", "arch.update_batch_size=2"], r"total_batch_size=127.*use 126 or 128"),
    "short": (
        ["system.total_buffer_size=32", "system.rollout_length=8"],
        r"total_buffer_size=32 holds 0 step.*least 64",
    ),
    "large batch": (
        ["system.total_buffer_size=64", "system.total_batch_size=128"],
        r"total_batch_size=128.*at least 128",
    ),
    "early": (["system.warmup_steps=0", "system.total_batch_size=128"], r"warmup_steps=0.*use at least 8"),
}


@pytest.mark.parametrize("name", INVALID_SIZES)
def test_invalid_sizes_raise_with_a_valid_alternative(name):
    overrides, message = INVALID_SIZES[name]
    with pytest.raises(ConfigError, match=message):
        set_up(parse_config(compose_config(["system=q_learning/ff_dqn", *overrides])))


@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        # Whole rollouts of 8 steps of each of 8 environments, which two update batches share.
        (["system.total_buffer_size=1001", "arch.update_batch_size=2"], "1,001 rounded down to 960: a multiple of 64"),
        (["system.total_buffer_size=1001", "system.rollout_length=1"], "1,001 rounded down to 1,000: a multiple of 8"),
    ],
)
def test_buffers_are_rounded_down_with_a_note(overrides, note):
    setup = set_up(parse_config(compose_config(["system=q_learning/ff_dqn", *overrides])))
    assert f"system.total_buffer_size={note}" in setup.plan.notes
