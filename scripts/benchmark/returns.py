"""Time advantage estimation as a scan over time and as an associative scan, on jax's default backend.

Print a markdown table of microseconds per call, the median of alternating runs. Run it with `JAX_PLATFORMS=cpu` or on
an accelerator to decide on the argument `associative`.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from stoix_like.utils.multistep import batch_truncated_generalized_advantage_estimation


def make_call(length: int, batch: int, associative: bool) -> Callable[[], None]:
    """Return a compiled estimation of `[length, batch]` advantages that blocks until its result is ready."""
    keys = jax.random.split(jax.random.key(0), 3)
    r_t, v_tm1, v_t = (jax.random.normal(key, (length, batch)) for key in keys)
    discount_t = jnp.full((length, batch), 0.99)

    @jax.jit
    def estimate(r_t: jax.Array, discount_t: jax.Array, v_tm1: jax.Array, v_t: jax.Array) -> jax.Array:
        return batch_truncated_generalized_advantage_estimation(
            r_t, discount_t, 0.95, v_tm1=v_tm1, v_t=v_t, time_major=True, associative=associative
        )[0]

    def call() -> None:
        estimate(r_t, discount_t, v_tm1, v_t).block_until_ready()

    call()
    return call


def seconds_per_call(call: Callable[[], None], at_least: float) -> float:
    """Return the mean duration of calls, repeated for at least `at_least` seconds."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < at_least:
        call()
        calls += 1
    return elapsed / calls


def main() -> None:
    """Measure every size and print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048, 4096], help="numbers of time steps")
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 64, 1024], help="numbers of sequences")
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs; the median counts")
    parser.add_argument("--seconds", type=float, default=0.05, help="minimum duration of a run")
    arguments = parser.parse_args()
    device = jax.devices()[0]
    print(f"{device.platform} ({device.device_kind}), jax {jax.__version__}, microseconds per call\n")
    print("| length | batch | scan | associative | associative / scan |\n|---|---|---|---|---|")
    for length in arguments.lengths:
        for batch in arguments.batches:
            calls = [make_call(length, batch, associative) for associative in (False, True)]
            runs = [[seconds_per_call(call, arguments.seconds) for call in calls] for _ in range(arguments.repeats)]
            scan, associative = (1e6 * statistics.median(times) for times in zip(*runs, strict=True))
            print(f"| {length} | {batch} | {scan:.0f} | {associative:.0f} | {associative / scan:.2f} |", flush=True)


if __name__ == "__main__":
    main()
