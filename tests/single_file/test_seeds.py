import re
import runpy
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from stoix_like.lab import eject
from stoix_like.run.programs.functions import make_keys
from support.selections import select


@pytest.mark.parametrize("system", select(eject.SCRIPTS, quick=["ppo/ff_ppo"]))
def test_initial_weights_are_decomposed_for_one_seed_at_a_time(system, monkeypatch):
    """Batches of QR decompositions block each other for ever on a CPU with two cores (jax 0.10)."""
    script = eject.script_of(system)
    (algorithm,) = (kind for kind in vars(script).values() if hasattr(kind, "evaluate"))
    # Training itself decomposes nothing.
    monkeypatch.setattr(algorithm, "update", lambda self, learner: learner)
    monkeypatch.setattr(algorithm, "evaluate", lambda self, params, key: jnp.zeros(()))
    train = jax.jit(jax.vmap(lambda seed: script.train(script.Config(), seed)))
    shapes = re.findall(r"@lapack_sgeqrf_ffi\(.*: \(tensor<([\dx]+)xf32>\)", train.lower(jnp.arange(3)).as_text())
    assert len(shapes) > 1
    assert all(shape.count("x") == 1 for shape in shapes), shapes


@pytest.mark.parametrize("seed", [3, 2**31 + 5, 2**32 - 1])
@pytest.mark.parametrize("system", eject.SCRIPTS)
def test_every_seed_of_a_system_has_the_same_keys_in_the_file(system, seed, monkeypatch):
    script, seeds = eject.script_of(system), []
    monkeypatch.setattr(sys, "argv", [script.__file__, "--seed", str(seed)])
    with monkeypatch.context() as patched:
        patched.setattr(jax, "jit", lambda train: seeds.append)
        runpy.run_path(script.__file__, run_name="__main__")
    alone = SimpleNamespace(population=SimpleNamespace(seeds=(seed,)), plan=SimpleNamespace(num_shards=1))
    agent, shards, evaluation = make_keys(alone)
    for ours, theirs in zip((agent, shards[0], evaluation), jax.jit(script.split_seed)(*seeds), strict=True):
        assert jnp.array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))


@pytest.mark.parametrize("system", eject.SCRIPTS)
def test_settings_of_the_command_line_have_the_types_of_the_defaults_and_the_help_of_their_comments(system, capsys):
    config = eject.script_of(system).parse(["--layer_sizes", "[32,32]", "--total_timesteps", "3e9", "--gamma", "1"])
    assert (config.layer_sizes, config.total_timesteps, config.gamma) == ((32, 32), 3_000_000_000, 1)
    with pytest.raises(SystemExit):
        eject.script_of(system).parse(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "environment of gymnax with vectors as observations" in shown
    assert "discount factor per step (default: " in shown


def refusal(system, name, value, capsys):
    """Return what the command line of a single file answers to a setting."""
    with pytest.raises(SystemExit):
        eject.script_of(system).parse([f"--{name}", value])
    return capsys.readouterr().err.splitlines()[-1].partition("error: ")[2]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("gamma", "0.9x", "use float, such as 0.99"),
        ("layer_sizes", "[64", "use tuple[int from 1 to inf, ...], such as ("),
        ("layer_sizes", "[0]", "use tuple[int from 1 to inf, ...]"),
        ("total_timesteps", "inf", "use int from 1 to inf, such as 500000"),
        ("num_envs", "1.5", "use int from 1 to inf, such as 8"),
        ("num_envs", "0", "use int from 1 to inf, such as 8"),
        ("max_episode_steps", "many", "use int from 1 to inf | None, such as None"),
        ("seed", str(2**32), "use int from 0 to 4294967295, such as 42"),
        ("decay_learning_rates", "0.1", "use bool, such as True"),
    ],
)
@pytest.mark.parametrize("system", eject.SCRIPTS)
def test_a_value_of_another_type_is_answered_with_what_is_expected(system, name, value, expected, capsys):
    if hasattr(eject.script_of(system).Config, name):
        assert refusal(system, name, value, capsys).startswith(f"argument --{name}: {expected}")


@pytest.mark.parametrize(
    ("system", "name", "value", "expected"),
    [
        *((system, "total_timesteps", "2", "fewer steps than one update takes") for system in eject.SCRIPTS),
        *((system, "activation", "nope", "use the name of a function in jax.nn") for system in eject.SCRIPTS),
        *((system, "env_name", "Cart", "use an environment of gymnax with ") for system in eject.SCRIPTS),
        ("ppo/ff_ppo", "env_name", "Pendulum-v1", "use an environment of gymnax with discrete actions"),
        ("sac/ff_sac", "env_name", "CartPole-v1", "use an environment of gymnax with continuous actions"),
        ("ppo/ff_ppo", "num_minibatches", "3", "use a divisor of num_envs x rollout_length, which is at least 2"),
        ("q_learning/ff_pqn", "num_minibatches", "3", "use a divisor of num_envs x rollout_length"),
        ("ppo/rec_ppo", "num_minibatches", "3", "use a divisor of num_envs, and at least 2 steps of all environments"),
        ("q_learning/ff_dqn", "warmup_steps", "12", "use a multiple of rollout_length"),
        ("q_learning/ff_dqn", "total_buffer_size", "63", "use at least num_envs x rollout_length"),
        ("sac/ff_sac", "total_buffer_size", "7", "use at least num_envs x rollout_length"),
        ("search/ff_az", "rollout_length", "12", "use a multiple of sequence_period"),
        ("search/ff_az", "warmup_steps", "8", "use a multiple of rollout_length"),
        ("search/ff_az", "total_buffer_size", "255", "too small for a sequence of each environment"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_compiles(system, name, value, expected, capsys):
    assert refusal(system, name, value, capsys).startswith(f"--{name}: {expected}")


def test_searches_need_a_sequence_before_the_first_sample(capsys):
    # The first update finds 64 random steps of each environment, and a rollout of 32.
    assert eject.script_of("search/ff_az").parse(["--sequence_length", "96"]).sequence_length == 96
    assert refusal("search/ff_az", "sequence_length", "97", capsys) == "--warmup_steps: too few for a sequence"
