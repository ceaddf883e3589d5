"""Export of policies to StableHLO files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from stoix_like.storage.files import write_bytes

if TYPE_CHECKING:
    from stoix_like.inference.policy import Policy

PLATFORMS = ("cpu", "cuda", "tpu")
# Exported policies take raw key data of this implementation.
KEY_KIND = "threefry2x32"
_CHECKED_BATCHES = (1, 32)


def export_policy(policy: Policy, path: str | Path) -> Path:
    """Write a policy to a StableHLO file; see `Policy.export`.

    Args:
        policy: the policy.
        path: path of the file; overwritten if it exists.

    Returns:
        The path.

    Raises:
        RuntimeError: if the exported function differs from the policy on random observations; writes no file.
    """
    path = Path(path)

    def act(*inputs: jax.Array) -> jax.Array:
        """Choose actions from plain arrays; the trained state is a constant of the program."""
        *fields, key_data = inputs
        return policy.act(policy.observation_of(fields), jax.random.wrap_key_data(key_data, impl=KEY_KIND))

    (batch,) = export.symbolic_shape("b", constraints=["b >= 1"])
    inputs = [jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for leaf in policy.input_shapes.values()]
    key_data = jax.ShapeDtypeStruct((2,), jnp.uint32)
    written = export.export(jax.jit(act), platforms=PLATFORMS)(*inputs, key_data).serialize()
    _compare(policy, export.deserialize(written).call)
    write_bytes(path, written)
    return path


def _compare(policy: Policy, exported: Callable[..., jax.Array]) -> None:
    """Check that the exported function returns the policy's actions on random observations."""
    for batch in _CHECKED_BATCHES:
        key = jax.random.key(batch, impl=KEY_KIND)
        observation = policy.random_observations(key, batch)
        expected = np.asarray(policy(observation, key))
        fields = (getattr(observation, name) for name in policy.inputs)
        found = np.asarray(exported(*fields, jax.random.key_data(key)))
        # Separate compilations may round differently.
        close = partial(np.allclose, rtol=1e-4, atol=1e-5) if expected.dtype.kind == "f" else np.array_equal
        if found.dtype != expected.dtype or not close(found, expected):
            raise RuntimeError(f"batch={batch}: the exported function and the policy differ on random observations")
