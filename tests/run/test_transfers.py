"""Nothing moves between host and device within a run, but for what the host passes and reads explicitly."""

import jax
import pytest

from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.loggers import MultiLogger
from stoix_like.run.setup import set_up
from stoix_like.run.training_loop import TrainingLoop

SMALL = [
    *("env=probe/observed_value", "network.actor_network.pre_torso.layer_sizes=[8]"),
    *("system.rollout_length=4", "system.epochs=1", "arch.total_num_envs=4", "arch.num_eval_episodes=2"),
    *("arch.total_timesteps=320", "arch.num_evaluation=3"),
]
OFF_POLICY = ["system.warmup_steps=8", "system.total_buffer_size=256", "system.total_batch_size=8"]
PPO = ["system=ppo/ff_ppo", "network.critic_network.pre_torso.layer_sizes=[8]", "system.num_minibatches=1"]
DQN = ["system=q_learning/ff_dqn", *OFF_POLICY]
SAC = ["system=sac/ff_sac", "env=probe/continuous_policy", *OFF_POLICY]
POPULATION = ["arch.population.hyperparams={actor_lr: {log_uniform: [1e-4, 1e-2]}}", "arch.population.size=3"]
RUNS = {
    "off-policy": DQN,
    "off-policy population": [*SAC, *POPULATION],
    "on-policy population": [*PPO, *POPULATION, "arch.population.pbt.every_evals=1"],
    "recurrent shards": [*PPO, "system=ppo/rec_ppo", "arch.num_devices=2", "logger.every_updates=2"],
}
CASES = [pytest.param(run, marks=() if run == "off-policy" else pytest.mark.slow) for run in RUNS]


@pytest.mark.parametrize("run", CASES)
def test_a_run_transfers_nothing_implicitly_and_donates_its_whole_state(run):
    overrides = [*SMALL, *RUNS[run]]
    loop = TrainingLoop(set_up(parse_config(compose_config(overrides))), MultiLogger([]))
    before = loop.state
    with jax.transfer_guard("disallow"):
        loop.train()
    kept = [jax.tree_util.keystr(path) for path, leaf in jax.tree.leaves_with_path(before) if not leaf.is_deleted()]
    assert not kept
    assert loop.progress.updates == loop.setup.plan.num_updates > 1
