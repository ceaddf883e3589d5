import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.run.programs.compile import Compiler, describe
from support.set_ups import loop_of
from support.trained_runs import TINY


@pytest.mark.slow
def test_the_best_parameters_survive_donation():
    loop = loop_of(*TINY, "arch.num_evaluation=2")
    # Parameters before the first update never remain the best.
    loop.advance(1)
    loop.evaluate()
    first = jax.device_get(loop.state.shared.params)
    loop.evaluations.best = loop.evaluations.best._replace(episode_return=np.asarray(math.inf))
    loop.advance(5)
    loop.evaluate()
    kept = jax.device_get(loop.evaluations.best.shared.params)
    jax.tree.map(np.testing.assert_array_equal, kept, first)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), kept, jax.device_get(loop.state.shared.params))
    assert any(jax.tree.leaves(changed))


def test_programs_are_compiled_and_timed():
    compiler = Compiler()
    first = compiler.start("first", jax.jit(lambda x: 2 * x), 3.0)
    second = compiler.start("second", jax.jit(jnp.sin), 0.0)
    assert (float(first()(3.0)), float(second()(0.0))) == (6.0, 0.0)
    compiler.close()
    assert {name: list(seconds) for name, seconds in compiler.seconds.items()} == {
        "first": ["trace", "lower", "compile"],
        "second": ["trace", "lower", "compile"],
    }
    # 1.25 is rounded to even.
    header, row = describe({"train": {"trace": 0.5, "lower": 1.25, "compile": 2.0}})
    assert header.split() == ["program", "trace", "lower", "compile", "all"]
    assert row.split() == ["train", "0.5", "s", "1.2", "s", "2.0", "s", "3.8", "s"]
