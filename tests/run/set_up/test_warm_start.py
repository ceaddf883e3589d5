import jax
import numpy as np
import pytest

import stoix_like
from stoix_like.errors import ConfigError
from stoix_like.loggers import MultiLogger
from stoix_like.policies.load import load_member, open_run
from stoix_like.run.set_up import warm_start
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.utils.jax_utils import take_member
from support.selections import first
from support.set_ups import loop_of, setup_of
from support.tiny_dreamer import TINY
from support.trained_runs import SMALL, select_untrained

PENDULUM = ["env=gymnax/pendulum", "env.time_limit=20", "arch.max_eval_steps=20", "system.normalize_observations=true"]
CRITIC = "network.critic_network.pre_torso.layer_sizes"


def configured(*overrides):
    return setup_of(*SMALL, "arch.total_timesteps=128", *overrides)


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_parameters_and_statistics_are_those_of_the_other_run(pendulum):
    setup = configured(*PENDULUM, f"arch.init_from={pendulum}", "arch.seed=9")
    other = load_member(open_run(pendulum), "best", None)
    source = warm_start.find(setup)
    assert (source.item, source.member, source.env_steps) == ("best", None, other.env_steps)
    arrays = source.read()
    assert {path.partition(".")[0] for path in arrays} == {"params", "statistics", "return_statistics"}
    leaves = jax.tree_util.tree_leaves_with_path(other.shared._replace(opt_states=()))
    assert len(leaves) == len(arrays)
    for path, leaf in leaves:
        np.testing.assert_array_equal(arrays[jax.tree_util.keystr(path, simple=True, separator=".")], leaf)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_new_run_starts_from_another(pendulum, size):
    setup = configured(*PENDULUM, f"arch.init_from={pendulum}", "arch.seed=9", f"arch.population.size={size}")
    fresh = TrainingLoop(setup, MultiLogger([]))
    loop = TrainingLoop(setup, MultiLogger([]))
    loop.warm_start(warm_start.find(setup))
    other = load_member(open_run(pendulum), "best", None).shared
    for index in range(size):
        state = loop.state.shared if size == 1 else take_member(loop.state.shared, index)
        assert_equal(state.params, other.params)
        assert_equal(state.statistics, other.statistics)
    assert_equal(loop.state.shared.opt_states, fresh.state.shared.opt_states)
    loop.train()
    assert loop.progress.updates == setup.plan.num_updates


@pytest.mark.slow
@pytest.mark.parametrize(("system", "learned"), [("mpo/ff_vmpo", "duals"), ("ppo/ff_ppo_penalty", "kl_coef")])
def test_learned_coefficients_are_taken_over_where_there_are_any(tmp_path, system, learned):
    given = [*SMALL, "arch.total_timesteps=256", "arch.num_evaluation=1", "system.normalize_rewards=false"]
    stoix_like.train(system, given, run_dir=tmp_path / "other")
    other = load_member(open_run(tmp_path / "other"), "best", None).shared
    for name, has_them in ((system, True), ("ppo/ff_ppo", False)):
        plain = "system.normalize_rewards=false"
        setup = configured(f"system={name}", plain, f"arch.init_from={tmp_path / 'other'}", "arch.seed=9")
        loop = TrainingLoop(setup, MultiLogger([]))
        fresh = loop.state.shared
        loop.warm_start(warm_start.find(setup))
        assert_equal(loop.state.shared.params, other.params)
        assert hasattr(fresh.own, learned) == has_them
        if has_them:
            assert_equal(getattr(loop.state.shared.own, learned), getattr(other.own, learned))
            pairs = zip(*(jax.tree.leaves(getattr(one.own, learned)) for one in (fresh, other)), strict=True)
            assert any(not np.array_equal(*pair) for pair in pairs)
    # A run without them: they start afresh.
    stoix_like.train("ppo/ff_ppo", given, run_dir=tmp_path / "ppo")
    warm_start.find(configured(f"system={system}", plain, f"arch.init_from={tmp_path / 'ppo'}"))


