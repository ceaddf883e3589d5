"""Seeds of a single file, which are vmapped into one program, and its command line."""

import re

import jax
import jax.numpy as jnp
import pytest

from stoix_like.cli import eject


@pytest.mark.parametrize("system", eject.SCRIPTS)
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


@pytest.mark.parametrize("system", eject.SCRIPTS)
def test_settings_of_the_command_line_have_the_types_of_the_defaults(system, capsys):
    parse = eject.script_of(system).parse
    config = parse(["--layer_sizes", "[32,32]", "--total_timesteps", "3e9", "--gamma", "1"])
    assert (config.layer_sizes, config.total_timesteps, config.gamma) == ((32, 32), 3_000_000_000, 1)
    for name, value in {"layer_sizes": "64", "num_envs": "1.5", "decay_learning_rates": "0.1"}.items():
        if hasattr(config, name):
            with pytest.raises(SystemExit):
                parse([f"--{name}", value])
            assert f"argument --{name}: invalid" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["--total_timesteps", "2"])
    assert "--total_timesteps: fewer steps than one update takes" in capsys.readouterr().err
