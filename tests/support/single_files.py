"""Single files beside the systems that they show: the same overrides, the same seed, the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np

import stoix_like
from stoix_like.cli import eject
from stoix_like.config import parse_config
from support.composed import compose_config
from support.programs import train


def settings(system, overrides):
    return eject.script_of(system), eject.settings_of(parse_config(compose_config([f"system={system}", *overrides])))


def train_both(system, algorithm, overrides):
    """Train a system, and the class of this name in its single file; return its shared state, and the learner."""
    _, state = train([f"system={system}", *overrides])
    script, config = settings(system, overrides)
    learned = getattr(script, algorithm)(config)

    @jax.jit
    def run(seed):
        params_key, key, _ = script.split_seed(seed)
        first = learned.init(params_key, key)
        return jax.lax.fori_loop(0, config.num_updates, lambda _, learner: learned.update(learner), first)

    return state.shared, run(config.seed)


def assert_same_bits(ours, theirs):
    ours, theirs = jax.device_get((ours, theirs))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(ours))


def assert_close(ours, theirs, tolerance):
    """Check that each array of two trees differs by at most a share of its largest entry."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    assert max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(a))) for a, b in pairs) < tolerance


def assert_same_returns(system, overrides, tmp_path, rtol=1e-6):
    result = stoix_like.train(system, [*overrides, "logger=silent", "checkpoint.keep=0"], run_dir=tmp_path / "run")
    ours = [record["eval/episode_return_mean"] for record in result.history]
    script, config = settings(system, overrides)
    _, theirs = jax.jit(lambda seed: script.train(config, seed))(config.seed)
    np.testing.assert_allclose(ours, theirs, rtol=rtol)
    assert len(set(ours)) > 1
