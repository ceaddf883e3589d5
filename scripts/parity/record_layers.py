"""Record mLSTM and Muon: the memory of `xlstm`, and `torch.optim.Muon`, in float64.

Around the memory, the layers are those of PyTorch in the order of this package: normalisation before, a gate and a
residual connection behind.

    pip install torch
    pip install --no-deps xlstm
    python scripts/parity/record_layers.py
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch
from recording import random_weights, round32, save
from torch import nn
from torch_recording import as_tensor

LENGTH, BATCH, FEATURES, HEADS = 12, 2, 8, 2


def part_of_xlstm(path):
    """Import one file of xlstm, whose `__init__` imports kernels for GPUs."""
    root = Path(importlib.util.find_spec("xlstm").origin).parent
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), root / f"{path}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def gradients(output, weight, inputs):
    """Return the gradients of the weighted sum of an output."""
    found = torch.autograd.grad((weight * output).sum(), list(inputs.values()))
    return {name: gradient.resolve_conj().numpy() for name, gradient in zip(inputs, found, strict=True)}


def draw_inputs(rng):
    """Draw an input `[LENGTH, BATCH, FEATURES]` and the weight of each output in the loss."""
    return round32({name: rng.normal(size=(LENGTH, BATCH, FEATURES)) for name in ("x", "weight")})


def record_mlstm():
    """Record outputs and gradients of mLSTM."""
    backends, components = part_of_xlstm("blocks/mlstm/backends"), part_of_xlstm("xlstm_large/components")
    rng, width = np.random.default_rng(5), FEATURES // HEADS
    shapes = {
        "norm.weight": (FEATURES,),
        "norm.bias": (FEATURES,),
        "qkv.weight": (3 * FEATURES, FEATURES),
        "qkv.bias": (3 * FEATURES,),
        "gates.weight": (2 * HEADS, FEATURES),
        "gates.bias": (2 * HEADS,),
        "ogate.weight": (FEATURES, FEATURES),
        "ogate.bias": (FEATURES,),
        "head_norm.weight": (FEATURES,),
        "out.weight": (FEATURES, FEATURES),
    }
    drawn, arrays = random_weights(rng, shapes), draw_inputs(rng)
    weights = {name: as_tensor(value).requires_grad_() for name, value in drawn.items()}
    x = as_tensor(arrays["x"]).requires_grad_()

    def linear(inputs, name):
        return nn.functional.linear(inputs, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    # [batch, time, features], as xlstm has it.
    u = nn.functional.layer_norm(x, (FEATURES,), weights["norm.weight"], weights["norm.bias"], 1e-6).transpose(0, 1)
    query, key, value = linear(u, "qkv").reshape(BATCH, LENGTH, 3, HEADS, width).permute(2, 0, 3, 1, 4)
    gate_in, gate_forget = linear(u, "gates").transpose(1, 2)[..., None].split(HEADS, dim=1)
    hidden = backends.parallel_stabilized_simple(query, key, value, gate_in, gate_forget)
    norm = components.MultiHeadRMSNorm(HEADS, width, use_weight=False, force_float32_reductions=False)
    hidden = norm(hidden.transpose(1, 2)) * weights["head_norm.weight"]
    output = x + linear(torch.sigmoid(linear(u, "ogate")) * hidden, "out").transpose(0, 1)
    results = {"output": output.detach().numpy()}
    results["gradients"] = gradients(output, as_tensor(arrays["weight"]), weights | {"x": x})
    save("xlstm_mlstm", {"input": arrays, "weights": drawn, **results}, ("xlstm", "torch"))


def record_muon():
    """Record the first and the 200th step on random gradients, which have a mean.

    Its Newton-Schulz iteration runs in bfloat16, and here in float64.
    """
    rng, steps = np.random.default_rng(7), 200
    torch.Tensor.bfloat16 = torch.Tensor.clone
    shapes = {"tall": (6, 4), "wide": (3, 8)}
    arrays = round32({name: {"initial": rng.normal(size=shape)} for name, shape in shapes.items()})
    means = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        arrays[name]["gradients"] = round32(means[name] + rng.normal(size=(steps, *shape)))
    params = {name: nn.Parameter(as_tensor(value["initial"])) for name, value in arrays.items()}
    optimizer = torch.optim.Muon(params.values(), lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    results = {name: {} for name in shapes}
    for step in range(1, steps + 1):
        for name, param in params.items():
            param.grad = as_tensor(arrays[name]["gradients"][step - 1])
        before = {name: param.detach().clone() for name, param in params.items()}
        optimizer.step()
        if step in (1, steps):
            for name, param in params.items():
                results[name][f"before_{step}"] = before[name].numpy()
                results[name][f"change_{step}"] = (param.detach() - before[name]).numpy()
    save("torch_muon", {"input": arrays, "steps": results}, ("torch",))


if __name__ == "__main__":
    torch.set_num_threads(1)
    record_mlstm()
    record_muon()
