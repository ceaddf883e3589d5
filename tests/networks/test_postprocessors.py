import importlib
import re
from pathlib import Path

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks import postprocessors
from stoix_like.networks.layers import StackedRNN
from support.selections import first

KEY = jax.random.key(0)
BOUNDS = (-2.0, 6.0)


def test_ranges_match_hand_computed_values():
    x, rows = np.float32([-1.0, 0.0, 0.5, 9.0]), np.float32([[1.0, 2.0, 5.0], [3.0, 3.0, 3.0]])

    @jax.jit
    def computed(x, rows):
        clipped = [postprocessors.clip_to_spec(x, *bounds) for bounds in ((-0.5, 0.25), (0.1, 0.7))]
        scaled = [scale(x, *BOUNDS) for scale in (postprocessors.rescale_to_spec, postprocessors.tanh_to_spec)]
        return *scaled, *clipped, postprocessors.min_max_normalize(rows)

    rescaled, squashed, clipped, near, normalized = map(np.asarray, computed(x, rows))
    np.testing.assert_allclose(rescaled, [-2.0, 2.0, 4.0, 6.0])
    np.testing.assert_allclose(squashed, 2.0 + 4.0 * np.tanh([-1.0, 0.0, 0.5, 9.0]), rtol=1e-6)
    np.testing.assert_allclose(clipped, [-0.5, 0.0, 0.25, 0.25])
    # 0.1 + (0.7 - 0.1) is above 0.7 in float32.
    assert near.max() == np.float32(0.7)
    np.testing.assert_allclose(normalized, [[0.0, 0.25, 1.0], [0.0, 0.0, 0.0]])


def test_postprocessed_samples_have_no_density():
    @jax.jit
    def computed():
        normal = distrax.Normal(jnp.zeros((3, 2)), jnp.ones((3, 2)))
        pi = postprocessors.ScalePostProcessor(*BOUNDS, postprocessors.tanh_to_spec).apply({}, normal)
        assert (pi.batch_shape, pi.event_shape) == ((3, 2), ())
        with pytest.raises(NotImplementedError, match="AffineTanhTransformedDistribution"):
            pi.log_prob(jnp.zeros((3, 2)))
        return *(of.sample(seed=KEY, sample_shape=(4,)) for of in (pi, normal)), pi.mode()

    samples, raw, mode = computed()
    np.testing.assert_allclose(samples, 2.0 + 4.0 * np.tanh(raw), rtol=1e-5)
    np.testing.assert_allclose(mode, np.full((3, 2), 2.0))


@pytest.mark.parametrize("cell", first(2, ["gru", nn.GRUCell, "lstm", "mingru"]))
def test_stacked_cells_equal_the_chain_of_cells(cell):
    stacked = StackedRNN(3, cell, num_layers=2)

    @jax.jit
    def outputs(x):
        states = stacked.initialize_carry(x.shape)
        params = stacked.init(KEY, states, x)
        with pytest.raises(ValueError, match="zip"):
            stacked.apply(params, states[:1], x)
        expected, chained = [], x
        for name, state, built in zip(sorted(params["params"]), states, stacked._cells(parent=None), strict=True):
            state, chained = built.apply({"params": params["params"][name]}, state, chained)
            expected.append(state)
        return stacked.apply(params, states, x), (tuple(expected), chained)

    (states, y), (expected, chained) = outputs(np.random.default_rng(0).normal(size=(5, 4)))
    assert (len(states), y.shape) == (2, (5, 3))
    jax.tree.map(np.testing.assert_array_equal, tuple(states), expected)
    np.testing.assert_array_equal(y, chained)


def documented_names():
    """Yield the modules, the name and the remark of each row of the guide."""
    page = Path(__file__).parents[2] / "docs" / "guides" / "coming_from_stoix.md"
    for section in page.read_text().split("\n## ")[1:]:
        heading, *lines = section.splitlines()
        modules = [f"stoix_like.{module}" for module in re.findall(r"`([\w.]+)`", heading)]
        for line in lines if modules else ():
            if line.startswith("| ") and not line.startswith("| name"):
                names, remark = line.strip("| ").split(" | ", 1)
                prefix = ""
                for name in re.findall(r"`([\w.]+)`", names):
                    prefix = name.rpartition(".")[0] or prefix
                    yield modules, prefix, name.rpartition(".")[2], remark


def exists(modules, prefix, name):
    parents = {module.rpartition(".")[0] for module in modules}
    paths = [f"{module}.{prefix}" for module in (*modules, *parents)] if prefix else modules
    for path in paths:
        try:
            if hasattr(importlib.import_module(path), name):
                return True
        except ImportError:
            continue
    return False


def test_the_guide_says_of_every_name_whether_it_is_here():
    rows = list(documented_names())
    assert len(rows) > 90
    wrong = [row[2] for row in rows if exists(*row[:3]) == row[3].startswith("not here")]
    assert wrong == []
