"""Layers and the steps of Muon on the weights of xlstm, S5, FastTD3 and PyTorch.

Theirs are computed in float64: the differences are rounding of ours in float32, of at most 1e-5 in outputs and
gradients over 12 steps. `record_layers.py`, `record_s5.py` and `record_fast_td3.py` in `scripts/parity` recorded the
references.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stoix_like.networks.hyperspherical import UNIT_KERNEL, UnitOutput, project_weights
from stoix_like.networks.recurrent import MLSTMCell, S5Cell
from stoix_like.networks.torso import SimBaV2Torso
from stoix_like.systems.parts.optimiser import Gradients, make_transform
from support.parity import agree, dense, load

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5


def layer_norm(weights):
    return {"scale": weights["norm.weight"], "bias": weights["norm.bias"]}


def agree_layer(name, outputs, recorded, convert, convert_gradients=None):
    """Check outputs, and the gradients of weights and inputs, of `outputs(params, x)`."""
    inputs, params = recorded["input"], {"params": convert(recorded["weights"])}

    def loss(params, x):
        output = outputs(params, x)
        return jnp.sum(inputs["weight"] * output), output

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
    (params_gradient, x_gradient), output = gradient(jax.tree.map(jnp.asarray, params), jnp.asarray(inputs["x"]))
    agree(f"{name}: output", output, recorded["output"], TOLERANCE)
    agree(f"{name}: gradient of inputs", x_gradient, recorded["gradients"]["x"], TOLERANCE)
    expected = (convert_gradients or convert)(recorded["gradients"])
    agree(f"{name}: gradients of weights", params_gradient["params"], expected, TOLERANCE)


@pytest.mark.parametrize("chunk_size", [5, 64])
def test_mlstm(chunk_size):
    """In chunks and in one: theirs is in parallel over all 12 steps."""
    cell = MLSTMCell(8, num_heads=2, chunk_size=chunk_size)

    def convert(weights):
        return {
            "norm": layer_norm(weights),
            "query_key_value": dense(weights, "qkv"),
            "gates": dense(weights, "gates"),
            "output_gate": dense(weights, "ogate"),
            "head_norm": {"scale": weights["head_norm.weight"].reshape(2, 4)},
            "out": {"kernel": weights["out.weight"].T},
        }

    def outputs(params, x):
        state = cell.initialize_carry(jax.random.key(0), x.shape[1:])
        return cell.apply(params, state, x, jnp.zeros(x.shape[:-1], bool), method="unroll").outputs

    agree_layer("mLSTM", outputs, load("xlstm_mlstm"), convert)


def test_s5():
    """Of the conjugate pairs, theirs doubles outputs, and ours the kernel; one real part is beyond its bound."""
    cell = S5Cell(8, states=4)

    def convert(weights, factor=2.0):
        decoder = factor * np.concatenate([weights["C"][..., 0], weights["C"][..., 1]], axis=-1)
        encoder = np.concatenate([weights["B"][..., 0], weights["B"][..., 1]], axis=0)
        return {
            "norm": layer_norm(weights),
            "real": weights["Lambda_re"],
            "imaginary": weights["Lambda_im"],
            "log_step": weights["log_step"][:, 0],
            "skip": weights["D"],
            "encode": {"kernel": encoder.T},
            "decode": {"kernel": decoder.T},
            "gate": dense(weights, "gate"),
        }

    def outputs(params, x):
        """Step by step; the scan is compared with steps beside the networks."""
        state = cell.initialize_carry(jax.random.key(0), x.shape[1:])
        return jax.lax.scan(lambda state, x: cell.apply(params, state, x), state, x)[1]

    # The gradient of a doubled kernel is half of theirs.
    agree_layer("S5", outputs, load("s5_layer"), convert, functools.partial(convert, factor=0.5))


def test_simba_v2():
    """The layers in the repository of FastTD3; both normalise weights by `project_weights`."""
    recorded = load("simba_v2")
    torso, head = SimBaV2Torso(hidden_size=8, num_blocks=2), UnitOutput(5)

    def convert(weights):
        layers = ["0.w", *(f"{i}.mlp.{w}" for i in (1, 2) for w in ("w1", "w2"))]
        scales = ["0.scaler", *(f"{i}.{name}" for i in (1, 2) for name in ("mlp.scaler", "alpha_scaler"))]
        body = {f"UnitDense_{i}": {UNIT_KERNEL: weights[f"{name}.w.weight"].T} for i, name in enumerate(layers)}
        body |= {f"Scaler_{i}": {"scale": weights[f"{name}.scaler"]} for i, name in enumerate(scales)}
        output = {f"UnitDense_{i}": {UNIT_KERNEL: weights[f"3.w{i + 1}.w.weight"].T} for i in range(2)}
        return {
            "torso": body,
            "head": output | {"Scaler_0": {"scale": weights["3.scaler.scaler"]}, "bias": weights["3.bias"]},
        }

    def outputs(params, x):
        params = params["params"]
        return head.apply({"params": params["head"]}, torso.apply({"params": params["torso"]}, x))

    agree_layer("SimBaV2", outputs, recorded, convert)
    kernels = {name: jnp.asarray(weights.T) for name, weights in recorded["weights"].items() if weights.ndim == 2}
    projected = project_weights({name: {UNIT_KERNEL: kernel} for name, kernel in kernels.items()})
    expected = {name: {UNIT_KERNEL: recorded["projected"][name].T} for name in kernels}
    agree("SimBaV2: projection of weights", projected, expected, TOLERANCE)


def test_muon():
    """The first step, and the 200th with the momentum of all others.

    In between, optax corrects the bias of its momentum, which changes the weight of the last gradient; torch does not.
    The factor is 1 + 0.95^t / (1 - 0.95^t), of which 4e-5 are left at t = 200.
    """
    recorded = load("torch_muon")
    config = Gradients(decay_learning_rates=False, max_grad_norm=None, optimiser="muon", weight_decay=0.1)
    optim = make_transform(config, 0.01)
    steps = recorded["steps"]

    def kernels(rows, field):
        return {name: {"kernel": jnp.asarray(row[field])} for name, row in rows.items()}

    gradients, params = (kernels(recorded["input"], field) for field in ("gradients", "initial"))

    @jax.jit
    def step(gradients, state, params):
        updates, state = optim.update(gradients, state, params)
        return updates, state, optax.apply_updates(params, updates)

    state, rows = optim.init(params), jax.tree.map(lambda x: x[0], gradients)
    updates, state, params = step(rows, state, params)
    agree("Muon: first step", updates, kernels(steps, "change_1"), TOLERANCE)
    for i in range(1, 199):
        _, state, params = step(jax.tree.map(lambda x, i=i: x[i], gradients), state, params)
    updates, _, _ = step(jax.tree.map(lambda x: x[199], gradients), state, kernels(steps, "before_200"))
    agree("Muon: step 200", updates, kernels(steps, "change_200"), TOLERANCE)
