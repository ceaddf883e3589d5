"""Record the losses, the optimiser and the recurrent state-space model of DreamerV3.

    git clone https://github.com/danijar/dreamerv3 && git -C dreamerv3 checkout f8817c4
    pip install jax optax chex einops ninjax
    python scripts/parity/record_dreamer.py dreamerv3

`embodied/jax/outs.py` is that of 1cacf61 and `embodied/jax/nets.py` that of 0f98711: what is used of them is the same.
The functions run as published, in float32, the dtype that they cast to. Actor and critic are linear, which `Agent`
would not allow; how it calls the losses is repeated here.
"""

import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import chex
import definitions
import einops
import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import optax
from recording import save

PACKAGES = ("jax", "optax", "ninjax")
COMMIT = ("danijar/dreamerv3 f8817c4",)
TIME, BATCH, HORIZON, FEATURES, ACTIONS, ATOMS = 6, 3, 4, 12, 3, 31
DISCOUNT_HORIZON, STEPS = 333, 3


def load(root):
    """Return the definitions of the repository by file."""
    spaces = {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "nj": nj,
        "optax": optax,
        "chex": chex,
        "math": math,
        "einops": einops,
        "functools": functools,
        "Callable": Callable,
        "adc": jax.ad_checkpoint,
        "f32": jnp.float32,
        "i32": jnp.int32,
        "sg": lambda xs: jax.tree.map(jax.lax.stop_gradient, xs),
        "COMPUTE_DTYPE": jnp.float32,
        "internal": SimpleNamespace(get_data_axes=tuple),
        "__name__": "dreamerv3",
    }

    def file(path, *names, **others):
        return SimpleNamespace(**definitions.load(Path(root) / path, names, spaces | others))

    outs = file("embodied/jax/outs.py", "Output", "Agg", "Categorical", "OneHot", "TwoHot")
    layers = ("Initializer", "Linear", "BlockLinear", "Norm")
    helpers = ("cast", "act", "init", "where", "mask", "ensure_dtypes", "ensure_dtypes_fwd", "ensure_dtypes_bwd")
    nets = file("embodied/jax/nets.py", *helpers, *layers)
    nets.ensure_dtypes.defvjp(nets.ensure_dtypes_fwd, nets.ensure_dtypes_bwd)
    # One vector.
    nets.DictConcat = lambda spaces, dims: lambda actions: actions["action"]
    embodied = SimpleNamespace(jax=SimpleNamespace(outs=outs))
    return SimpleNamespace(
        outs=outs,
        agent=file("dreamerv3/agent.py", "lambda_return", "imag_loss", "repl_loss"),
        utils=file("embodied/jax/utils.py", "Normalize"),
        opt=file("embodied/jax/opt.py", "clip_by_agc", "scale_by_rms", "scale_by_momentum"),
        rssm=file("dreamerv3/rssm.py", "RSSM", nn=nets, embodied=embodied),
    )


def draw(rng):
    """Draw parameters, latents of a batch `[TIME, BATCH]`, and dreams `[HORIZON + 1, TIME * BATCH]`."""
    starts = TIME * BATCH

    def normal(*shape, scale=1.0):
        return (scale * rng.normal(size=shape)).astype(np.float32)

    def linear(width, scale):
        return {"kernel": normal(FEATURES, width, scale=scale), "bias": normal(width, scale=scale)}

    def values(scale):
        """Draw a critic whose distributions have little weight on the outer atoms, which are beyond 1e8."""
        weights = linear(ATOMS, scale)
        distance = np.arange(ATOMS, dtype=np.float32) - (ATOMS - 1) / 2
        return weights | {"bias": weights["bias"] - 0.125 * distance**2}

    is_last = np.zeros((TIME, BATCH), bool)
    terminated = is_last.copy()
    is_last[2, 0] = is_last[3, 1] = terminated[3, 1] = True
    return {
        "actor": linear(ACTIONS, 0.5),
        "critic": values(0.3),
        "slow": values(0.3),
        "latents": normal(TIME, BATCH, FEATURES),
        "is_last": is_last,
        "terminated": terminated,
        "replayed_reward": normal(TIME, BATCH, scale=3.0),
        "dreams": [
            {
                "features": normal(HORIZON + 1, starts, FEATURES),
                "action": rng.integers(ACTIONS, size=(HORIZON + 1, starts)),
                "reward": normal(HORIZON, starts, scale=3.0),
                "continues": rng.uniform(0.5, 1.0, size=(HORIZON, starts)).astype(np.float32),
            }
            for _ in range(STEPS)
        ],
    }


