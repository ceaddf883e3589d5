import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.assembly import set_up_inference
from stoix_like.base_types import Observation
from stoix_like.errors import ConfigError
from stoix_like.run.set_up import teaching
from stoix_like.run.set_up.teaching import KEY, content_of
from support.recorded import set_key
from support.set_ups import config_of, setup_of
from support.trained_runs import SMALL, train_pendulum

PENDULUM = "env=gymnax/pendulum"


def student(*overrides):
    return setup_of("system=ppo/ff_ppo", *SMALL, "arch.total_timesteps=128", *overrides)


@pytest.fixture
def run_dir(tmp_path_factory):
    return train_pendulum(tmp_path_factory)


def test_the_best_policy_of_a_run_teaches_with_its_own_statistics(run_dir):
    setup = student(PENDULUM, f"system.teacher={run_dir}", "system.normalize_observations=false")
    views = jax.random.normal(jax.random.key(0), (2, 3, 3))
    # Torques are in [-2, 2], and the actions of the agent in [-1, 1].
    found = 2.0 * setup.spec.teacher.actions(Observation(views))
    policy = stoix_like.load_policy(run_dir, greedy=True)
    for step in range(2):
        np.testing.assert_allclose(found[step], policy(np.asarray(views[step])), rtol=1e-5)


def test_the_content_of_a_teacher_is_its_arrays_and_its_configuration(run_dir, tmp_path):
    moved, changed = (shutil.copytree(run_dir, tmp_path / name) for name in ("moved", "changed"))
    set_key(changed, "network.actor_network.pre_torso.activation", "relu")
    found = [student(PENDULUM, f"system.teacher={each}").contents[KEY] for each in (run_dir, moved, changed)]
    assert found[0] == found[1] != found[2]
    config = config_of("system=ppo/ff_ppo")
    one, other = ({"w": jnp.full(2, value)} for value in (1.0, 2.0))
    assert content_of(config, {}, one) == content_of(config, {}, one) != content_of(config, {}, other)


@pytest.mark.slow
def test_teachers_that_do_not_fit_are_refused(run_dir, tmp_path):
    with pytest.raises(ConfigError, match=r"acts on observation \(3,\) and .*, and this run on observation \(4,\) and"):
        student("env=gymnax/cartpole", f"system.teacher={run_dir}")
    with pytest.raises(ConfigError, match=r"system.teacher"):
        student(PENDULUM, f"system.teacher={tmp_path}/none")
    with pytest.raises(ConfigError, match=r"acts on .* from -1 to 1, and this run on .* from -2 to 2"):
        student(PENDULUM, f"system.teacher={run_dir}", "env.rescale_actions=false")
    empty = shutil.copytree(run_dir, tmp_path / "empty", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(ConfigError, match=r"system.teacher.* holds no checkpoint"):
        student(PENDULUM, f"system.teacher={empty}")


@pytest.mark.slow
def test_a_teacher_of_another_environment_is_named(run_dir, tmp_path):
    words, prefix = [PENDULUM, "env.time_limit=20"], f"system.teacher={run_dir} was trained"
    same = student(*words, f"system.teacher={run_dir}")
    assert not any("system.teacher" in note for note in same.plan.notes)
    longer = student(words[0], "env.time_limit=30", f"system.teacher={run_dir}")
    assert f"{prefix} with env.time_limit=20, and the run has 30" in longer.plan.notes
    # Only the recorded name of the run's environment differs.
    moved = shutil.copytree(run_dir, tmp_path / "moved")
    set_key(moved, "env.scenario.task_name", "Pendulum-v9")
    note = f"system.teacher={moved} was trained on gymnax/Pendulum-v9, and this run trains on gymnax/Pendulum-v1"
    assert note in student(*words, f"system.teacher={moved}").plan.notes


def test_networks_of_each_agent_teach_the_same_number_of_agents(monkeypatch):
    words = ["system=ppo/ff_ppo", "env=own", "env._target_=support.games.Match", "system.teacher=run"]
    setup = set_up_inference(config_of(*words, "network.share=false"))
    monkeypatch.setattr(teaching, "open_run", lambda *args, **kwargs: SimpleNamespace(setup=setup))
    monkeypatch.setattr(teaching, "load_member", lambda *args: SimpleNamespace(hyperparams={}, shared=()))
    config, spec = config_of(*words), setup.spec
    assert teaching.load_teacher(config, spec).teacher is not None
    with pytest.raises(ConfigError, match=r"each of 2 agents \(network.share=false\), and this run has num_agents=3"):
        teaching.load_teacher(config, spec._replace(num_agents=3))


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo/ff_ppo", "vpg/ff_reinforce", "impala/rec_impala", "mpo/ff_vmpo"])
def test_kickstarting_lowers_the_cross_entropy(system, run_dir, tmp_path):
    """The weight stays: what is learned is to act as the teacher does."""
    words = [PENDULUM, f"system.teacher={run_dir}", "system.teacher_coef=10"]
    words += ["system.final_teacher_coef=10", "system.decay_learning_rates=false", "system.reward_scale=1e-6"]
    words += ["arch.num_evaluation=4", "arch.num_eval_episodes=2", "arch.total_timesteps=2e4"]
    words += ["arch.absolute_metric=false"]
    result = stoix_like.train(system, [*words, "logger=silent"], run_dir=tmp_path / "run")
    losses = [record["train/teacher_cross_entropy"] for record in result.history[1:]]
    assert losses[-1] < losses[0]
