"""Record gradient steps of FastTD3, and the layers of SimBaV2 in its repository.

    git clone https://github.com/younggyoseo/FastTD3 && git -C FastTD3 checkout 229ed59
    pip install torch
    python scripts/parity/record_fast_td3.py FastTD3

`fast_td3.py` is that of 18ebab4 and `fast_td3_simbav2.py` that of 459d2d6: what is used of them is the same. The
functions run as published, in float64, on given weights, batches and noise, without mixed precision. Adam's constant is
1e-3, with which the size of a gradient matters from the first step on; its weight decay, here also of biases, is 0.
"""

import contextlib
import copy
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import definitions
import numpy as np
import torch
from recording import STEPS, make_batches, round32, save
from torch import nn
from torch.nn import functional
from torch_recording import adam_means, as_tensor, draw_weights, weights_of

COMMIT = ("younggyoseo/FastTD3 229ed59",)
ATOMS, RANGE = 11, 3.0


class Scaler:
    """The scaler of mixed precision, off."""

    def scale(self, loss):
        """Return the loss."""
        return loss

    def unscale_(self, optimizer):
        """Do nothing."""

    def step(self, optimizer):
        """Take a step."""
        optimizer.step()

    def update(self):
        """Do nothing."""


def record_steps(root, clipped_double):
    """Record four steps, the second and the fourth of which also improve the policy."""
    rng, space = np.random.default_rng(10), {"torch": torch, "nn": nn, "F": functional}
    torch.manual_seed(0)
    code = definitions.load(root / "fast_td3.py", ("DistributionalQNetwork", "Critic", "Actor"), dict(space))
    actor = code["Actor"](3, 2, 1, 0.01, 32)
    qnet = code["Critic"](3, 2, ATOMS, -RANGE, RANGE, 32)
    initial = {"actor": draw_weights(actor, rng), "critic": draw_weights(qnet, rng)}
    target = copy.deepcopy(qnet)
    optimizers = {
        name: torch.optim.AdamW(network.parameters(), lr=1e-2, eps=1e-3, weight_decay=0.0)
        for name, network in (("actor", actor), ("critic", qnet))
    }
    args = SimpleNamespace(
        gamma=0.9, use_cdq=clipped_double, disable_bootstrap=False, use_grad_norm_clipping=False, max_grad_norm=0.0
    )
    steps = definitions.load(
        root / "train.py",
        ("update_main", "update_pol", "soft_update"),
        space
        | {
            "autocast": lambda **_: contextlib.nullcontext(),
            "device": "cpu",
            "amp_device_type": "cpu",
            "amp_dtype": None,
            "amp_enabled": False,
            "envs": SimpleNamespace(asymmetric_obs=False),
            "args": args,
            "actor": actor,
            "qnet": qnet,
            "qnet_target": target,
            "q_optimizer": optimizers["critic"],
            "actor_optimizer": optimizers["actor"],
            "scaler": Scaler(),
            "policy_noise": 0.2,
            "noise_clip": 0.3,
            "action_low": -1.0,
            "action_high": 1.0,
        },
    )
    batches = make_batches(rng, discrete=False)
    # A truncated step bootstraps: ended and truncated.
    truncated = rng.uniform(size=batches["terminated"].shape) < 0.2
    batches["terminated"] = batches["terminated"] & ~truncated
    losses = {"qf_loss": [], "actor_loss": []}
    for step in range(STEPS):
        rows = {name: as_tensor(value[step]) for name, value in batches.items()}
        cut = as_tensor(truncated[step])
        following = {
            "observations": rows["next_observation"],
            "rewards": rows["reward"],
            "dones": rows["terminated"] | cut,
            "truncations": cut,
            "effective_n_steps": torch.ones(len(cut)),
        }
        data = {"observations": rows["observation"], "actions": rows["action"], "next": following}
        torch.randn_like = lambda like, rows=rows: rows["next_noise"]
        logs = steps["update_main"](data, {})
        if step % 2 == 1:
            logs = steps["update_pol"](data, logs)
        steps["soft_update"](qnet, target, 0.5)
        for name, values in losses.items():
            values.append(float(logs.get(name, 0.0)))
    networks = {"actor": actor, "critic": qnet}
    save(
        f"fast_td3_{'min' if clipped_double else 'mean'}",
        {
            "batch": batches,
            "initial": initial,
            "final": {name: weights_of(network) for name, network in networks.items()},
            "target": {"critic": weights_of(target)},
            "mean_gradient": {name: adam_means(network, optimizers[name]) for name, network in networks.items()},
            "loss": losses,
        },
        ("torch",),
        COMMIT,
    )


def record_simba_v2(root):
    """Record two blocks of SimBaV2 between its embedding and a categorical head, their gradients and the projection."""
    rng, width, blocks = np.random.default_rng(11), 8, 2
    names = (
        "l2normalize",
        "Scaler",
        "HyperDense",
        "HyperMLP",
        "HyperEmbedder",
        "HyperLERPBlock",
        "HyperCategoricalValue",
    )
    code = definitions.load(
        root / "fast_td3_simbav2.py", names, {"torch": torch, "nn": nn, "F": functional, "math": math}
    )
    scale = math.sqrt(2.0 / width)
    model = nn.Sequential(
        code["HyperEmbedder"](3, width, scale, scale, 3.0),
        *(
            code["HyperLERPBlock"](width, scale, scale, 1.0 / (blocks + 1), 1.0 / math.sqrt(width))
            for _ in range(blocks)
        ),
        code["HyperCategoricalValue"](width, 5, 1.0, 1.0),
    )
    drawn = draw_weights(model, rng)
    arrays = round32({"x": rng.normal(size=(6, 3)), "weight": rng.normal(size=(6, 5))})
    x = as_tensor(arrays["x"]).requires_grad_()
    output = model(x)
    (as_tensor(arrays["weight"]) * output).sum().backward()
    gradients = {name: value.grad.numpy().copy() for name, value in model.named_parameters()}
    projected = {
        name: code["l2normalize"](value.detach(), axis=-1).numpy()
        for name, value in model.named_parameters()
        if value.ndim == 2
    }
    save(
        "simba_v2",
        {
            "input": arrays,
            "weights": drawn,
            "output": output.detach().numpy(),
            "gradients": gradients | {"x": x.grad.numpy()},
            "projected": projected,
        },
        ("torch",),
        COMMIT,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1]) / "fast_td3"
    record_steps(folder, clipped_double=True)
    record_steps(folder, clipped_double=False)
    record_simba_v2(folder)
