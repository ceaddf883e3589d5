"""Record a layer of S5: the state space model of its authors' code, in float64.

    git clone https://github.com/lindermanlab/S5 && git -C S5 checkout 52fbd83
    pip install jax flax
    python scripts/parity/record_s5.py S5

Around the state space, the layers are those of flax, in the order of `SequenceLayer` with `half_glu1` and `prenorm`.
"""

import sys
from pathlib import Path

import definitions
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import lecun_normal, normal
from recording import random_weights, round32, save

jax.config.update("jax_enable_x64", True)

LENGTH, BATCH, FEATURES, STATES = 12, 2, 8, 4


def load(root):
    """Return the state space model."""
    space = {
        "jax": jax,
        "np": jnp,
        "nn": nn,
        "lecun_normal": lecun_normal,
        "normal": normal,
        # All parameters are given: initialisers only tell shapes.
        "init_VinvB": lambda init, key, shape, inverse: jnp.zeros((STATES, FEATURES, 2)),
        "init_log_steps": lambda key, sizes: jnp.zeros((STATES, 1)),
        "__name__": "s5",
    }
    names = ("discretize_zoh", "binary_operator", "apply_ssm", "S5SSM")
    return definitions.load(root / "s5/ssm.py", names, space)["S5SSM"]


def main(root):
    """Record outputs and gradients, with one eigenvalue beyond the bound of the real parts."""
    rng = np.random.default_rng(6)
    arrays = round32({name: rng.normal(size=(LENGTH, BATCH, FEATURES)) for name in ("x", "weight")})
    real = -rng.uniform(0.3, 1.0, size=STATES)
    real[1] = 0.2
    weights = round32(
        {
            "Lambda_re": real,
            "Lambda_im": rng.uniform(0.5, 9.0, size=STATES),
            "B": rng.normal(size=(STATES, FEATURES, 2)) / np.sqrt(FEATURES),
            "C": rng.normal(size=(FEATURES, STATES, 2)) / np.sqrt(STATES),
            "D": rng.normal(size=FEATURES),
            "log_step": rng.uniform(np.log(0.01), np.log(0.5), size=(STATES, 1)),
        }
    )
    others = {"norm.weight": (FEATURES,), "norm.bias": (FEATURES,), "gate.weight": (FEATURES, FEATURES)}
    weights |= random_weights(rng, others | {"gate.bias": (FEATURES,)})
    model = load(root)(
        jnp.zeros(STATES),
        jnp.zeros(STATES),
        *(None, None, FEATURES, STATES, "complex_normal", "zoh", 0.001, 0.1),
        conj_sym=True,
        clip_eigs=True,
    )

    def loss(weights, x):
        params = {name: weights[name] for name in ("Lambda_re", "Lambda_im", "B", "C", "D", "log_step")}
        norm = {"params": {"scale": weights["norm.weight"], "bias": weights["norm.bias"]}}
        u = nn.LayerNorm().apply(norm, x)
        y = jax.vmap(lambda u: model.apply({"params": params}, u), in_axes=1, out_axes=1)(u)
        y = nn.gelu(y)
        output = x + y * jax.nn.sigmoid(y @ weights["gate.weight"].T + weights["gate.bias"])
        return jnp.sum(arrays["weight"] * output), output

    weights = jax.tree.map(jnp.asarray, weights)
    gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
    (gradients, x_gradient), output = gradient(weights, jnp.asarray(arrays["x"]))
    tree = {"input": arrays, "weights": weights, "output": output, "gradients": gradients | {"x": x_gradient}}
    save("s5_layer", tree, ("jax", "flax"), ("lindermanlab/S5 52fbd83",))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
