"""Export of policies to StableHLO files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from stoix_like.errors import ConfigError
from stoix_like.storage.files import write_bytes

if TYPE_CHECKING:
    from stoix_like.inference.policy import Policy

PLATFORMS = ("cpu", "cuda", "tpu")
# Exported policies take raw key data of this implementation.
KEY_KIND = "threefry2x32"
_CHECKED_BATCHES = (1, 32)
# Endings of formats that other programs would try to read; the file is `jax.export`'s serialisation of StableHLO.
_OTHER_FORMATS = (
    *(".onnx", ".pt", ".pt2", ".pth", ".torchscript", ".tflite", ".keras", ".h5", ".hdf5", ".pb", ".safetensors"),
    *(".mlir", ".hlo", ".mlmodel", ".mlpackage", ".engine", ".plan", ".msgpack", ".pkl", ".pickle", ".npy", ".npz"),
    *(".gguf", ".json", ".yaml", ".yml", ".txt", ".zip", ".gif"),
)


def export_policy(policy: Policy, path: str | Path) -> Path:
    """Write a policy to a StableHLO file; see `Policy.export`.

    Args:
        policy: the policy.
        path: path of the file; overwritten if it exists.

    Returns:
        The path.

    Raises:
        ConfigError: if the path ends like a file of another format.
        RuntimeError: if the exported function differs from the policy on random observations; writes no file.
    """
    path = Path(path)
    _check_ending(path)

    def act(*inputs: jax.Array) -> Any:
        """Choose actions from plain arrays; the trained state is a constant of the program."""
        *arrays, key_data = inputs
        return policy.act_on(arrays, jax.random.wrap_key_data(key_data, impl=KEY_KIND))

    (batch,) = export.symbolic_shape("b", constraints=["b >= 1"])
    inputs = [jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for leaf in policy.argument_shapes.values()]
    key_data = jax.ShapeDtypeStruct((2,), jnp.uint32)
    written = export.export(jax.jit(act), platforms=PLATFORMS)(*inputs, key_data).serialize()
    _compare(policy, jax.jit(act), export.deserialize(written).call)
    write_bytes(path, written)
    return path


def _check_ending(path: Path) -> None:
    if path.suffix.lower() in _OTHER_FORMATS:
        raise ConfigError(
            f"path={path} ends like a {path.suffix} file, but holds StableHLO as jax.export writes it: use"
            f" {path.with_suffix('.stablehlo').name}"
        )


def _compare(policy: Policy, act: Callable[..., Any], exported: Callable[..., Any]) -> None:
    """Check that the exported function returns what the policy does on random arguments."""
    for batch in _CHECKED_BATCHES:
        key = jax.random.key(batch, impl=KEY_KIND)
        arguments = (*policy.random_arguments(key, batch), jax.random.key_data(key))
        for expected, found in zip(*(jax.tree.leaves(call(*arguments)) for call in (act, exported)), strict=True):
            if not _agree(np.asarray(found), np.asarray(expected)):
                raise RuntimeError(f"batch={batch}: the exported function and the policy differ on random observations")


def _agree(found: np.ndarray, expected: np.ndarray) -> bool:
    if expected.dtype.kind not in "fc":
        return found.dtype == expected.dtype and np.array_equal(found, expected)
    # Separate compilations may round differently.
    return found.dtype == expected.dtype and np.allclose(found, expected, rtol=1e-4, atol=1e-5)
