"""Single files beside the systems that they show: the same overrides, the same seed, the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.lab import eject
from support.programs import make_program, train
from support.selections import first
from support.set_ups import config_of

EPISODES = ["+env.params.max_steps_in_episode=12", "arch.total_num_envs=4", "arch.seed=3"]
# The class in the single file, and overrides: of buffers that are full after half of the updates, and of episodes of
# which some are truncated, and some terminate: a random policy keeps the pole up for 9 steps at least.
SMALL = {
    "ppo/ff_ppo": ("PPO", ["system.normalize_rewards=false", "arch.total_timesteps=1280", "system.rollout_length=32"]),
    "ppo/rec_ppo": ("RecurrentPPO", ["arch.total_timesteps=1280", "system.rollout_length=32"]),
    "q_learning/ff_dqn": (
        "DQN",
        [
            *("arch.total_timesteps=576", "system.warmup_steps=64"),
            *("system.total_buffer_size=400", "system.total_batch_size=16"),
        ],
    ),
    "q_learning/ff_pqn": ("PQN", ["arch.total_timesteps=1280", "system.exploration_fraction=0.5"]),
    "sac/ff_sac": (
        "SAC",
        [
            *("env=gymnax/pendulum", "arch.total_timesteps=60", "system.warmup_steps=14"),
            *("system.total_buffer_size=80", "system.total_batch_size=16"),
            *(f"network.{name}_network.pre_torso.layer_sizes=[32,32]" for name in ("actor", "q")),
        ],
    ),
    "search/ff_az": (
        "AlphaZero",
        [
            *("arch.total_timesteps=448", "system.rollout_length=16", "system.warmup_steps=48"),
            *("system.total_buffer_size=320", "system.total_batch_size=8", "system.num_simulations=8"),
            *("system.sequence_length=16", "system.n_step=5"),
        ],
    ),
}
AT_0 = "arch.seed=0"
CONSTANT = "system.decay_learning_rates=false"
ACROBOT = [CONSTANT, "system.reward_scale=0.1", "env=gymnax/acrobot", AT_0]
# The tolerance is None where all bits are the same, as XLA's newer emitters of fusions compile them.
RUNS = [
    ("ppo/ff_ppo", [], 1e-5),
    ("ppo/ff_ppo", [], None),
    (
        "ppo/ff_ppo",
        [
            *(CONSTANT, "system.ent_coef=0.0", AT_0),
            *(f"network.{name}_network.pre_torso.activation=relu" for name in ("actor", "critic")),
        ],
        None,
    ),
    # The system keeps the rounding errors of its running statistics.
    ("ppo/ff_ppo", ["system.normalize_rewards=true"], 1e-5),
    # The system has a gradient of gated recurrent units of its own, which sums in another order.
    ("ppo/rec_ppo", [], 1e-5),
    ("ppo/rec_ppo", [CONSTANT, "system.normalize_rewards=false", AT_0], 1e-5),
    ("q_learning/ff_dqn", [], None),
    ("q_learning/ff_dqn", [*ACROBOT, "system.exploration_fraction=0.0"], None),
    ("q_learning/ff_pqn", [], None),
    ("q_learning/ff_pqn", [*ACROBOT, "system.q_lambda=0.5"], None),
    ("sac/ff_sac", [], None),
    (
        "sac/ff_sac",
        [
            *("system.reward_scale=0.1", "system.tau=0.1", "system.target_entropy_scale=0.5", "system.init_alpha=0.3"),
            *("network.actor_network.action_head.min_scale=0.1", AT_0),
        ],
        None,
    ),
    # Now and then the compiler rounds an action in another way, where it joins other operations.
    ("sac/ff_sac", ["arch.total_timesteps=96"], 1e-5),
    # Returns of n steps are summed in another order.
    ("search/ff_az", ["arch.total_timesteps=832"], 1e-5),
]
BUDGET = ["arch.num_evaluation=4", "arch.num_eval_episodes=8", "arch.total_timesteps=20480"]


def overrides_of(system):
    return [*EPISODES, *SMALL[system][1]]


def pairs(system, shared, learner):
    params, theirs = shared.params, learner.params
    if system == "sac/ff_sac":
        return (params.actor_params, *params.q_params, params.log_alpha), tuple(theirs)
    if system == "q_learning/ff_dqn":
        return tuple(params), (theirs, learner.target_params)
    return (params, theirs) if system == "q_learning/ff_pqn" else (tuple(params), (theirs["actor"], theirs["critic"]))


def settings(system, overrides):
    """Return the single file of a system, and its settings."""
    return eject.script_of(system), eject.settings_of(config_of(f"system={system}", *overrides))


def trained_pairs(system, *overrides):
    """Train a system, and the class of its single file; return the parameters of both."""
    overrides = [*overrides_of(system), *overrides]
    _, state = train([f"system={system}", *overrides])
    script, config = settings(system, overrides)
    learned = getattr(script, SMALL[system][0])(config)

    @jax.jit
    def run(seed):
        params_key, key, _ = script.split_seed(seed)
        first = learned.init(params_key, key)
        return jax.lax.fori_loop(0, config.num_updates, lambda _, learner: learned.update(learner), first)

    return pairs(system, state.shared, run(config.seed))


def assert_same_bits(ours, theirs):
    """Check that two trees of parameters are the same, bit for bit, and finite."""
    ours, theirs = jax.device_get((ours, theirs))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(ours))


def assert_close(ours, theirs, tolerance):
    """Check that each array of two trees differs by at most a share of its largest entry."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    assert max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(a))) for a, b in pairs) < tolerance


