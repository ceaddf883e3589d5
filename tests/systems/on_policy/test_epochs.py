from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.config import parse_config
from stoix_like.envs.suites.probes import PROBES
from stoix_like.systems.off_policy.epochs import replay_epochs
from stoix_like.systems.on_policy.epochs import minibatch_epochs
from support.composed import compose_config
from support.on_policy_runs import training_loop
from support.platforms import take_accelerator_forms

ONE_SHARD, FOUR_SHARDS = ["arch.num_devices=1"], ["arch.num_devices=2", "arch.update_batch_size=2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "probe", "overrides"),
    [
        ("ppo/ff_ppo_penalty", "policy", FOUR_SHARDS),
        ("ppo/ff_dpo", "continuous_policy", ONE_SHARD),
        ("vpg/ff_a2c", "continuous_policy", [*FOUR_SHARDS, "system.rollout_length=8"]),
        ("impala/ff_impala", "continuous_policy", [*ONE_SHARD, "system.rollout_length=8"]),
        ("mpo/ff_vmpo", "continuous_policy", FOUR_SHARDS),
        ("awr/ff_awr", "policy", [*FOUR_SHARDS, "system.n_step=4"]),
        ("vpg/ff_reinforce", "policy", [*ONE_SHARD, "system.rollout_length=8"]),
        ("ppo/ff_ppo", "mixed_actions", FOUR_SHARDS),
        ("vpg/ff_a2c", "mixed_actions", [*ONE_SHARD, "system.rollout_length=8"]),
        ("vpg/ff_reinforce", "mixed_actions", [*ONE_SHARD, "system.rollout_length=8"]),
        ("impala/ff_impala", "mixed_actions", [*ONE_SHARD, "system.rollout_length=8"]),
    ],
)
def test_the_policy_probes_are_learned(system, probe, overrides):
    loop = training_loop(f"system={system}", f"env=probe/{probe}", "arch.total_timesteps=40960", *overrides)
    loop.train()
    assert loop.history[-1]["eval/episode_return_mean"] == pytest.approx(PROBES[probe].optimal_return, abs=0.05)


def test_hyperparameters_change_linearly_to_their_final_values():
    """A quarter of the way from 0.01 to 0 is 0.0075, and from 0.2 to 0.1 it is 0.175."""
    config = parse_config(compose_config(["system.final_ent_coef=0", "system.final_clip_eps=0.1"])).system
    quarter, end = config.at(jnp.asarray(2), 8), config.at(jnp.asarray(9), 8)
    assert (float(quarter.ent_coef), float(quarter.clip_eps)) == pytest.approx((0.0075, 0.175))
    assert (float(end.ent_coef), float(end.clip_eps)) == pytest.approx((0.0, 0.1))
    schedules = config.schedules(2, 8)
    assert (schedules.pop("ent_coef"), schedules.pop("clip_eps")) == pytest.approx((0.0075, 0.175))
    constant = parse_config(compose_config([])).system
    assert constant.at(constant.init_updates(), 8) is constant
    assert constant.schedules(2, 8) == schedules


def test_metrics_of_any_type_are_averaged():
    metrics = {"half": jnp.float32(0.5), "count": jnp.int32(3), "flag": jnp.bool_(True), "number": 2}
    sizes, key = SimpleNamespace(epochs=2, num_minibatches=2), jax.random.key(0)

    def move(params, key):
        return {"w": params["w"] + jax.random.normal(key)}

    params = {"w": jnp.zeros(2)}
    _, of_minibatches = minibatch_epochs(
        lambda shared, _, key: (move(shared, key), metrics), params, params, key, sizes
    )
    _, of_replay = replay_epochs(lambda shared, key, _: (move(shared, key), metrics), params, key, sizes.epochs)
    for means in (of_minibatches, of_replay):
        assert {name: float(mean) for name, mean in means.items()} == {"half": 0.5, "count": 3, "flag": 1, "number": 2}


def test_minibatches_that_gather_images_have_the_same_rows(monkeypatch):
    batch = {"image": jnp.arange(12.0 * 300).reshape(12, 300), "reward": jnp.arange(12.0)}
    batch["bytes"] = jnp.arange(12, dtype=jnp.uint8)
    sizes, key = SimpleNamespace(epochs=2, num_minibatches=3), jax.random.key(0)

    def learn(shared, minibatch, _):
        # In the order of the rows, which are the same in all arrays.
        seen = 7 * shared + minibatch["image"][:, 1] * minibatch["reward"] + minibatch["bytes"]
        return seen, {"mean": minibatch["image"].mean()}

    shuffled, _ = minibatch_epochs(learn, jnp.zeros(4), batch, key, sizes)
    take_accelerator_forms(monkeypatch)
    gathered, _ = minibatch_epochs(learn, jnp.zeros(4), batch, key, sizes)
    np.testing.assert_array_equal(gathered, shuffled)
