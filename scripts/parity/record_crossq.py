"""Record gradient steps of CrossQ in sbx, whose layers and losses are those of its authors.

It runs as published, in float64, on given weights, batches and noise. The standard deviation of the policy is
softplus(s) + 1e-3 as in this package.

    pip install sbx-rl
    python scripts/parity/record_crossq.py
"""

from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from jax_recording import Noisy, draw, statistics
from record_off_policy import WIDTHS, Spaces, samples
from recording import BATCH, STEPS, make_batches, round32, save
from sbx import CrossQ
from sbx.common.jax_layers import BatchRenorm
from sbx.crossq.policies import Actor
from stable_baselines3.common.logger import Logger

jax.config.update("jax_enable_x64", True)


class SoftplusActor(Actor):
    """The policy, with another standard deviation."""

    def __call__(self, x, train=False):
        def replace_scale(call, args, kwargs, context):
            output = call(*args, **kwargs)
            is_scale = context.module.name == "Dense_3" and context.method_name == "__call__"
            return jnp.log(jax.nn.softplus(output) + 1e-3) if is_scale else output

        with nn.intercept_methods(replace_scale):
            return super().__call__(x, train)


def record_steps():
    """Record four steps; the second and the fourth also improve the policy."""
    rng = np.random.default_rng(1)
    model = CrossQ(
        "MlpPolicy",
        Spaces(),
        learning_rate=1e-2,
        qf_learning_rate=1e-2,
        gamma=0.9,
        ent_coef=0.2,
        policy_delay=2,
        buffer_size=1,
        policy_kwargs={
            "net_arch": WIDTHS,
            "actor_class": SoftplusActor,
            "batch_norm_momentum": 0.9,
            "renorm_warmup_steps": 100,
            "optimizer_class": optax.adam,
            "optimizer_kwargs": {"b1": 0.5, "eps": 1e-3},
        },
    )
    model.set_logger(Logger(None, []))
    policy = model.policy
    states = {"actor": policy.actor_state, "critic": policy.qf_state}
    initial = {name: draw(rng, state.params) for name, state in states.items()}
    for which, state in states.items():
        new = state.replace(
            params=initial[which],
            batch_stats=statistics(state.batch_stats),
            opt_state=state.tx.init(initial[which]),
        )
        setattr(policy, {"actor": "actor_state", "critic": "qf_state"}[which], new)
    batches = make_batches(rng, discrete=False)
    losses = {"actor_loss": [], "critic_loss": []}
    apply = policy.actor_state.apply_fn
    for step in range(STEPS):
        noise = {train: jnp.asarray(batches["noise" if train else "next_noise"][step]) for train in (True, False)}

        def apply_noisy(variables, observation, train, noise=noise, **kwargs):
            output = apply(variables, observation, train=train, **kwargs)
            if train:
                return Noisy(output[0], noise[True]), output[1]
            return Noisy(output, noise[False])

        policy.actor_state = policy.actor_state.replace(apply_fn=apply_noisy)
        model.replay_buffer = SimpleNamespace(sample=lambda *_, step=step, **__: samples(batches, step))
        model.train(gradient_steps=1, batch_size=BATCH)
        for loss, values in losses.items():
            values.append(model.logger.name_to_value[f"train/{loss}"])
    final = {"actor": policy.actor_state, "critic": policy.qf_state}
    tree = {
        "batch": batches,
        "initial": initial,
        "final": {name: state.params for name, state in final.items()},
        "statistics": {name: state.batch_stats for name, state in final.items()},
        "mean_gradient": {name: optax.tree_utils.tree_get(state.opt_state, "mu") for name, state in final.items()},
        "loss": losses,
    }
    save("sbx_crossq", tree, ("sbx-rl", "stable-baselines3", "jax"))


def record_layer():
    """Record batch renormalisation after its warm-up, with both clips active, and its gradients.

    Its epsilon is 1e-8: sbx adds it to other variances than Ioffe (2017).
    """
    rng = np.random.default_rng(2)
    arrays = {
        "x": rng.normal(size=(BATCH, 4)) * [1.0, 5.0, 0.1, 1.0] + [0.5, 0.0, 0.0, 20.0],
        "weight": rng.normal(size=(BATCH, 4)),
        "params": {"scale": 1.0 + 0.1 * rng.normal(size=4), "bias": 0.1 * rng.normal(size=4)},
        "mean": 0.1 * rng.normal(size=4),
        "var": rng.uniform(0.5, 1.5, size=4),
    }
    arrays = jax.tree.map(jnp.asarray, round32(arrays))
    layer = BatchRenorm(use_running_average=False, momentum=0.9, epsilon=1e-8, warmup_steps=0)
    others = layer.init(jax.random.key(0), arrays["x"])["batch_stats"]
    others = others | {"mean": arrays["mean"], "var": arrays["var"]}

    def loss(params, x):
        y, updated = layer.apply({"params": params, "batch_stats": others}, x, mutable=["batch_stats"])
        return jnp.sum(arrays["weight"] * y), (y, updated["batch_stats"])

    gradients, (y, updated) = jax.grad(loss, argnums=(0, 1), has_aux=True)(arrays["params"], arrays["x"])
    results = {"y": y, "gradient_params": gradients[0], "gradient_x": gradients[1]}
    updated = {name: updated[name] for name in ("mean", "var")}
    save("sbx_batch_renorm", {"input": arrays, **results, "updated": updated}, ("sbx-rl", "jax"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    record_steps()
    record_layer()