def make_losses(code, bins):
    """Return a function of the sum of all losses, as `Agent.loss` weighs them."""

    def head(weights, features):
        return features @ weights["kernel"] + weights["bias"]

    def losses(params, fixed, dream):
        retnorm = code.utils.Normalize("perc", rate=0.01, limit=1.0, perclo=5.0, perchi=95.0, debias=False, name="ret")
        none = code.utils.Normalize("none", name="none")
        # Batch first; the first reward is that of the start, and unused.
        rows = {name: jnp.swapaxes(value, 0, 1) for name, value in dream.items()}
        discount = 1.0 - 1.0 / DISCOUNT_HORIZON
        alive = 1.0 - jnp.asarray(fixed["terminated"], jnp.float32).reshape(-1, 1)
        policy = code.outs.Categorical(head(params["actor"], rows["features"]), 0.01)
        imagined, outs, metrics = code.agent.imag_loss(
            {"action": rows["action"]},
            jnp.concatenate([jnp.zeros_like(rows["reward"][:, :1]), rows["reward"]], 1),
            jnp.concatenate([alive, discount * rows["continues"]], 1),
            {"action": policy},
            code.outs.TwoHot(head(params["critic"], rows["features"]), bins),
            code.outs.TwoHot(head(fixed["slow"], rows["features"]), bins),
            retnorm,
            none,
            none,
            update=True,
            contdisc=True,
            slowtar=False,
            horizon=DISCOUNT_HORIZON,
            lam=0.95,
            actent=3e-4,
            slowreg=1.0,
        )
        replayed = jax.tree.map(
            lambda x: jnp.swapaxes(jnp.asarray(x), 0, 1),
            [fixed["is_last"], fixed["terminated"], fixed["replayed_reward"], outs["ret"][:, 0].reshape(TIME, BATCH)],
        )
        features = jnp.swapaxes(params["latents"], 0, 1)
        replay, _, _ = code.agent.repl_loss(
            *replayed,
            code.outs.TwoHot(head(params["critic"], features), bins),
            code.outs.TwoHot(head(fixed["slow"], features), bins),
            none,
            slowtar=False,
            horizon=DISCOUNT_HORIZON,
            lam=0.95,
        )
        means = {name: jnp.mean(loss) for name, loss in (imagined | replay).items()}
        total = means["policy"] + means["value"] + 0.3 * means["repval"]
        return total, means | {"entropy": metrics["ent/action"], "range": retnorm.stats()[1]}

    return losses


def record_losses(code):
    """Record three gradient steps on the losses of policy and critic."""
    fixed = draw(np.random.default_rng(8))
    half = jnp.linspace(-20, 0, (ATOMS - 1) // 2 + 1, dtype=jnp.float32)
    half = jnp.sign(half) * jnp.expm1(jnp.abs(half))
    bins = jnp.concatenate([half, -half[:-1][::-1]], 0)
    losses = nj.pure(make_losses(code, bins))
    optim = optax.chain(
        code.opt.clip_by_agc(0.3),
        code.opt.scale_by_rms(0.999, 1e-20),
        code.opt.scale_by_momentum(0.9),
        optax.scale_by_learning_rate(optax.linear_schedule(0.0, 1e-2, 2)),
    )
    params = {name: fixed[name] for name in ("actor", "critic", "latents")}
    params = jax.tree.map(jnp.asarray, params)
    opt_state, state, found = optim.init(params), {}, []
    for dream in fixed["dreams"]:
        if not state:
            # Creates the percentiles, which start at zero.
            state, _ = losses({}, params, fixed, dream, seed=0, create=True)
            state = jax.tree.map(jnp.zeros_like, state)

        def loss(params, state=state, dream=dream):
            state, (total, means) = losses(state, params, fixed, dream, seed=0)
            return total, (state, means)

        gradients, (state, means) = jax.grad(loss, has_aux=True)(params)
        updates, opt_state = optim.update(gradients, opt_state, params)
        found.append({"gradients": gradients, "updates": updates, "loss": means})
        params = optax.apply_updates(params, updates)
    fixed["dreams"] = {str(i): dream for i, dream in enumerate(fixed["dreams"])}
    steps = {str(i): step for i, step in enumerate(found)}
    save("dreamer_losses", {"input": fixed, "bins": bins, "steps": steps, "final": params}, PACKAGES, COMMIT)


def record_rssm(code):
    """Record a step of the model, the logits of prior and posterior, and the losses between them."""
    rng, rows, tokens, action = np.random.default_rng(9), 5, 7, 3
    sizes = {"deter": 8, "hidden": 6, "stoch": 2, "classes": 4, "blocks": 2, "act": "silu", "free_nats": 0.1}
    stoch = np.eye(4, dtype=np.float32)[rng.integers(4, size=(rows, 2))]
    inputs = {
        "deter": rng.normal(size=(rows, 8)).astype(np.float32),
        "stoch": stoch,
        "tokens": rng.normal(size=(rows, tokens)).astype(np.float32),
        "action": (2.0 * rng.normal(size=(rows, action))).astype(np.float32),
    }

    def outputs(inputs):
        model = code.rssm.RSSM({"action": None}, **sizes, name="rssm")
        carry = {"deter": inputs["deter"], "stoch": inputs["stoch"]}
        reset = jnp.zeros((rows, 1), bool)
        acts = {"action": inputs["action"][:, None]}
        _, _, losses, feat, _ = model.loss(carry, inputs["tokens"][:, None], acts, reset, training=True)
        prior = model._prior(feat["deter"])
        return losses, {"deter": feat["deter"][:, 0], "posterior": feat["logit"][:, 0], "prior": prior[:, 0]}

    pure = nj.pure(outputs)
    state, _ = pure({}, inputs, seed=0, create=True)
    state = {name: (0.4 * rng.normal(size=value.shape)).astype(np.float32) for name, value in sorted(state.items())}
    for name in state:
        state[name] = state[name] + np.float32("scale" in name)

    def loss(state, inputs):
        losses, found = pure(state, inputs, seed=0)[1]
        means = {name: jnp.mean(value) for name, value in losses.items()}
        return means["dyn"] + 0.1 * means["rep"], (means, found)

    (gradients, _), (means, found) = jax.grad(loss, argnums=(0, 1), has_aux=True)(state, inputs)
    trees = (
        {name.removeprefix("rssm/").replace("/", "."): x for name, x in tree.items()} for tree in (state, gradients)
    )
    weights, gradients = trees
    tree = {"input": inputs, "weights": weights, "gradients": gradients, "loss": means, "output": found}
    save("dreamer_rssm", tree, PACKAGES, COMMIT)


if __name__ == "__main__":
    repository = load(sys.argv[1])
    record_losses(repository)
    record_rssm(repository)
