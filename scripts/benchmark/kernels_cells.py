"""Count the kernels of recurrent cells on a GPU that is not in the machine, `python kernels_cells.py [CELL...]`.

Prints a table: kernels of one step of acting, and of one gradient step over a sequence, per time step.
"""

import sys

from stoix_like.lab.aot import plugins, targets

target = targets.find_target("h200")
plugins.prepare(target)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from stoix_like.lab.aot.kernels import read_program  # noqa: E402
from stoix_like.lab.aot.topology import find_devices  # noqa: E402
from stoix_like.networks.base import ScannedRNN  # noqa: E402

LENGTH, NUM_ENVS, WIDTH = 128, 256, 64
CELLS = ("gru", "optimised_lstm", "mingru", "lru", "s5", "mlstm", "gtrxl")


def launches(function, *args):
    """Return the kernels of a function on the GPU, loops counted as often as they run."""
    sharding = jax.sharding.SingleDeviceSharding(find_devices(target, 1)[0])
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), args)
    return read_program(jax.jit(function).lower(*placed).compile().as_text()).launches


def count(cell):
    """Return the kernels of a step, and of a gradient step per time step."""
    rnn, key = ScannedRNN(WIDTH, cell), jax.random.key(0)
    inputs = jnp.ones((NUM_ENVS, WIDTH)), jnp.ones(NUM_ENVS, bool)
    sequence = jax.tree.map(lambda x: jax.ShapeDtypeStruct((LENGTH, *x.shape), x.dtype), inputs)
    state = rnn.initialize_carry(NUM_ENVS)
    params = jax.eval_shape(lambda: rnn.init(key, state, inputs, method="step"))

    def step(params, state, inputs):
        return rnn.apply(params, state, inputs, method="step")

    def update(params, state, inputs):
        return jax.grad(lambda params: jnp.mean(jnp.square(rnn.apply(params, state, inputs)[1])))(params)

    return launches(step, params, state, inputs), launches(update, params, state, sequence) / LENGTH


print("| cell | kernels of a step | kernels of a gradient step, per time step |\n|---|---|---|")
for name in sys.argv[1:] or CELLS:
    print("| {} | {} | {:.2f} |".format(name, *count(name)), flush=True)
