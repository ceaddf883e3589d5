import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.errors import ConfigError
from stoix_like.systems.dreamer.dreamer_types import LaPropConfig
from support.set_ups import config_of
from support.tiny_dreamer import TINY


def config(*overrides):
    return config_of(*TINY, "env=gymnax/cartpole", *overrides).system


def test_the_train_ratio_determines_the_gradient_steps():
    """4 environments of 2 shards, 4 steps: 32 steps of 4 replayed ones each, in batches of 4 x 8."""
    assert config().replay.steps_per_update(config().rollout_length, 4, 2) == 4
    # The budget of data alone counts gradient steps.
    offline = config("arch=offline", "system.data=some.npz", "system.train_ratio=3")
    offline.check(4, 1)
    assert offline.replay.steps_per_update(offline.rollout_length, 4, 2) == 1
    with pytest.raises(ConfigError, match=r"train_ratio=3 makes 48 replayed .* no multiple of 32 .*train_ratio=4"):
        config("system.train_ratio=3").check(4, 1)
    # A batch of which an update replays a small part is what is wrong, not the ratio.
    with pytest.raises(
        ConfigError, match=r"makes 64 replayed steps .* no multiple of .*use system.total_batch_size=8,"
    ):
        config("system.total_batch_size=1000000000", "system.total_buffer_size=1000000000").check(4, 1)
    with pytest.raises(ConfigError, match=r"return_percentile_low=95.0 must be less than"):
        config("system.return_percentile_low=95").check(4, 1)
    with pytest.raises(ConfigError, match=r"system.momentum_decay=1.0 is out of range: it must be in \[0.0, 1.0\)"):
        config("system.momentum_decay=1")


def test_the_learning_rate_grows_from_zero_and_gradients_are_clipped_by_their_parameters():
    """Of a parameter of norm 2, a gradient of 8 is clipped to 0.5 * 2 = 1, and the next one, 0.5, stays.

    The mean of both squares with a decay of 1/2 is (1/2 * 1 + 0.5^2) / (1 + 1/2) = 1/2, so that the second step is
    0.5 / sqrt(1/2) times its rate, half of 0.1. The first rate is 0.
    """
    sizes = ["system.lr=0.1", "system.lr_warmup_steps=2", "system.max_relative_norm=0.5"]
    decays = ["system.momentum_decay=0", "system.rms_decay=0.5"]
    optim = config(*sizes, *decays).find_part(LaPropConfig).make_optimiser()
    params = jnp.asarray([2.0])

    @jax.jit
    def steps():
        first, state = optim.update(jnp.asarray([8.0]), optim.init(params), params)
        return first, optim.update(jnp.asarray([0.5]), state, params)[0]

    np.testing.assert_allclose(steps(), [[0.0], [-0.05 * 0.5 * 2**0.5]], rtol=1e-6)
