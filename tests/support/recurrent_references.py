"""What tests of recurrent cells share: sequences, and layers in numpy."""

import jax
import numpy as np

KEY = jax.random.key(0)
# Two environments: one with an episode that starts in the sequence, one that continues from before it.
RESETS = np.array([[False, True], [False, False], [False, False], [True, False], [False, False], [False, False]])
X = np.asarray(jax.random.normal(KEY, (len(RESETS), 2, 3)), np.float64)


def random_params(rnn):
    inputs, draw = (np.float32(X), RESETS), np.random.default_rng(0).normal
    shapes = jax.eval_shape(lambda *inputs: rnn.init(KEY, rnn.initialize_carry(2), inputs), *inputs)
    variables = jax.tree.map(lambda leaf: jax.device_put(draw(scale=0.5, size=leaf.shape)), shapes)
    return variables, jax.tree.map(np.float64, variables["params"]["cells_0"])


def outputs(rnn, variables):
    """Return the outputs of the sequence from the start of an episode, `[T, 2, H]`."""
    process = jax.jit(lambda variables, *inputs: rnn.apply(variables, rnn.initialize_carry(2), inputs)[1])
    return np.asarray(process(variables, np.float32(X), RESETS))


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
