import jax.numpy as jnp
import pytest

from stoix_like.single_file import ff_az


@pytest.mark.slow
def test_returns_end_with_episodes_and_bootstrap_where_they_are_truncated():
    az = ff_az.AlphaZero(ff_az.Config(gamma=0.5, n_step=2))
    flags = jnp.array([[False], [True], [False], [False]])

    def targets(terminated, truncated):
        value = jnp.full((4, 1), 4.0)
        batch = ff_az.Sample(None, jnp.ones((4, 1)), terminated, truncated, None, value)
        return az.value_target(batch)[:, 0].tolist()

    # 1 + 4 / 2 = 3 for one step, 1 + 3 / 2 for two; the sequence ends after the last step.
    assert targets(flags & False, flags & False) == [2.5, 2.5, 2.5, 3]
    assert targets(flags & False, flags) == [2.5, 3, 2.5, 3]
    assert targets(flags, flags & False) == [1.5, 1, 2.5, 3]
