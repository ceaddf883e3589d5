import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Observation
from stoix_like.loggers import MultiLogger
from stoix_like.run.training_loop import TrainingLoop
from support.algorithms import make_algorithm
from support.collector import Collector
from support.keeper import ENVS, KEEPER, LENGTH, RUN, UPDATES
from support.scripted import check_sequence
from support.set_ups import setup_of, trained

LAYOUTS = {
    "one actor": ["arch.pipeline_queue_size=1"],
    "in turns": ["arch.pipeline_queue_size=0"],
    "two actors, one learner of two shards elsewhere": [
        *("arch.actor.actor_per_device=2", "arch.learner.device_ids=[1]", "arch.update_batch_size=2"),
        "arch.pipeline_queue_size=2",
    ],
    "an actor and a learner on each device": ["arch.actor.device_ids=[0,1]", "arch.learner.device_ids=[0,1]"],
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_learner_receives_the_transitions_that_happened(layout):
    setup = setup_of(*RUN, *KEEPER, *LAYOUTS[layout], "logger.every_updates=2")
    logger = Collector()
    loop = TrainingLoop(setup, MultiLogger([logger]))
    loop.train()
    setup.env.close()
    setup.eval_env.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actor")]
    arch, state = setup.config.arch, loop.state
    assert {device.id for device in state.shared["updates"].devices()} == set(arch.learner.device_ids)
    kept, carries = jax.tree.map(np.asarray, state.shards.local)
    lag = arch.pipeline_queue_size
    updates = np.maximum(np.arange(UPDATES) - lag, 0)
    np.testing.assert_array_equal(kept["updates"], np.broadcast_to(updates[:, None, None], kept["updates"].shape))
    # Every environment keeps its place, so that its carry counts on.
    np.testing.assert_array_equal(carries, np.broadcast_to(LENGTH * np.arange(UPDATES)[:, None], carries.shape))
    # [S, U, T, N, ...] → [U T, S N, ...]
    merged = {name: np.moveaxis(leaf, 0, 2) for name, leaf in kept.items()}
    steps = {name: leaf.reshape(UPDATES * LENGTH, ENVS, *leaf.shape[4:]) for name, leaf in merged.items()}
    before, names = steps["observation"], ("action", "reward", "terminated", "truncated", "next_observation")
    check_sequence(before[0], *(steps[name][:-1] for name in names), before[1:])
    np.testing.assert_array_equal(steps["is_first"], before[..., 1] == 0)
    assert len(np.unique(before[0, :, 3])) == ENVS
    blocks = [(0, 2), (2, 3), (3, 5), (5, 6)]
    rewards = [steps["reward"][start * LENGTH : end * LENGTH].mean() for start, end in blocks]
    assert [block["updates"] for block in logger.updates] == [end for _, end in blocks]
    assert [block["updates/reward"] for block in logger.updates] == pytest.approx(rewards)
    record = loop.history[-1]
    assert record["sebulba/policy_lag_max"] <= lag
    assert record["sebulba/policy_lag"] == pytest.approx(np.minimum(np.arange(UPDATES), lag)[UPDATES // 2 :].mean())
    assert record["train/episodes"] == (steps["terminated"] | steps["truncated"])[UPDATES // 2 * LENGTH :].sum()


BANDIT = [
    *(RUN[0], RUN[1], "env.scenario.name=support.scripted:Bandit-v0", "arch.total_num_envs=8", *RUN[4:]),
    *("system.rollout_length=8", "system.actor_lr=3e-2", "system.critic_lr=3e-2", "system.decay_learning_rates=false"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[8]" for name in ("actor", "critic")),
    *("arch.total_timesteps=6400", "arch.pipeline_queue_size=100", "arch.num_evaluation=1", "system.ent_coef=0"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "corrected"),
    [(["impala/ff_impala"], True), (["vpg/ff_reinforce", "system.vtrace=true"], True), (["vpg/ff_a2c"], False)],
)
def test_vtrace_evaluates_the_current_policy_where_the_first_one_acts(system, corrected):
    """The lag exceeds the run: the first policy, which takes both actions equally often, plays every rollout.

    The reward is the action, so the value of that policy is 1/2. V-trace converges to the value of the policy
    proportional to min(b, pi), b = 1/2, which for a pi(1) above 1/2 is 1/2 / (1/2 + pi(0)) = 1 / (3 - 2 pi(1)).
    """
    loop = trained(f"system={system[0]}", *system[1:], *BANDIT)
    loop.setup.env.close()
    loop.setup.eval_env.close()
    agent, params = make_algorithm(loop.setup), loop.state.shared.params
    observation = Observation(jnp.ones((1, 1)))
    pi = float(agent.networks.policy(params, observation).prob(jnp.ones((1,), int))[0])
    assert pi > 0.9
    value = 1.0 / (3.0 - 2.0 * pi) if corrected else 0.5
    assert float(agent.networks.values(params, observation)[0]) == pytest.approx(value, abs=0.1)


@pytest.mark.learn
@pytest.mark.optimized
@pytest.mark.parametrize("system", ["ppo/ff_ppo", "impala/ff_impala", "q_learning/ff_pqn"])
def test_learns_cart_pole(system, tmp_path):
    overrides = ["arch=sebulba", "env=envpool/cartpole", "arch.total_timesteps=3e5", "arch.num_evaluation=5"]
    result = stoix_like.train(system, [*overrides, "logger=silent"], run_dir=tmp_path / "run")
    assert result.summary["absolute/episode_return_mean"] > 450
