import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation, OnlineAndTarget
from support.accumulator import algorithm, column, replayed, rollout
from support.compiled import run
from support.set_ups import trained

SMALL = [
    *("system.burn_in_length=1", "system.sequence_length=4", "system.sequence_period=4"),
    *("system.n_step=2", "system.gamma=0.5"),
]


# Weight 1, online: the burn-in gives 11, and the states after it are 13, 16 | 5, 6. Weight 2, target: 12; the states
# are 16, 22 | 10, 12, and those of the true successors 22, 36 | 12, 20. With two steps and gamma = 1/2:
#   G_4 = 4 + 20/2 = 14                G_3 = 3 + (4 + 20/2)/2 = 10
#   G_2 = 2 + 36/2 = 20, truncated     G_1 = 1 + (2 + 36/2)/2 = 11
# The errors are 11 - 13, 20 - 16, 10 - 5 and 14 - 6. Without the burn-in, G_1 - q would be 12 - 14, and with a reset
# state of the successor of step 2, G_2 = 2 + 14/2.
ERRORS = [-2.0, 4.0, 5.0, 8.0]


@pytest.mark.parametrize("stored", [True, False])
def test_r2d2_bootstraps_from_true_successors_with_their_states(stored):
    """Where successors are not stored, windows that end with the truncated step have no target."""
    overrides = [f"system.store_next_observation={stored}", "system.rescale_values=false"]
    r2d2 = algorithm("q_learning/rec_r2d2", *SMALL, *overrides)
    losses, _ = jax.jit(r2d2.losses)(OnlineAndTarget(1.0, 2.0), replayed(stored), jax.random.key(0))
    errors = ERRORS if stored else [0.0, 0.0, *ERRORS[2:]]
    np.testing.assert_allclose(losses[:, 0], 0.5 * np.square(errors), rtol=1e-6)


@pytest.mark.slow
def test_r2d2_learns_rescaled_values():
    """With states as rescaled values, the target of the last step is h(4 + h^-1(20) / 2).

    h(x) = y - 1 + (y^2 - 1) / 1000 with y = sqrt(x + 1). h(x) = 20 has y = 500 (sqrt(1.084004) - 1) = 20.5776, that is
    x = 422.436; and h(4 + 211.218) = sqrt(216.218) - 1 + 0.2152 = 13.9195.
    """
    r2d2 = algorithm("q_learning/rec_r2d2", *SMALL)
    losses, _ = r2d2.losses(OnlineAndTarget(1.0, 2.0), replayed(True), jax.random.key(0))
    assert float(losses[-1, 0]) == pytest.approx(0.5 * (13.9195 - 6.0) ** 2, rel=1e-4)


def test_the_online_network_chooses_the_action_that_the_target_network_values():
    """With the online weight -3, the last successor prefers the second action, worth -20: 4 - 20/2 = -6.

    The last step has the value 6 (-3), see `ERRORS`.
    """
    r2d2 = algorithm("q_learning/rec_r2d2", *SMALL, "system.rescale_values=false")
    losses, _ = run(r2d2.losses, OnlineAndTarget(-3.0, 2.0), replayed(True), jax.random.key(0))
    assert float(losses[-1, 0]) == pytest.approx(0.5 * (-6.0 + 18.0) ** 2)


def test_illegal_actions_are_excluded_from_the_bootstrap_value():
    """With the second action alone, the last successor has the value -20: its target is 4 - 20/2."""
    r2d2 = algorithm("q_learning/rec_r2d2", *SMALL, "system.rescale_values=false")
    batch = replayed(True)
    legal = jnp.broadcast_to(jnp.asarray([[[False, True]]]), (5, 1, 2))
    masked = batch.steps.next_observation._replace(action_mask=legal)
    batch = batch._replace(steps=batch.steps._replace(next_observation=masked))
    losses, _ = run(r2d2.losses, OnlineAndTarget(1.0, 2.0), batch, jax.random.key(0))
    assert float(losses[-1, 0]) == pytest.approx(0.5 * (-6.0 - 6.0) ** 2)
    pqn = algorithm("q_learning/rec_pqn", "system.gamma=0.5", "system.q_lambda=0.0")
    trajectory = rollout()
    masked = Observation(trajectory.transitions.next_observation.agent_view, legal[1:])
    trajectory = trajectory._replace(transitions=trajectory.transitions._replace(next_observation=masked))
    # The successors have the values -15, -22, -6 and -10.
    np.testing.assert_allclose(pqn.evaluate(1.0, trajectory).target[0], [-6.5, -9.0, 0.0, -1.0])


@pytest.mark.slow
def test_r2d2_does_not_differentiate_through_the_burn_in():
    """The gradient of the last state after the reset, 6 w, is -(14 - 6 w) 6; the first ones depend on w by 2 and 5."""
    overrides = ["system.rescale_values=false"]
    r2d2 = algorithm("q_learning/rec_r2d2", *SMALL, *overrides)

    def loss(weight):
        return jnp.sum(r2d2.losses(OnlineAndTarget(weight, 2.0), replayed(True), jax.random.key(0))[0])

    slopes = [2.0, 5.0, 5.0, 6.0]
    assert float(jax.grad(loss)(1.0)) == pytest.approx(-sum(e * s for e, s in zip(ERRORS, slopes, strict=True)))


def test_priorities_mix_the_largest_and_the_mean_error():
    """0.9 * 8 + 0.1 * 19/4 = 7.675, and its root."""
    r2d2 = algorithm("q_learning/rec_r2d2", "system.max_priority_weight=0.9", "system.priority_exponent=0.5")
    r2d2 = dataclasses.replace(r2d2, replay=r2d2.replay._replace(set_priorities=lambda *arguments: arguments))
    losses = 0.5 * jnp.square(column(ERRORS))
    _, indices, priorities = run(r2d2.set_priorities, (), replayed(True, indices=jnp.asarray([0])), losses)
    assert indices.tolist() == [0]
    np.testing.assert_allclose(priorities, [7.675**0.5], rtol=1e-5)


MEMORY = {
    "q_learning/rec_pqn": ["arch.total_timesteps=65536", "system.num_minibatches=2", "system.q_lr=5e-3"],
    # Episodes have five steps, and sequences start at every fourth one: most start after the cue, from a stored state.
    "q_learning/rec_r2d2": [
        *("arch.total_timesteps=24576", "system.warmup_steps=32", "system.total_buffer_size=8192", "system.tau=0.05"),
        *("system.burn_in_length=2", "system.sequence_length=6", "system.sequence_period=4", "system.q_lr=5e-3"),
        "network.actor_network.action_head.layer_sizes=[8]",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("system", MEMORY)
def test_memory_repeats_the_first_cue(system):
    """The cue is shown four steps before the action; a policy without memory earns at most one half."""
    network = [f"network.actor_network.{torso}_torso.layer_sizes=[8]" for torso in ("pre", "post")]
    sizes = ["network.actor_network.rnn_layer.hidden_state_dim=8", "arch.total_num_envs=16", "system.rollout_length=16"]
    run = ["arch.compile_cache=false", "arch.absolute_metric=false", "arch.num_evaluation=1", "arch.num_devices=1"]
    overrides = ["env=probe/repeat_first", *network, *sizes, *run, "arch.num_eval_episodes=256", *MEMORY[system]]
    loop = trained(f"system={system}", *overrides)
    assert loop.history[-1]["eval/episode_return_mean"] == pytest.approx(1.0, abs=0.05)
