"""Floating-point operations of a traced program."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Jaxpr, jaxprs_in_params

# Those that move or convert numbers, and compute none.
_MOVING = {
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p", "dynamic_slice",
    "dynamic_update_slice", "gather", "iota", "pad", "reshape", "rev", "scatter", "select_n", "slice", "sort", "split",
    "squeeze", "stop_gradient", "transpose", "bitcast_convert_type", "optimization_barrier", "pvary", "all_gather",
}  # fmt: skip


def count_flops(program: Jaxpr) -> int:
    """Count the floating-point operations of one device: two per term of a product, one per other element."""
    return sum(map(_of_equation, program.eqns))


def _of_equation(equation: Any) -> int:
    name, inner = equation.primitive.name, list(jaxprs_in_params(equation.params))
    if inner:
        counts = [count_flops(program) for program in inner]
        trips = equation.params["length"] if name == "scan" else 1
        return max(counts) if name == "cond" else trips * sum(counts)
    sizes = [math.prod(out.aval.shape) for out in equation.outvars if _is_float(out.aval)]
    if not sizes or name in _MOVING:
        return 0
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2 * sizes[0] * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        return 2 * sizes[0] * math.prod(kernel) // kernel[equation.params["dimension_numbers"].rhs_spec[0]]
    if name.startswith(("reduce_", "argm", "scatter")):
        return math.prod(equation.invars[-1 if name.startswith("scatter") else 0].aval.shape)
    return sum(sizes)


def _is_float(aval: Any) -> bool:
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.floating)