@pytest.mark.parametrize(("system", "overrides", "tolerance"), first(1, RUNS))
def test_parameters_after_ten_updates_are_those_of_the_system(system, overrides, tolerance):
    found = trained_pairs(system, *overrides)
    assert_same_bits(*found) if tolerance is None else assert_close(*found, tolerance)


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("system", "steps", "tolerance"),
    [
        *(("ppo/ff_ppo", 128, 1e-6), ("ppo/rec_ppo", 128, 1e-5), ("q_learning/ff_dqn", 288, 1e-6)),
        *(("q_learning/ff_pqn", 128, 1e-6), ("sac/ff_sac", 60, 1e-6), ("search/ff_az", 256, 1e-5)),
    ],
)
def test_compiled_with_all_optimisations_parameters_differ_by_rounding(system, steps, tolerance):
    assert_close(*trained_pairs(system, f"arch.total_timesteps={steps}"), tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo/rec_ppo", "search/ff_az"])
def test_parameters_at_first_and_the_first_searches_are_those_of_the_system(system):
    overrides = overrides_of(system)
    _, program, arguments = make_program([f"system={system}", *overrides])
    script, config = settings(system, overrides)
    params_key, key, _ = script.split_seed(config.seed)
    learner = jax.jit(getattr(script, SMALL[system][0])(config).init)(params_key, key)
    state = program.init(*arguments)
    assert_same_bits(*pairs(system, state.shared, learner))
    if system == "search/ff_az":
        steps, ours = state.shards.local.experience.steps, learner.replay.blocks
        # Those of the system have an axis of shards.
        assert jnp.allclose(steps.extras.weights.reshape(ours.probs.shape), ours.probs, atol=1e-6)
        for name in ("reward", "terminated"):
            assert jnp.array_equal(getattr(steps, name).reshape(ours.reward.shape), getattr(ours, name))
        assert ours.truncated.any()
        assert ours.terminated.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "overrides", "tolerance"),
    [
        ("ppo/ff_ppo", [*BUDGET, "system.normalize_rewards=false"], 1e-6),
        ("ppo/rec_ppo", [*BUDGET, "arch.total_timesteps=4096", "arch.num_evaluation=2"], 1e-6),
        ("q_learning/ff_dqn", BUDGET, 1e-6),
        ("q_learning/ff_pqn", BUDGET, 1e-6),
        (
            "sac/ff_sac",
            [
                *("env=gymnax/pendulum", *BUDGET, "arch.total_timesteps=1536", "arch.num_evaluation=2"),
                *(f"network.{name}_network.pre_torso.layer_sizes=[64,64]" for name in ("actor", "q")),
            ],
            1e-3,
        ),
        (
            "search/ff_az",
            [
                *(*overrides_of("search/ff_az"), "arch.total_timesteps=832", "arch.num_evaluation=2"),
                *("arch.num_eval_episodes=4", "system.evaluation_simulations=4"),
            ],
            1e-6,
        ),
    ],
)
def test_evaluations_of_a_run_have_the_same_returns(system, overrides, tolerance, tmp_path):
    result = stoix_like.train(system, [*overrides, "logger=silent", "checkpoint.keep=0"], run_dir=tmp_path / "run")
    ours = [record["eval/episode_return_mean"] for record in result.history]
    script, config = settings(system, overrides)
    _, theirs = jax.jit(lambda seed: script.train(config, seed))(config.seed)
    np.testing.assert_allclose(ours, theirs, rtol=tolerance)
    assert len(set(ours)) > 1
