"""A reader of `policy.npz` files that needs numpy alone: copy this file to where the policy runs."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def _sigmoid(x: Any) -> Any:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "softplus": lambda x: np.logaddexp(x, 0),
    "swish": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
}


def load(file: Any) -> Callable[..., np.ndarray]:
    """Return a function from observations `[B, ...]`, and legal actions `[B, A]` or None, to actions `[B, ...]`."""
    record = Path(f"{file}.json")  # written beside the file, with its checksum
    if record.is_file() and hashlib.sha256(Path(file).read_bytes()).hexdigest() not in record.read_text("utf-8"):
        raise ValueError(f"{file} is not the file that {record} describes: export the policy again")
    with np.load(file) as arrays:
        policy = dict(arrays)

    def act(observation: Any, action_mask: Any = None) -> np.ndarray:
        if action_mask is None and "action_mask" in policy["inputs"]:
            raise ValueError("action_mask=None, but this policy needs the legal actions: pass booleans [B, A]")
        x, wanted = np.asarray(observation), str(policy.get("dtype", np.asarray(observation).dtype))
        if not np.can_cast(x.dtype, wanted, "same_kind"):
            raise ValueError(f"the observation has dtype {x.dtype}, but this policy takes {wanted}")
        x = x.astype(np.float32) / (255 if wanted == "uint8" else 1)
        if "mean" in policy:
            x = np.clip((x - policy["mean"]) / policy["std"], -policy["clip"], policy["clip"])
        x = x.reshape(len(x), -1)
        for i, activation in enumerate(policy["activations"]):
            x = x @ policy[f"kernel_{i}"] + policy[f"bias_{i}"]
            if f"scale_{i}" in policy:  # layer normalisation
                x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
                x = x * policy[f"scale_{i}"] + policy[f"offset_{i}"]
            x = ACTIVATIONS[str(activation)](x)
        if policy["output"] == "argmax":
            if action_mask is not None:
                x = np.where(action_mask | ~action_mask.any(-1, keepdims=True), x, -np.inf)
            return (x.argmax(-1) + policy.get("first", 0)).astype(np.int32)
        x = policy["middle"] + policy["half_range"] * x.reshape(len(x), *policy["middle"].shape)
        return np.clip(x, policy["low"], policy["high"])

    return act
