import dataclasses
import itertools

import pytest

from stoix_like.errors import ConfigError
from stoix_like.run.host.plan import make_plan
from stoix_like.schema import replace_values
from stoix_like.systems.sac.anakin import ff_sac
from support import toys
from support.selections import first
from support.set_ups import config_of


def plan(*overrides, num_devices=1):
    return make_plan(config_of(*overrides), num_devices)


def test_the_budget_is_rounded_down_and_rounding_is_reported():
    # 8 environments × 128 steps = 1024 steps per update; 10_000 // 1024 = 9 updates = 9216 steps.
    sizes = ("arch.total_num_envs=8", "system.rollout_length=128")
    found = plan(*sizes, "arch.total_timesteps=10000")
    assert (found.num_updates, found.steps_per_update) == (9, 1024)
    assert any("10,000" in note and "9,216" in note for note in found.notes)
    found = plan(*sizes, "arch.total_timesteps=10240", "arch.num_evaluation=2")
    assert (found.num_updates, found.notes) == (10, ())
    # 8 × 256 = 2048 warm-up steps; (10240 - 2048) // 1024 = 8 updates.
    found = plan(*toys.overrides(rollout_length=128, warmup_steps=256), "arch.total_timesteps=10240")
    assert (found.warmup_steps, found.num_updates) == (2048, 8)
    found = plan("arch.total_num_envs=16", "arch.update_batch_size=2", num_devices=2)
    assert (found.num_shards, found.envs_per_shard) == (4, 4)


@pytest.mark.parametrize(
    "system",
    [
        *("sac/ff_sac", "sac/ff_sac_c51", "sac/ff_tqc", "sac/ff_crossq", "ddpg/ff_td3", "ddpg/ff_td3_c51"),
        *("sac/ff_xqc", "sac/ff_flow", "ddpg/ff_ddpg", "ddpg/ff_d4pg", "mpo/ff_mpo"),
    ],
)
def test_continuous_control_makes_one_gradient_step_per_environment_step_by_default(system):
    assert any(note.startswith("1 gradient steps per environment step") for note in plan(f"system={system}").notes)
    if system == "sac/ff_sac":
        # 16 environments × 1 step and 8 gradient steps per update.
        found = plan(f"system={system}", "arch.total_num_envs=16", "system.epochs=8")
        assert "0.5 gradient steps per environment step: system.epochs=8 after every 16 steps" in found.notes


