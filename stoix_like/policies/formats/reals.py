"""Functions of complex numbers as functions of real ones, for runtimes that have no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core


class _Complex(NamedTuple):
    """Real and imaginary parts."""

    real: jax.Array
    imag: jax.Array


# Primitives that act on each part on its own.
_LINEAR = frozenset(
    {
        *("add", "sub", "neg", "select_n", "where", "copy", "stop_gradient", "optimization_barrier"),
        *(
            "broadcast_in_dim",
            "concatenate",
            "stack",
            "gather",
            "dynamic_slice",
            "expand_dims",
            "reshape",
            "rev",
            "slice",
            "squeeze",
            "transpose",
        ),
    }
)


def _exp(x: _Complex) -> _Complex:
    radius = jnp.exp(x.real)
    return _Complex(radius * jnp.cos(x.imag), radius * jnp.sin(x.imag))


def _multiply(x: _Complex, y: _Complex) -> _Complex:
    return _Complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _divide(x: _Complex, y: _Complex) -> _Complex:
    square = y.real * y.real + y.imag * y.imag
    return _Complex(*(part / square for part in _multiply(x, _Complex(y.real, -y.imag))))


_RULES: dict[str, Callable[..., Any]] = {
    "complex": _Complex,
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "conj": lambda x: _Complex(x.real, -x.imag),
    "convert_element_type": lambda x: x if isinstance(x, _Complex) else _Complex(x + 0.0, jnp.zeros_like(x + 0.0)),
    "exp": _exp,
    "mul": _multiply,
    "div": _divide,
}


def real_shape(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of the real form of an array: complex ones have a last axis of two parts."""
    if not _is_complex(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return jax.ShapeDtypeStruct((*leaf.shape, 2), jnp.finfo(leaf.dtype).dtype)


def as_reals(array: Any) -> np.ndarray:
    """Return the real form of an array."""
    array = np.asarray(array)
    return np.stack([array.real, array.imag], -1) if _is_complex(array) else array


def real_form(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return a program of real arithmetic."""
    if not _has_complex(closed.jaxpr):
        return closed

    def evaluate(*arrays: jax.Array) -> list[jax.Array]:
        arguments = [
            _Complex(*(jax.lax.index_in_dim(array, part, -1, keepdims=False) for part in (0, 1)))
            if _is_complex(variable.aval)
            else array
            for variable, array in zip(closed.jaxpr.invars, arrays, strict=True)
        ]
        results = _evaluate(closed.jaxpr, closed.consts, arguments)
        return [_joined(value) if isinstance(value, _Complex) else value for value in results]

    return jax.make_jaxpr(evaluate)(*(real_shape(variable.aval) for variable in closed.jaxpr.invars))


def _evaluate(jaxpr: core.Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    known = dict(zip(jaxpr.constvars, map(_split, consts), strict=True))
    known |= dict(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        inputs = [_split(each.val) if isinstance(each, core.Literal) else known[each] for each in equation.invars]
        known |= dict(zip(equation.outvars, _apply(equation, inputs), strict=True))
    return [_split(each.val) if isinstance(each, core.Literal) else known[each] for each in jaxpr.outvars]


def _apply(equation: core.JaxprEqn, inputs: list[Any]) -> list[Any]:
    """Return the results of an equation."""
    # Converters replace functions of jax by primitives of their whole name.
    name, params = equation.primitive.name.rpartition(".")[2], equation.params
    inner: Any = params.get("jaxpr", params.get("call_jaxpr"))
    if name == "scan" and _has_complex(inner.jaxpr):
        if "ft_in" in params:  # From jax 0.11 on.
            num_constants, num_carried, _ = (len(part.vals) for part in params["ft_in"].unpack())
        else:
            num_constants, num_carried = params["num_consts"], params["num_carry"]
        constants, rest = inputs[:num_constants], inputs[num_constants:]

        def body(carry: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
            results = _evaluate(inner.jaxpr, inner.consts, [*constants, *carry, *rows])
            return results[:num_carried], results[num_carried:]

        carry, rows = rest[:num_carried], rest[num_carried:]
        last, outputs = jax.lax.scan(body, carry, rows, params["length"], params["reverse"])
        return [*last, *outputs]
    if isinstance(inner, core.ClosedJaxpr) and _has_complex(inner.jaxpr):
        return _evaluate(inner.jaxpr, inner.consts, inputs)
    if not any(_is_complex(each.aval) for each in (*equation.invars, *equation.outvars)):
        # Versions of jax differ in whether they return functions, too.
        bound: Any = equation.primitive.get_bind_params(params)
        functions, bound = bound if isinstance(bound, tuple) else ((), bound)
        results = equation.primitive.bind(*functions, *inputs, **bound)
        return list(results) if equation.primitive.multiple_results else [results]
    if name in _RULES:
        return [_RULES[name](*inputs)]
    if name not in _LINEAR:
        raise NotImplementedError(f"{name} of complex numbers")
    parts = [
        [getattr(each, part, each) if isinstance(each, _Complex) else each for each in inputs]
        for part in _Complex._fields
    ]
    return [_Complex(*(equation.primitive.bind(*part, **params) for part in parts))]


def _joined(value: _Complex) -> jax.Array:
    return jax.lax.concatenate([jax.lax.expand_dims(part, [part.ndim]) for part in value], value.real.ndim)


def _split(value: Any) -> Any:
    return _Complex(np.real(value), np.imag(value)) if _is_complex(value) else value


def _is_complex(value: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(value) if not hasattr(value, "dtype") else value.dtype, jnp.complexfloating)


def _has_complex(jaxpr: core.Jaxpr) -> bool:
    """Return whether a program computes with complex numbers, also in the programs that it calls."""
    variables = [*jaxpr.invars, *jaxpr.constvars, *(each for equation in jaxpr.eqns for each in equation.outvars)]
    inner = [
        value.jaxpr
        for equation in jaxpr.eqns
        for value in equation.params.values()
        if isinstance(value, core.ClosedJaxpr)
    ]
    return any(_is_complex(variable.aval) for variable in variables) or any(map(_has_complex, inner))