@pytest.mark.slow
def test_a_slow_critic_and_the_scale_of_returns_are_those_of_the_other_run(tmp_path):
    """A new slow critic would pull trained values back to those of random weights."""
    given = [*TINY, "env=gymnax/cartpole", "arch.total_timesteps=128", "arch.absolute_metric=false", "logger=silent"]
    given += ["arch.num_evaluation=1", "arch.num_eval_episodes=2", "arch.max_eval_steps=20", "system.lr_warmup_steps=1"]
    stoix_like.train("dreamer/dreamer_v3", given, run_dir=tmp_path / "other")
    other = load_member(open_run(tmp_path / "other"), "best", None).shared
    loop = loop_of(*given, f"arch.init_from={tmp_path / 'other'}", "arch.seed=9")
    fresh = loop.state.shared
    loop.warm_start(warm_start.find(loop.setup))
    assert_equal(loop.state.shared._replace(opt_state=()), other._replace(opt_state=()))
    assert_equal(loop.state.shared.opt_state, fresh.opt_state)
    assert float(np.abs(other.return_scale).max()) > 0.0


@pytest.mark.slow
def test_train_command(pendulum, tmp_path, capsys):
    overrides = [*SMALL, *PENDULUM, "arch.total_timesteps=128", "arch.num_evaluation=1", "logger.console.enabled=true"]
    result = stoix_like.train("ppo/ff_ppo", [*overrides, f"arch.init_from={pendulum}"], run_dir=tmp_path / "run")
    assert f"arch.init_from={pendulum}: best parameters, trained for" in capsys.readouterr().out.replace("\n", "")
    assert any(note.startswith(f"arch.init_from={pendulum}: best") for note in result.summary["notes"])
    assert result.run_dir != pendulum
    start = f"Result(ppo/ff_ppo on gymnax/Pendulum-v1: eval_return={result.eval_return:.6g} after 128 env steps"
    assert repr(result) == f"{start}, 2 evaluations, run_dir='{result.run_dir}')"
    assert stoix_like.resume(result.run_dir).eval_return == result.eval_return


@pytest.mark.slow
def test_the_best_member_is_taken_and_as_it_ended_without_trained_best_parameters(members, tmp_path):
    setup = configured("env.time_limit=30", f"arch.init_from={members}")
    source, other = warm_start.find(setup), load_member(open_run(members), "best", "best")
    assert (source.member, source.env_steps) == (other.member, other.env_steps)
    actor = other.shared.params.actor_params["params"]["torso"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(source.read()["params.actor_params.params.torso.Dense_0.kernel"], actor)
    setup = configured(f"arch.init_from={select_untrained(members, tmp_path / 'recorded', range(3))}")
    source, last = warm_start.find(setup), load_member(open_run(members), "last", "best")
    assert (source.item, source.member, source.env_steps) == ("shared", last.member, 128)


@pytest.mark.parametrize(
    ("overrides", "message"),
    first(
        3,
        [
            (["env=gymnax/cartpole", "system.normalize_observations=true"], r"is float32\[.*\] there and float32"),
            ([*PENDULUM, f"{CRITIC}=[9]"], r"critic_params.* float32\[8, 1\] there and float32\[9, 1\] here"),
            ([*PENDULUM, "system.normalize_observations=false"], "this run has no statistics"),
            ([*PENDULUM, "system.normalize_rewards=false"], "this run has no return_statistics"),
            ([*PENDULUM, f"{CRITIC}=[8,8]"], "that run has no params.critic_params"),
        ],
    ),
)
def test_parameters_that_do_not_fit_are_refused(pendulum, overrides, message):
    with pytest.raises(ConfigError, match=rf"arch.init_from={pendulum}: .*{message}"):
        warm_start.find(configured(*overrides, f"arch.init_from={pendulum}"))


def test_refused_before_anything_is_written(pendulum, tmp_path, refused):
    run_dir = tmp_path / "run"
    assert "there and" in refused("train", *SMALL, f"arch.init_from={pendulum}", f"hydra.run.dir={run_dir}")
    with pytest.raises(ConfigError, match="arch.init_from: .* holds no run"):
        stoix_like.train("ppo/ff_ppo", [*SMALL, f"arch.init_from={tmp_path}"], run_dir=run_dir)
    assert not run_dir.exists()
