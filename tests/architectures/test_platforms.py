import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.sums import FloatSum
from stoix_like.envs import suites
from stoix_like.utils.accelerate import platform
from stoix_like.utils.running_statistics import RoundingErrors
from support import disco
from support.platforms import take_accelerator_forms
from support.programs import train
from support.small_tdmpc import NETWORK, PLANS
from support.tiny_dreamer import TINY

SMALL = ["arch.total_num_envs=8", "arch.compile_cache=false"]
ROLLOUT = ["system.rollout_length=16"]
REPLAY = ["system.warmup_steps=16", "system.rollout_length=8", "system.epochs=2", "system.total_batch_size=32"]
# A third update, before which networks are reset.
THREE = ["arch.total_timesteps=320"]
SHARDS = ["arch.num_devices=2", "arch.update_batch_size=2", "logger.every_updates=1"]
# Adam divides gradients by their size: those that are nearly zero would be nothing but rounding.
# A search scales values to [0, 1], a plan chooses the best: equal ones would differ by nothing but rounding.
VALUED = "network.{}_network.critic_head.kernel_init=lecun_normal".format
MUZERO = [
    *(*REPLAY, "system.num_simulations=4", "system.unroll_steps=2", "system.n_step=2", "system.adam_eps=1e-3"),
    *(VALUED("reward"), VALUED("critic")),
]
ALPHAZERO = [
    *(*REPLAY, "system.num_simulations=4", "system.sequence_length=8", "system.total_batch_size=16"),
    "system.adam_eps=1e-3",
]
NESTED = ["env=gymnax", "env.env_name=nested", "env.scenario.name=discrete"]
MUON = ["system.optimiser=muon", "system.weight_decay=0.01"]
SCALED = ["system.normalize_observations=true", "system.normalize_rewards=true"]
SEQUENCES = [
    *("system.sequence_period=8", "system.sequence_length=8", "system.burn_in_length=3", "system.total_batch_size=8")
]
RUNS = {
    "ppo": ["system=ppo/ff_ppo", "env=gymnax/cartpole", *ROLLOUT, "system.epochs=2"],
    "shards": ["system=ppo/ff_ppo", "env=gymnax/cartpole", *ROLLOUT, "system.target_kl=1e-4", *SHARDS],
    "diagnostics": ["system=ppo/ff_ppo", "env=gymnax/cartpole", *ROLLOUT, *SHARDS, "logger.diagnostics=true"],
    "pixels": ["system=ppo/ff_ppo", "env=gymnax/breakout", "network=cnn", *ROLLOUT, "system.epochs=2", *SHARDS],
    "kl_rate": [
        *("system=ppo/ff_ppo", "env=gymnax/cartpole", *ROLLOUT, "system.epochs=2"),
        *("system.desired_kl=0.01", "system.decay_learning_rates=false"),
    ],
    "penalty": ["system=ppo/ff_ppo_penalty", "env=gymnax/pendulum", *ROLLOUT, "system.normalize_observations=true"],
    "dpo": ["system=ppo/ff_dpo", "env=gymnax/pendulum", *ROLLOUT],
    "rec_ppo": ["system=ppo/rec_ppo", "env=gymnax/cartpole", *ROLLOUT, "system.epochs=2"],
    "rnd": ["system=ppo/ff_ppo", "env=gymnax/cartpole", *ROLLOUT, "system.epochs=2", "system.intrinsic=rnd", *SHARDS],
    "a2c": ["system=vpg/ff_a2c", "env=gymnax/cartpole", *ROLLOUT],
    "reinforce": ["system=vpg/ff_reinforce", "env=gymnax/cartpole", *ROLLOUT],
    "impala": ["system=impala/ff_impala", "env=gymnax/cartpole", *ROLLOUT],
    "rec_impala": ["system=impala/rec_impala", "env=gymnax/cartpole", *ROLLOUT],
    "vmpo": ["system=mpo/ff_vmpo", "env=gymnax/cartpole", *ROLLOUT],
    "reppo_discrete": ["system=reppo/ff_reppo_discrete", "env=gymnax/cartpole", *ROLLOUT, "system.epochs=2"],
    "reppo": ["system=reppo/ff_reppo", "env=gymnax/pendulum", *ROLLOUT, "system.epochs=2"],
    "pqn": ["system=q_learning/ff_pqn", "env=gymnax/cartpole", *ROLLOUT, "system.epochs=2"],
    "pqn_continuous": ["system=q_learning/ff_pqn_continuous", "env=gymnax/pendulum", *ROLLOUT, "system.epochs=2"],
    "rec_pqn": ["system=q_learning/rec_pqn", "env=gymnax/cartpole", *ROLLOUT, "system.epochs=2"],
    "dqn": ["system=q_learning/ff_dqn", "env=gymnax/cartpole", *REPLAY],
    "dqn_shards": ["system=q_learning/ff_dqn", "env=gymnax/cartpole", *REPLAY, "system.prioritised=true", *SHARDS],
    "rainbow": ["system=q_learning/ff_rainbow", "env=gymnax/cartpole", *REPLAY],
    "r2d2": [*("system=q_learning/rec_r2d2", "env=gymnax/cartpole", *REPLAY, *SEQUENCES)],
    "disco103": [
        *("system=disco_rl/ff_disco103", "env=gymnax/cartpole", "system.sequence_period=8", "system.sequence_length=8"),
        *(*REPLAY, "system.total_batch_size=8", *disco.overrides()),
    ],
    "spo": [
        *("system=spo/ff_spo", "env=gymnax/cartpole", "system.sequence_period=8", "system.sequence_length=8"),
        *(*REPLAY, "system.total_batch_size=8", "system.num_particles=4", "system.evaluation_particles=4"),
    ],
    "spo_shared": [
        *("system=spo/ff_spo", "env=gymnax/cartpole", "network=mlp_shared", "system.sequence_period=8"),
        *("system.sequence_length=8", *REPLAY, "system.total_batch_size=8", "system.num_particles=4"),
    ],
    "sac": ["system=sac/ff_sac", "env=gymnax/pendulum", *REPLAY],
    "sac_muon": ["system=sac/ff_sac", "env=gymnax/pendulum", *REPLAY, *MUON],
    "simba_v2": ["system=sac/ff_sac", "env=gymnax/pendulum", "network=mlp_simba_v2", *REPLAY, *SCALED],
    "dqn_reset": ["system=q_learning/ff_dqn", "env=gymnax/cartpole", *REPLAY, "system.reset_every=3", *SHARDS, *THREE],
    "crossq": ["system=sac/ff_crossq", "env=gymnax/pendulum", *REPLAY],
    # Few units: among thousands, rounding moves some input across zero.
    "xqc": [
        *("system=sac/ff_xqc", "env=gymnax/pendulum", *REPLAY, "system.adam_eps=1e-3"),
        *(f"network.{name}_network.pre_torso.layer_sizes=[32,32]" for name in ("actor", "q")),
    ],
    "sac_c51": ["system=sac/ff_sac_c51", "env=gymnax/pendulum", *REPLAY],
    "td3_c51": ["system=ddpg/ff_td3_c51", "env=gymnax/pendulum", *REPLAY, "system.max_exploration_noise=0.8"],
    "td3": ["system=ddpg/ff_td3", "env=gymnax/pendulum", *REPLAY],
    "flow": [
        *("system=sac/ff_flow", "env=gymnax/pendulum", *REPLAY, "system.adam_eps=1e-3"),
        *("system.flow_steps=2", "system.num_samples=4", "system.num_candidates=4"),
    ],
    "crl": ["system=goals/ff_crl", "env=goals/point_maze", *REPLAY, "system.adam_eps=1e-3", *SHARDS],
    "rec_sac": ["system=sac/rec_sac", "env=gymnax/pendulum_no_velocity", *REPLAY, *SEQUENCES, *SCALED],
    "rec_td3": ["system=ddpg/rec_td3", "env=gymnax/pendulum_no_velocity", *REPLAY, *SEQUENCES],
    "mpo": ["system=mpo/ff_mpo", "env=gymnax/pendulum", *REPLAY],
    "alphazero": ["system=search/ff_az", "env=gymnax/cartpole", *ALPHAZERO, *SHARDS],
    "alphazero_nested": ["system=search/ff_az", *NESTED, *ALPHAZERO, "system.normalize_observations=true"],
    # Rewards depend on the actions there.
    "sampled_alphazero": [
        *("system=search/ff_sampled_az", "env=gymnax/mountain_car_continuous", *ALPHAZERO, "system.num_samples=4")
    ],
    "muzero": ["system=search/ff_mz", "env=gymnax/cartpole", *MUZERO, "system.total_reanalyse_size=8"],
    # A small weight of values: their scaling magnifies rounding.
    "sampled_muzero": [
        *("system=search/ff_sampled_mz", "env=gymnax/pendulum", *MUZERO, "system.num_samples=4"),
        "system.value_scale=0.01",
    ],
    "tdmpc2": [
        *("system=tdmpc/td_mpc2", "env=gymnax/pendulum", *REPLAY, *NETWORK, *PLANS, "system.adam_eps=1e-3"),
        # Masks of dropout are drawn for all critics at once there.
        *("system.normalize_observations=true", "network.q_network.pre_torso.dropout_rate=0"),
        *(VALUED("reward"), VALUED("q")),
    ],
    # Two gradient steps: LaProp divides gradients by their size.
    "dreamer": [
        *(*TINY, "env=gymnax/catch", "arch.total_timesteps=80", "system.train_ratio=2"),
        *("system.lr_warmup_steps=1", "system.lr=1e-3"),
    ],
    "awr": ["system=awr/ff_awr", "env=gymnax/cartpole", "network=mlp_shared", *REPLAY],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "gpu"), [*((name, True) for name in RUNS), *((name, False) for name in ("ppo", "sac"))]
)
def test_two_updates_are_those_of_a_cpu(name, gpu, monkeypatch):
    monkeypatch.setitem(suites.SUITES, "nested", suites.Suite("support.nested", "jax", ""))
    overrides = [*SMALL, "arch.total_timesteps=256", "arch.num_evaluation=1", *RUNS[name]]
    _, expected = train(overrides)
    take_accelerator_forms(monkeypatch, gpu)
    _, state = train(overrides)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    is_leaf = lambda node: isinstance(node, FloatSum | RoundingErrors)  # noqa: E731
    compared = [jax.tree.map(_rounded, state, is_leaf=is_leaf) for state in (state, expected)]
    for leaf, other in zip(*map(jax.tree.leaves, compared), strict=True):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            continue
        np.testing.assert_allclose(leaf, other, rtol=2e-3, atol=2e-5)


def _rounded(node):
    """Join the parts of a sum, of which the lower one is only rounding; rounding errors of statistics count as zero."""
    if isinstance(node, RoundingErrors):
        return jax.tree.map(jnp.zeros_like, node)
    return node.total + node.low if isinstance(node, FloatSum) else node


def test_the_mesh_decides_on_the_platform():
    assert platform.on_cpu()
    assert not platform.on_gpu()
    mesh = jax.make_mesh((1,), ("device",)).abstract_mesh
    devices = (("NVIDIA H200", "cuda"), "gpu"), (("TPU v5 lite", "tpu"), "tpu"), (("cpu", "cpu"), "cpu"), (None, "cpu")
    for device, expected in devices:
        described = device and jax.sharding.AbstractDevice(device[0], None, device[1])
        with jax.sharding.use_abstract_mesh(mesh.update(abstract_device=described)):
            assert (platform.on_cpu(), platform.on_gpu()) == (expected == "cpu", expected == "gpu")
