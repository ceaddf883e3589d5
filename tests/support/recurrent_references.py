"""What tests of recurrent cells share: sequences, and layers in numpy."""

import jax
import jax.numpy as jnp
import numpy as np

KEY = jax.random.key(0)
# Two environments: one with an episode that starts in the sequence, one that continues from before it.
RESETS = np.array([[False, True], [False, False], [False, False], [True, False], [False, False], [False, False]])
X = np.asarray(jax.random.normal(KEY, (len(RESETS), 2, 3)), np.float64)


def random_params(rnn):
    inputs, draw = (jnp.asarray(X, jnp.float32), jnp.asarray(RESETS)), np.random.default_rng(0).normal
    shapes = jax.eval_shape(rnn.init, KEY, rnn.initialize_carry(2), inputs)
    variables = jax.tree.map(lambda leaf: jnp.asarray(draw(scale=0.5, size=leaf.shape), jnp.float32), shapes)
    return variables, jax.tree.map(np.float64, variables["params"]["cells_0"])


def outputs(rnn, variables):
    """Return the outputs of the sequence from the start of an episode, `[T, 2, H]`."""
    inputs = jnp.asarray(X, jnp.float32), jnp.asarray(RESETS)
    return jax.jit(rnn.apply)(variables, rnn.initialize_carry(2), inputs)[1]


def dense(params, x):
    return x @ params["kernel"] + params.get("bias", 0.0)


def layer_norm(params, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * params["scale"] + params["bias"]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def gelu(x):
    """Compute the approximation of the Gaussian error linear unit that jax takes."""
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
