"""Sebulba: what reaches the learner, how far actors run ahead, and how a run ends."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from collector import Collector
from scripted import check_sequence

import stoix_like
from stoix_like.base_types import Observation
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs import EnvConfig, ScenarioConfig, make
from stoix_like.envs.split_steps import SplitSteps
from stoix_like.errors import ConfigError
from stoix_like.loggers import MultiLogger
from stoix_like.run import experiment
from stoix_like.run.actors import Pipeline, Timing
from stoix_like.run.setup import set_up
from stoix_like.run.training_loop import TrainingLoop

LENGTH, ENVS, UPDATES = 5, 4, 6
RUN = [
    *("arch=sebulba", "env=gymnasium", "env.scenario.name=scripted:Scripted-v0", f"arch.total_num_envs={ENVS}"),
    *("arch.num_eval_episodes=2", "arch.absolute_metric=false", "arch.compile_cache=false", "logger=silent"),
]
KEEPER = [
    *toys.overrides(module="keeper", rollout_length=LENGTH),
    f"arch.total_timesteps={UPDATES * LENGTH * ENVS}",
    "arch.num_evaluation=2",
]


class Asked:
    """An actor that remembers what it was asked for and plays rollouts at once."""

    device = jax.devices()[0]

    def __init__(self):
        self.policies, self.taken, self.stopped = [], 0, False

    waiting = property(lambda self: len(self.policies) - self.taken)

    def start(self, key, name):
        assert not self.policies

    def ask(self, policy):
        self.policies.append(policy)

    def take(self):
        policy = self.policies[self.taken]
        self.taken += 1
        return float(policy.shared), Timing(policy.updates, 0.0, 1.0)

    def stop(self):
        self.stopped = True

    def join(self, timeout):
        assert self.stopped


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_the_policy_lag_bounds_the_rollouts_under_way(lag):
    actors, most, limit = [Asked(), Asked()], [], 7

    def learn(state, hyperparams, rollouts, new_interval):
        most.append(max(actor.waiting for actor in actors))
        return SimpleNamespace(shared=state.shared + 1, shards=state.shards), rollouts

    pipeline = Pipeline(lambda: actors, learn, lambda shared: shared, lag, steps_per_update=10)
    state = SimpleNamespace(shared=jnp.zeros(()), shards=SimpleNamespace(key=jax.random.split(jax.random.key(0), 1)))
    with pipeline.running(limit):
        for _ in range(limit):
            before = int(state.shared)
            state, rollouts = pipeline.train(state, {}, np.int32(1), np.bool_(True))
            # The policy after `before - lag` updates, whenever the actors had time to act.
            assert rollouts == (max(before - lag, 0),) * 2
            metrics = pipeline.metrics()
            assert metrics["sebulba/policy_lag"] == metrics["sebulba/policy_lag_max"] == min(before, lag)
            # All rollouts are ready at once, up to the last ones of the run.
            assert metrics["sebulba/rollouts_waiting"] == min(lag + 1, limit - before)
            assert metrics["sebulba/actor_steps_per_second"] == 10
    # While the learner updates, one rollout less; in all, those that the run learns from.
    assert max(most) == lag
    assert [len(actor.policies) for actor in actors] == [limit, limit]
    assert all(actor.stopped for actor in actors)


def test_a_split_step_equals_the_step_of_the_environment():
    changes = {"sticky_actions": 0.5, "frame_stack": 2, "step_count": True, "reward_clip": 10.0}
    env = make(EnvConfig("gymnasium", ScenarioConfig("scripted:Scripted-v0"), **changes))
    split, keys = SplitSteps(env), jax.random.split(jax.random.key(3), ENVS)
    step, host_action_of, finish = jax.jit(env.step), jax.jit(split.host_action), jax.jit(split.finish)
    batch, repeated = split.host.open(ENVS), 0
    expected = jax.jit(env.reset)(keys)
    got = jax.jit(split.start)(keys, batch.reset(split.host.seeds(keys)))
    for number in range(25):
        jax.tree.map(np.testing.assert_array_equal, got[1], expected[1])
        step_keys = jax.random.split(jax.random.key(number), ENVS)
        action = jax.random.randint(jax.random.key(100 + number), (ENVS,), 0, 3)
        host_action = host_action_of(step_keys, got[0], action)
        repeated += int((host_action != action).sum())
        expected = step(step_keys, expected[0], action)
        got = finish(step_keys, got[0], action, batch.step(host_action))
    assert repeated
    env.close()


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
    setup = set_up(parse_config(compose_config([*RUN, *KEEPER, *LAYOUTS[layout], "logger.every_updates=2"])))
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
    *(RUN[0], RUN[1], "env.scenario.name=bandit:Bandit-v0", "arch.total_num_envs=8", *RUN[4:]),
    *("system.rollout_length=8", "system.actor_lr=3e-2", "system.critic_lr=3e-2", "system.decay_learning_rates=false"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[8]" for name in ("actor", "critic")),
    *("arch.total_timesteps=6400", "arch.pipeline_queue_size=100", "arch.num_evaluation=1", "system.ent_coef=0"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "corrected"),
    [
        (["impala/ff_impala", "system.optimiser=adam"], True),
        (["vpg/ff_reinforce", "system.vtrace=true"], True),
        (["vpg/ff_a2c"], False),
    ],
)
def test_vtrace_evaluates_the_current_policy_where_the_first_one_acts(system, corrected):
    """The lag exceeds the run: the first policy, which takes both actions equally often, plays every rollout.

    The reward is the action, so the value of that policy is 1/2. V-trace converges to the value of the policy
    proportional to min(b, pi), b = 1/2, which for a pi(1) above 1/2 is 1/2 / (1/2 + pi(0)) = 1 / (3 - 2 pi(1)).
    """
    setup = set_up(parse_config(compose_config([f"system={system[0]}", *system[1:], *BANDIT])))
    loop = TrainingLoop(setup, MultiLogger([]))
    loop.train()
    setup.env.close()
    setup.eval_env.close()
    agent, params = setup.build_system().init.__self__, loop.state.shared.params
    observation = Observation(jnp.ones((1, 1)))
    pi = float(agent.actor.apply(params.actor_params, observation).prob(jnp.ones((1,), int))[0])
    assert pi > 0.9
    value = 1.0 / (3.0 - 2.0 * pi) if corrected else 0.5
    assert float(agent.critic.apply(params.critic_params, observation)[0]) == pytest.approx(value, abs=0.1)


@pytest.mark.slow
def test_an_exception_in_an_actor_ends_the_run_with_its_message(tmp_path):
    arguments = [*RUN[:-1], *KEEPER, "+env.kwargs.fail_at=4", f"hydra.run.dir={tmp_path / 'run'}"]
    support = str(Path(__file__).parents[1] / "support")
    path = os.pathsep.join([support, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "stoix_like", "train", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=300,
    )
    assert "Scripted-v0 failed: RuntimeError: the simulator exploded; stopped after 0 env steps, saved" in done.stderr
    assert done.returncode == 1


@pytest.mark.slow
def test_sigterm_saves_and_the_run_resumes_with_new_episodes(tmp_path, monkeypatch, capfd):
    train, calls = Pipeline.train, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)
        return train(*args)

    monkeypatch.setattr(Pipeline, "train", interrupted)
    with pytest.raises(SystemExit) as exit_:
        experiment.run(set_up(parse_config(compose_config([*RUN, *KEEPER]))), tmp_path / "run")
    assert exit_.value.code == 143
    saved = int(re.search(r"stopped after (\d+) env steps, saved", capfd.readouterr().err)[1])
    assert 0 < saved < UPDATES * LENGTH * ENVS
    result = stoix_like.resume(tmp_path / "run", ["logger=default"], trust=True)
    assert "without the episodes of its environments" in capfd.readouterr().out
    assert result.summary["updates"] == UPDATES


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["env=gymnax", "env.scenario.name=CartPole-v1"],
            "arch=sebulba steps environments on the host, and gymnax/CartPole-v1 runs on",
        ),
        (["arch.population.size=2"], "arch.population.size=2 does not fit arch=sebulba"),
        (["arch.actor.actor_per_device=3"], "arch.total_num_envs=4 must be a multiple of 3, 3 actor.*: use 3 or 6"),
        (["arch.learner.device_ids=[]"], r"arch.learner.device_ids=\[\] must name at least one device"),
        (["arch.actor.device_ids=[1,1]"], r"arch.actor.device_ids=\[1, 1\] must name .* none twice"),
        (["arch.actor.device_ids=[0,7]"], r"arch.actor.device_ids=\[0, 7\] needs more devices than there are: use"),
        (["arch.pipeline_queue_size=-1"], "arch.pipeline_queue_size=-1 is out of range"),
        (["arch.architecture_name=sebulbo"], "arch.architecture_name=sebulbo is not known: did you mean 'sebulba'"),
        (["+arch.num_devices=2"], "unknown key 'arch.num_devices'"),
        (["system.warmup_steps=5"], "system.warmup_steps=5: arch=sebulba has no warm-up"),
    ],
)
def test_what_cannot_run_is_refused(overrides, message):
    if overrides == ["system.warmup_steps=5"]:
        overrides = toys.overrides(module="keeper", rollout_length=LENGTH, warmup_steps=5)
    with pytest.raises(ConfigError, match=message):
        set_up(parse_config(compose_config([*RUN, *overrides])))


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize("system", ["ppo/ff_ppo", "impala/ff_impala", "q_learning/ff_pqn"])
def test_learns_cart_pole(system, tmp_path):
    overrides = ["arch=sebulba", "env=envpool/cartpole", "arch.total_timesteps=3e5", "arch.num_evaluation=5"]
    result = stoix_like.train(system, [*overrides, "logger=silent"], run_dir=tmp_path / "run")
    assert result.summary["absolute/episode_return_mean"] > 450
