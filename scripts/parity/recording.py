"""Code that all recorders share: random weights, and files of arrays with the versions of what made them."""

import importlib.metadata
import sys
from pathlib import Path

import numpy as np

OBSERVATION, ACTION, ACTIONS = 3, 2, 3
BATCH, STEPS = 32, 4
RECORDED = Path(__file__).resolve().parents[2] / "tests" / "parity" / "recorded"


def flatten(tree, prefix=""):
    """Return the arrays of nested dictionaries by path, such as `batch/reward`."""
    if not isinstance(tree, dict):
        return {prefix: np.asarray(tree)}
    rows = {}
    for name, value in tree.items():
        rows |= flatten(value, f"{prefix}/{name}" if prefix else str(name))
    return rows


def save(name, tree, packages, commits=()):
    """Write nested dictionaries of arrays, and the versions of the packages that made them.

    Floats are rounded to float32, the precision of what is compared with them.
    """
    made_by = [f"{package} {importlib.metadata.version(package)}" for package in packages] + list(commits)
    arrays = flatten(tree)
    arrays = {key: value.astype(np.float32) if value.dtype == np.float64 else value for key, value in arrays.items()}
    RECORDED.mkdir(parents=True, exist_ok=True)
    path = RECORDED / f"{name}.npz"
    np.savez_compressed(path, made_by=np.asarray(", ".join(made_by)), **arrays)
    sys.stdout.write(f"{path.name}: {path.stat().st_size:,} bytes, {', '.join(made_by)}\n")


def round32(tree):
    """Round the arrays of nested dictionaries to float32, so that both sides start from the same numbers."""
    if isinstance(tree, dict):
        return {name: round32(value) for name, value in tree.items()}
    tree = np.asarray(tree)
    return tree.astype(np.float32).astype(np.float64) if tree.dtype.kind == "f" else tree


def random_weights(rng, shapes):
    """Draw weights by name: matrices in units of 1 / sqrt(inputs), vectors of deviation 0.1."""
    weights = {}
    for name, shape in shapes.items():
        scale = 1.0 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.1
        weights[name] = rng.normal(size=shape) * scale
    return round32(weights)


def make_batches(rng, discrete):
    """Draw the batches and the noise of all gradient steps, `[STEPS, BATCH, ...]`."""
    size = (STEPS, BATCH)
    action = rng.integers(ACTIONS, size=size) if discrete else rng.uniform(-0.9, 0.9, (*size, ACTION))
    return round32(
        {
            "observation": rng.normal(size=(*size, OBSERVATION)),
            "next_observation": rng.normal(size=(*size, OBSERVATION)),
            "action": action,
            "reward": rng.normal(size=size),
            "terminated": rng.uniform(size=size) < 0.2,
            "noise": rng.normal(size=(*size, ACTION)),
            "next_noise": rng.normal(size=(*size, ACTION)),
        }
    )
