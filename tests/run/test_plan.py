import itertools

import pytest
import toys

from stoix_like.config import compose_config, parse_config
from stoix_like.errors import ConfigError
from stoix_like.run.plan import make_plan


def plan(*overrides, num_devices=1):
    return make_plan(parse_config(compose_config(overrides)), num_devices)


def test_budget_is_rounded_down_and_said():
    # 8 environments x 128 steps = 1024 steps an update; 10_000 // 1024 = 9 updates, 9216 steps.
    found = plan("arch.total_num_envs=8", "system.rollout_length=128", "arch.total_timesteps=10000")
    assert (found.num_updates, found.steps_per_update) == (9, 1024)
    assert any("10,000" in note and "9,216" in note for note in found.notes)


def test_exact_budget_says_nothing():
    found = plan(
        "arch.total_num_envs=8", "system.rollout_length=128", "arch.total_timesteps=10240", "arch.num_evaluation=2"
    )
    assert found.num_updates == 10
    assert found.notes == ()


def test_warm_up_is_paid_from_the_budget():
    # 8 x 256 = 2048 steps of warm-up; (10240 - 2048) // 1024 = 8 updates.
    found = plan(*toys.overrides(rollout_length=128, warmup_steps=256), "arch.total_timesteps=10240")
    assert (found.warmup_steps, found.num_updates) == (2048, 8)


@pytest.mark.parametrize(("updates", "evaluations"), [(7, 3), (9, 9), (20, 7), (3, 5)])
def test_windows_share_the_updates_evenly(updates, evaluations):
    found = plan(f"arch.total_timesteps={updates * 1024}", f"arch.num_evaluation={evaluations}")
    windows = [end - start for start, end in itertools.pairwise((0, *found.evaluations))]
    assert found.evaluations[-1] == updates
    assert len(windows) == min(updates, evaluations)
    assert max(windows) - min(windows) <= 1
    assert any("evaluations" in note for note in found.notes) == (evaluations > updates)


def test_shards():
    found = plan("arch.total_num_envs=16", "arch.update_batch_size=2", num_devices=2)
    assert (found.num_shards, found.envs_per_shard) == (4, 4)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["arch.total_num_envs=9"], "arch.total_num_envs=9 does not divide over 2 device.* use 8 or 10"),
        (["arch.total_num_envs=1"], "use 2$"),
        (["arch.total_num_envs=6", "arch.update_batch_size=2"], "arch.update_batch_size=2: use 4 or 8"),
        (["arch.total_timesteps=1023"], "too small for one update, which takes 1024 steps .* use at least 1024"),
        (
            toys.overrides(rollout_length=128, warmup_steps=100),
            "system.warmup_steps=100 is no multiple of system.rollout_length=128",
        ),
        (["+system.warmup_steps=128"], "system.warmup_steps=128: this system learns from its own steps alone"),
        (["arch.total_timesteps=1e14"], "use more evaluations"),
        (["system.num_minibatches=3"], "system.num_minibatches=3 does not divide"),
    ],
)
def test_sizes_that_do_not_fit(overrides, message):
    with pytest.raises(ConfigError, match=message):
        plan(*overrides, num_devices=2)
