"""Export of policies to files: StableHLO, ONNX, and arrays for numpy, each with a description in JSON next to it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stoix_like.errors import ConfigError, nearest
from stoix_like.policies import contract
from stoix_like.policies.exportable import Exportable
from stoix_like.policies.formats.stablehlo import KEY_KIND, act_of
from stoix_like.storage.files import write_bytes

FORMATS = ("stablehlo", "onnx", "npz")
_CHECKED_BATCHES = (1, 32)


def export_policy(policy: Exportable, path: str | Path, format: str | None = None) -> Path:
    """Write a policy to a file, and its description to `<path>.json`.

    `format`: one of `FORMATS`; None: from the ending, or `stablehlo`.
    """
    path = Path(path)
    chosen = choose_format(path, format)
    if chosen != "stablehlo" and not policy.greedy:
        instead = "--greedy, greedy=True, or stablehlo" if policy.has_mode else "stablehlo"
        reader = "ONNX" if chosen == "onnx" else "numpy"
        raise ConfigError(f"format={chosen}: {reader} has no random numbers of jax: use {instead}")
    module = importlib.import_module(f"stoix_like.policies.formats.{chosen}")
    written = module.encode(policy)
    # What runs elsewhere multiplies in float32, whatever the accelerator of this machine does.
    with jax.default_matmul_precision("highest") if chosen != "stablehlo" else contextlib.nullcontext():
        _compare(policy, module.decode(written))
    write_bytes(path, written)
    contract.write(policy, path, chosen, written)
    return path


def choose_format(path: Path, format: str | None = None) -> str:
    """Return the format of a file. `format`: one of `FORMATS`; None: from the ending, or `stablehlo`."""
    ending = path.suffix.lower().removeprefix(".")
    if format is None and ending not in ("", *FORMATS):
        raise ConfigError(f"path={path} has an unknown ending: use .{', .'.join(FORMATS)}, or name the format")
    format = format or ending or "stablehlo"
    if format not in FORMATS:
        raise ConfigError(f"format={format} is unknown: {nearest(format, FORMATS)}")
    if ending != format and ending in FORMATS:
        raise ConfigError(
            f"path={path} ends like a {path.suffix} file, but holds {format}: use {path.with_suffix('.' + format).name}"
        )
    return format


def _compare(policy: Exportable, exported: Callable[..., Any]) -> None:
    """Check that the exported function returns what the policy does on random arguments."""
    act = jax.jit(act_of(policy))
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
