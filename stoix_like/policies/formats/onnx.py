"""Policies as ONNX graphs, converted by jax2onnx and run by onnxruntime."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.policies.exportable import Exportable

# Runtimes of the last two years support it.
_OPSET = 21


def encode(policy: Exportable) -> bytes:
    """Return a graph of a greedy policy, with any batch size.

    Args:
        policy: the policy.

    Returns:
        The content of a file; inputs are named as in `Policy.argument_shapes`, outputs `action`, `next_state.0`, ….

    Raises:
        ConfigError: the policy samples, or holds an operation that cannot be converted.
        MissingExtraError: jax2onnx is not installed.
    """
    if not policy.greedy:
        raise ConfigError("format=onnx: ONNX has no random numbers of jax: export the greedy policy, or to stablehlo")
    # The converter broadcasts the biases of convolutions.
    with _silenced(), jax.numpy_rank_promotion("allow"):
        try:
            import jax2onnx
        except ImportError as error:
            raise MissingExtraError("format=onnx", "jax2onnx", "onnx") from error
        shapes = policy.argument_shapes
        try:
            model = jax2onnx.to_onnx(
                _used_part(policy),
                [jax.ShapeDtypeStruct(("batch", *leaf.shape), leaf.dtype) for leaf in shapes.values()],
                model_name=policy.name,
                opset=_OPSET,
                input_names=list(shapes),
                output_names=policy.result_names,
            )
        # The converter raises whatever its handlers of operations do.
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"format=onnx: jax2onnx cannot convert {policy.name}: {reason}: use stablehlo") from error
    return bytes(model.SerializeToString())


def decode(content: bytes) -> Callable[..., Any]:
    """Return the function that a file holds.

    Args:
        content: the content of the file.

    Returns:
        A function of arrays `[B, ...]` and key data, which it ignores.

    Raises:
        MissingExtraError: onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("format=onnx", "onnxruntime", "onnx") from error
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    # Inputs that no action depends on are still inputs.
    names = [argument.name for argument in session.get_inputs()]

    def act(*inputs: Any) -> Any:
        *arrays, _ = inputs
        return session.run(None, dict(zip(names, map(np.asarray, arrays), strict=True)))

    return act


def _used_part(policy: Exportable) -> Callable[..., Any]:
    """Return `Policy.mode_on` without what no result depends on, such as keys.

    A result that is also another one, such as an action that is part of the next state, is copied: a value of a graph
    has a single name.
    """

    def act(*arrays: Any) -> Any:
        closed = jax.make_jaxpr(lambda *given: policy.mode_on(given))(*arrays)
        jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
        results = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, closed.consts))(*arrays)
        known = [variable in jaxpr.outvars[:place] for place, variable in enumerate(jaxpr.outvars)]
        return [jnp.copy(result) if copied else result for result, copied in zip(results, known, strict=True)]

    return act


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Drop what the converter prints and logs for its developers."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
