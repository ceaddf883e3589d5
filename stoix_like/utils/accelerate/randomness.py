"""Random numbers drawn for all steps of a loop at once.

Threefry hashes a key with many small operations. With few environments, sampling an action inside a scan over time
costs more than the network itself; sampling for the whole rollout at once is almost free. So it is with the batches and
the noise of gradient steps.

The jaxpr of one step is split into what depends on its keys alone and the rest, and the first part is computed for all
steps at once. Larger arrays than a limit stay inside the loop; if the hoisted arrays of a step together are larger than
that, nothing is hoisted. In rollouts it is 256 bytes per environment. The split does not change what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

MAX_BYTES_PER_ENV = 256


def hoist(step: Callable[[Any, Any], Any], state: Any, randomness: Any, max_bytes: int) -> tuple[Any, Any]:
    """Split a step into the part that depends only on its keys, and the rest.

    rest(state, draw(randomness)) = step(state, randomness)
    """
    closed, shapes = jax.make_jaxpr(step, return_shape=True)(state, randomness)
    jaxpr, num_state = closed.jaxpr, len(jax.tree.leaves(state))
    state_vars, key_vars = jaxpr.invars[:num_state], jaxpr.invars[num_state:]
    ahead, inside = _partition(jaxpr.eqns, key_vars, max_bytes)
    needed = {var for eqn in inside for var in _variables(eqn.invars)} | set(_variables(jaxpr.outvars))
    available = [*key_vars, *(var for eqn in ahead for var in eqn.outvars)]
    drawn_vars = [var for var in available if var in needed]
    if sum(_num_bytes(var.aval) for var in drawn_vars) > max_bytes:
        return lambda randomness: randomness, step

    draw_flat = _function(jaxpr, closed.consts, key_vars, drawn_vars, ahead)
    rest_flat = _function(jaxpr, closed.consts, [*state_vars, *drawn_vars], jaxpr.outvars, inside)
    result = jax.tree.structure(shapes)

    def draw(randomness: Any) -> list[Any]:
        return draw_flat(*jax.tree.leaves(randomness))

    def rest(state: Any, drawn: list[Any]) -> Any:
        return jax.tree.unflatten(result, rest_flat(*jax.tree.leaves(state), *drawn))

    return draw, rest


def count_equations(jaxpr: jex.Jaxpr) -> int:
    """Count the equations of a jaxpr, including the functions and loops that it calls."""
    inner = [list(jex.jaxprs_in_params(equation.params)) for equation in jaxpr.eqns]
    return sum(sum(map(count_equations, jaxprs)) if jaxprs else 1 for jaxprs in inner)


def _partition(eqns: Sequence[Any], key_vars: Sequence[Any], max_bytes: int) -> tuple[list[Any], list[Any]]:
    """Split equations into those with small results that depend only on the keys, and all others, in order."""
    from_keys = set(key_vars)
    ahead, inside = [], []
    for eqn in eqns:
        inputs = _variables(eqn.invars)
        small = all(_num_bytes(var.aval) <= max_bytes for var in eqn.outvars)
        if inputs and small and not eqn.effects and all(var in from_keys for var in inputs):
            ahead.append(eqn)
            from_keys.update(eqn.outvars)
        else:
            inside.append(eqn)
    return ahead, inside


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, jex.Literal)]


def _function(jaxpr: Any, consts: Any, invars: Any, outvars: Any, eqns: Any) -> Callable[..., list[Any]]:
    part = jaxpr.replace(invars=invars, outvars=outvars, eqns=eqns, debug_info=jaxpr.debug_info.with_unknown_names())
    return jex.jaxpr_as_fun(jex.ClosedJaxpr(part, consts))


def _num_bytes(aval: Any) -> int:
    itemsize = 8 if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key) else aval.dtype.itemsize
    return aval.size * itemsize
