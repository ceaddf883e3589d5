"""Policies as ONNX graphs, converted by jax2onnx and run by onnxruntime."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from stoix_like.errors import ConfigError, require
from stoix_like.policies.exportable import Exportable
from stoix_like.utils.jax_utils import with_attribute

# Runtimes of the last two years support it.
_OPSET = 21
# Level of the log of onnxruntime, which warns of the shapes that converters leave open.
_FATAL = 4
# The converter's own loses axes where a layer has several of them.
_DENSE_GENERAL = nn.DenseGeneral.__call__


def encode(policy: Exportable) -> bytes:
    """Return a graph of a greedy policy, with any batch size."""
    # The converter broadcasts the biases of convolutions.
    # It replaces `jnp.cumsum` by one that takes fewer arguments, for good.
    with _silenced(), jax.numpy_rank_promotion("allow"), with_attribute(jnp, "cumsum", jnp.cumsum):
        jax2onnx: Any = require("jax2onnx", "format=onnx", "onnx")
        shapes = policy.argument_shapes
        with _refused(f"jax2onnx cannot convert {policy.name}"):
            model = jax2onnx.to_onnx(
                _used_part(policy),
                [jax.ShapeDtypeStruct(("batch", *leaf.shape), leaf.dtype) for leaf in shapes.values()],
                model_name=policy.name,
                opset=_OPSET,
                input_names=list(shapes),
                output_names=policy.result_names,
            )
    return bytes(model.SerializeToString())


def decode(content: bytes) -> Callable[..., Any]:
    """Return the function that a file holds. Returns a function of arrays `[B, ...]` and key data, which it ignores."""
    onnxruntime: Any = require("onnxruntime", "format=onnx", "onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL
    with _refused("onnxruntime cannot load the graph"):
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    # Inputs that no action depends on are still inputs.
    names = [argument.name for argument in session.get_inputs()]

    def act(*inputs: Any) -> Any:
        *arrays, _ = inputs
        with _refused("onnxruntime cannot run the graph"):
            return session.run(None, dict(zip(names, map(np.asarray, arrays), strict=True)))

    return act


def _used_part(policy: Exportable) -> Callable[..., Any]:
    """Return `Policy.mode_on` without what no result depends on, such as keys.

    A result that is also another one, such as an action that is part of the next state, is copied: a value of a graph
    has a single name.
    """

    def act(*arrays: Any) -> Any:
        pairs = zip(arrays, policy.argument_shapes.values(), strict=True)
        shapes = [jax.ShapeDtypeStruct(array.shape[: 1 + len(leaf.shape)], leaf.dtype) for array, leaf in pairs]
        with with_attribute(nn.DenseGeneral, "__call__", _DENSE_GENERAL):
            closed = jax.make_jaxpr(lambda *given: policy.mode_on(given))(*shapes)
        jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
        results = core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, closed.consts))(*arrays)
        known = [variable in jaxpr.outvars[:place] for place, variable in enumerate(jaxpr.outvars)]
        return [jnp.copy(result) if copied else result for result, copied in zip(results, known, strict=True)]

    return act


@contextlib.contextmanager
def _refused(what: str) -> Iterator[None]:
    """Turn whatever the converter and the runtime raise into a refusal."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"format=onnx: {what}: {' '.join(str(error).split())[:300]}: use stablehlo") from error


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Drop what the converter prints, logs and warns of; it leaves out its own parts where a warning is an error."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        logging.disable(disabled)
