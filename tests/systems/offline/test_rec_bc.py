from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from stoix_like.base_types import Axes
from stoix_like.networks.requirements import DETERMINISTIC_POLICY
from stoix_like.systems.offline.anakin.rec_bc import RecurrentBC
from support.accumulator import IS_FIRST, VIEWS, Accumulator, column, observed
from support.set_ups import config_of


class Summing(Accumulator):
    """The accumulator, whose action is its state."""

    action_head = SimpleNamespace(outputs=DETERMINISTIC_POLICY)

    def apply(self, *args, **kwargs):
        states, pi = super().apply(*args, **kwargs)
        return states, SimpleNamespace(mode=lambda: pi.preferences[..., 0])


def clone(batch):
    """Return a clone with a burn-in of one step, whose buffer always returns the same batch."""
    config = SimpleNamespace(replay=SimpleNamespace(burn_in_length=1))
    replay = SimpleNamespace(sample=lambda local, key, progress: batch)
    normalizer = SimpleNamespace(apply=lambda statistics, observation: observation)
    return RecurrentBC(config, Axes(), replay, normalizer, Summing(), None)


def test_only_the_steps_after_the_burn_in_are_imitated():
    """Weight w = 2: the burn-in leads from 10 to 12, and the states are 12 + 2w = 16, 12 + 5w = 22 | 5w = 10, 6w = 12.

    Errors of 1 and -2 have the loss (1 + 4) / 4 and the gradient (2 * 1 * 2 - 2 * 2 * 5) / 4 = -4; through the burn-in,
    it would be (2 * 1 * 3 - 2 * 2 * 6) / 4.
    """
    steps = SimpleNamespace(observation=observed(VIEWS), action=column([1000.0, 15.0, 24.0, 10.0, 12.0]))
    batch = SimpleNamespace(steps=steps, is_first=column(IS_FIRST, bool), carry=jnp.asarray([10.0]))
    bc = clone(batch)
    loss = jax.jit(jax.value_and_grad(lambda weight: bc.loss(weight, bc.draw(None, None), ()), has_aux=True))
    (value, metrics), gradient = loss(2.0)
    assert (float(value), float(gradient)) == (1.25, -4.0)
    assert metrics == {"imitation_loss": 1.25}
    # What diagnostics see is every step.
    assert bc.observations(SimpleNamespace(local=None), None, None).agent_view.tolist() == [[view] for view in VIEWS]


@pytest.mark.parametrize(("burn_in", "length"), [(0, 32), (3, 29)])
def test_a_sequence_has_no_step_more_for_a_successor(burn_in, length):
    sizes = [f"system.burn_in_length={burn_in}", f"system.sequence_length={length}"]
    config = config_of("system=offline/rec_bc", *sizes).system
    assert config.replay.num_steps == 32
    # Blocks of 16 steps.
    assert config.replay.window == 32