def test_priorities_without_a_buffer_have_no_effect_and_limit_no_budget():
    """Nothing is stored, whose steps 32 bits would count: 2**31 updates of 2 gradient steps are one too many."""
    offline = ["arch=offline", "system.data=some.npz"]
    # Rainbow draws by priority by default, DQN does not.
    for system, noted in (("ff_rainbow", True), ("ff_dqn", False)):
        notes = plan(f"system=q_learning/{system}", *offline).notes
        assert any("system.prioritised=true has no effect" in note for note in notes) == noted
    given = ["system=q_learning/ff_rainbow", *offline, "system.epochs=2"]
    given += ["system.rollout_length=8", "system.decay_learning_rates=false"]
    assert plan(*given, f"arch.total_timesteps={2**32 - 2}").num_updates == 2**31 - 1
    too_many = "2,147,483,648 updates of 2 gradient steps are more than 32-bit .*: use at most 4294967294$"
    with pytest.raises(ConfigError, match=too_many):
        plan(*given, f"arch.total_timesteps={2**32}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnCheck(ff_sac.Config):
    def check(self, num_envs, num_shards):
        """Refuse nothing, and leave the base out."""


def test_the_check_of_a_system_adds_to_those_of_its_parts():
    """Two shards can draw batches of 4 in all, and not of 5."""
    config = config_of("system=sac/ff_sac", "system.total_batch_size=4")
    fitting = OwnCheck(**vars(config.system))
    odd = replace_values(fitting, {"total_batch_size": 5})
    found = make_plan(config._replace(system=fitting), 2)
    for check in (lambda: found.check(odd), lambda: make_plan(config._replace(system=odd), 2)):
        with pytest.raises(ConfigError, match=r"system\.total_batch_size=5"):
            check()


@pytest.mark.parametrize(("updates", "evaluations"), [(7, 3), (9, 9), (20, 7), (3, 5)])
def test_intervals_divide_the_updates_evenly(updates, evaluations):
    found = plan(f"arch.total_timesteps={updates * 1024}", f"arch.num_evaluation={evaluations}")
    intervals = [end - start for start, end in itertools.pairwise((0, *found.evaluations))]
    assert found.evaluations[-1] == updates
    assert len(intervals) == min(updates, evaluations)
    assert max(intervals) - min(intervals) <= 1
    assert any("arch.num_evaluation" in note for note in found.notes) == (evaluations > updates)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["arch.total_num_envs=9"], r"arch.total_num_envs=9 must be a multiple of .*\(2 device.*: use 8 or 10$"),
        (["arch.total_num_envs=1", "arch.num_devices=null"], "2 device.s., all of arch.num_devices=null, × .* use 2$"),
        (["arch.total_num_envs=6", "arch.update_batch_size=2"], r"arch.update_batch_size=2\): use 4 or 8$"),
        (["arch.total_timesteps=1023"], "arch.total_timesteps=1023 is too small for one update of 1024 steps .* 1024$"),
        (toys.overrides(rollout_length=128, warmup_steps=100), "warmup_steps=100 must be a multiple .*: use 128$"),
        (["+system.warmup_steps=128"], "system.warmup_steps=128: this system declares no replay buffer: use 0"),
        # (2**31 - 1) updates of 1024 steps.
        (["arch.total_timesteps=1e14"], "32-bit counters can count: use at most 2199023254528$"),
        # Rainbow counts the steps of each environment, 128 of warm-up and 8 per update: 268435439 updates in all.
        (["system=q_learning/ff_rainbow", "arch.total_timesteps=1e12"], "32-bit counters .* use at most 17179869120$"),
        (
            ["arch.total_num_envs=2e8", "system.rollout_length=30", "arch.total_timesteps=1e12"],
            "system.rollout_length=30: a rollout of 100,000,000 envs per shard .* use at most 21, or fewer",
        ),
        (["system.num_minibatches=3"], "system.num_minibatches=3 must divide the per-shard batch of 512"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        plan(*overrides, num_devices=2)


@pytest.mark.parametrize(
    ("overrides", "remedy"),
    first(
        4,
        [
            (["system=vpg/ff_a2c"], "system.vtrace=true does"),
            (["system=vpg/ff_reinforce"], "system.vtrace=true does"),
            (["system=mpo/ff_vmpo"], "system.vtrace=true does"),
            (["system=q_learning/ff_pqn"], "use arch.pipeline_queue_size=0"),
            (["system=reppo/ff_reppo"], "use arch.pipeline_queue_size=0"),
            (["system=reppo/ff_reppo", "arch.pipeline_queue_size=0"], None),
            (["system=vpg/ff_a2c", "system.vtrace=true"], None),
            (["system=impala/ff_impala"], None),
            (["system=ppo/ff_ppo"], None),
            (["system=awr/ff_awr"], None),
        ],
    ),
)
def test_a_lag_that_no_loss_corrects_is_noted(overrides, remedy):
    notes = [note for note in plan("arch=sebulba", *overrides).notes if "update(s) old" in note]
    assert [remedy in note for note in notes] == ([] if remedy is None else [True])


def test_sebulba_names_minibatches_that_do_not_fit():
    sizes = ("arch.total_num_envs=2", "system.rollout_length=10", "system.num_minibatches=8")
    with pytest.raises(ConfigError, match=r"system.num_minibatches=8"):
        plan("system=ppo/ff_ppo", "arch=sebulba", "env=gymnasium/cartpole", *sizes)
