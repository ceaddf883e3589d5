"""Policies of multilayer perceptrons as arrays, which `numpy_policy` runs.

```
x_0 = clip((observation - mean) / std, -clip, clip)
x_i+1 = activations[i](norm(x_i kernel_i + bias_i))
action = first + argmax x_n,  or  clip(middle + half_range x_n, low, high)
```
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.envs.spaces import Box, entries, first_choices
from stoix_like.errors import ConfigError
from stoix_like.networks import heads, inputs
from stoix_like.networks.base import FeedForwardActor
from stoix_like.networks.heads.base import FreeParameter
from stoix_like.networks.normalisation import LayerNorm
from stoix_like.networks.torso import MLPTorso
from stoix_like.policies.exportable import Exportable
from stoix_like.policies.formats import numpy_policy
from stoix_like.systems.parts.normalizer import MAX_ABS_VALUE

_DISCRETE = (heads.CategoricalHead, heads.DiscreteQNetworkHead)
_NORMAL = (heads.NormalAffineTanhDistributionHead, heads.MultivariateNormalDiagHead, heads.StateDependentNoiseHead)
_HEADS = (*_DISCRETE, *_NORMAL, heads.DeterministicHead)
# What changes nothing that a greedy policy computes, or only the shape of its input.
_INPUTS = (inputs.ArrayInput, inputs.FeatureInput, inputs.FlattenInput)
_TRANSPARENT = (FeedForwardActor, *_INPUTS, nn.Dropout, FreeParameter)
_Arrays = dict[str, Any]


def encode(policy: Exportable) -> bytes:
    """Return the weights, the normalisation and the scaling of a greedy policy."""
    names = list(policy.argument_shapes)
    view, *others = [name for name in names if name not in ("action_mask", "step_count")]
    if others:
        raise _misfit(policy, f"the inputs {view} and {', '.join(others)}")
    modules = _calls(policy)
    statistics: Any = getattr(policy.shared, "statistics", ())
    dtype = str(policy.argument_shapes[view].dtype)
    arrays = {"inputs": names, "dtype": dtype, **_layers(policy, modules), **_output(policy, modules[-2][0])}
    if statistics != () and dtype != "uint8":
        mean, std = (entries(tree, "agent_view")[view] for tree in (statistics.mean, statistics.std))
        arrays |= {"mean": mean, "std": std, "clip": np.float32(MAX_ABS_VALUE)}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{name: np.asarray(array) for name, array in arrays.items()})
    return file.getvalue()


def decode(content: bytes) -> Callable[..., Any]:
    """Return the function that a file holds. Returns a function of arrays `[B, ...]` and key data, which it ignores."""
    with np.load(io.BytesIO(content)) as arrays:
        names = arrays["inputs"].tolist()
    act = numpy_policy.load(io.BytesIO(content))

    def call(*given: Any) -> Any:
        named = dict(zip(names, map(np.asarray, given), strict=False))
        view = next(array for name, array in named.items() if name.startswith("agent_view"))
        return act(view, named.get("action_mask"))

    return call


def _calls(policy: Exportable) -> list[tuple[nn.Module, Any]]:
    """Return the torso, the head and their layers with their parameters, in the order in which an action needs them."""
    found: list[tuple[nn.Module, Any]] = []

    def record(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        if context.method_name == "__call__" and type(context.module) not in _TRANSPARENT:
            found.append((context.module, context.module.variables.get("params", {})))
        return call(*args, **kwargs)

    key = jax.random.key(0)
    with nn.intercept_methods(record):
        policy.act_on(policy.random_arguments(key, 1), key)
    for module, _ in found:
        if type(module) not in (*_HEADS, MLPTorso, nn.Dense, LayerNorm):
            raise _misfit(policy, f"a {type(module).__name__}")
        if getattr(module, "dtype", None) not in (None, "float32"):
            raise _misfit(policy, f"layers that compute in {module.dtype}")
    if [type(module) for module, _ in found[-2:]] not in [[head, nn.Dense] for head in _HEADS]:
        raise _misfit(policy, "another order of layers")
    return found


def _layers(policy: Exportable, modules: list[tuple[nn.Module, Any]]) -> _Arrays:
    """Return the arrays of each layer, and the names of the activations."""
    arrays: _Arrays = {}
    activations: list[str] = []
    following: list[str] = []
    for module, params in modules:
        number = len(activations) - 1
        if isinstance(module, MLPTorso):
            following = [module.activation] * len(module.layer_sizes)
            if following and not module.activate_final:
                following[-1] = "none"
        elif isinstance(module, _HEADS):
            following = ["tanh" if _is_squashed(module) else "none"]
        elif isinstance(module, nn.Dense):
            activations.append(following.pop(0))
            arrays |= {f"{name}_{number + 1}": params[name] for name in ("kernel", "bias")}
        elif isinstance(module, LayerNorm):
            arrays |= {f"scale_{number}": params["scale"], f"offset_{number}": params["bias"]}
    if unknown := [name for name in activations if name not in numpy_policy.ACTIVATIONS]:
        raise _misfit(policy, f"the activation {unknown[0]}")
    if isinstance(policy.action_space, Box):
        # A spread of actions that is computed by the same layer comes after their location.
        last, size = len(activations) - 1, math.prod(policy.action_space.shape)
        arrays |= {f"{name}_{last}": arrays[f"{name}_{last}"][..., :size] for name in ("kernel", "bias")}
    return arrays | {"activations": activations}


def _output(policy: Exportable, head: Any) -> _Arrays:
    """Return how an action follows from the output of the last layer."""
    own: Any = policy.action_space
    if isinstance(head, _DISCRETE):
        return {"output": "argmax", "first": first_choices(own)}
    space: Any = policy.inner_action_space
    shape, largest = space.shape, np.finfo(np.float32).max
    low, high = (np.asarray(jnp.broadcast_to(bound, shape), np.float32) for bound in (space.low, space.high))
    if not space.bounded:
        low, high = np.full(shape, -1.0, np.float32), np.full(shape, 1.0, np.float32)
    least, lower, upper, most = (
        np.asarray(policy.native_action(jnp.broadcast_to(jnp.asarray(action, space.dtype), (1, *shape))))[0]
        for action in (-largest, low, high, largest)
    )
    if not space.bounded:  # not rescaled; clipped actions of a partly bounded space say nothing about the slope
        lower, upper = low, high
    slope = (upper - lower) / np.where(high > low, high - low, 1.0)  # entries of one value have one action
    # Of the squashed output; otherwise the output is the action.
    ends = (head.minimum, head.maximum) if _is_squashed(head) else (-1.0, 1.0)
    first, last = (np.asarray(end, np.float32) for end in ends)
    middle, half_range = (np.broadcast_to(value, shape) for value in ((first + last) / 2, (last - first) / 2))
    return {
        "output": "linear",
        "middle": lower + slope * (middle - low),
        "half_range": slope * half_range,
        "low": least,
        "high": most,
    }


def _is_squashed(head: Any) -> bool:
    return getattr(head, "minimum", None) is not None and getattr(head, "maximum", None) is not None


def _misfit(policy: Exportable, what: str) -> ConfigError:
    return ConfigError(
        f"format=npz holds multilayer perceptrons with a linear, squashed or categorical head, but {policy.name} has"
        f" {what}: use onnx or stablehlo"
    )
