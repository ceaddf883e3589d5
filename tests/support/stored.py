"""A small checkpoint, and whether it is read back."""

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.storage import checkpoint

ITEMS = {
    "shared": {"weight": jax.device_put(np.arange(6.0).reshape(2, 3)), "updates": jnp.int32(7)},
    "rollout_state": {
        "key": jax.random.split(jax.random.key(3), 2),
        "contacts": jax.device_put(np.zeros((2, 0, 3), np.int32)),
        "no_keys": jax.random.split(jax.random.key(3), 0),
    },
}
TARGETS = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), ITEMS)


def save(run_dir, *steps):
    run_dir.mkdir(exist_ok=True)
    writer = checkpoint.Writer(run_dir, len(steps))
    for step in steps:
        writer.save(step, ITEMS, {"step": step})
    writer.close()
    return writer


def assert_intact(found):
    assert found.host_state == {"step": found.step}
    for item, leaves in ITEMS.items():
        for name, leaf in leaves.items():
            assert found.items[item][name].dtype == leaf.dtype
            is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            words = jax.random.key_data if is_key else np.asarray
            np.testing.assert_array_equal(words(found.items[item][name]), words(leaf))
