import jax
import numpy as np
import pytest

from stoix_like.loggers import MultiLogger
from stoix_like.run.training_loop import TrainingLoop
from support.algorithms import make_algorithm
from support.on_policy_runs import SMALLER as SMALL
from support.set_ups import setup_of


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo/ff_ppo", "vpg/ff_a2c"])
def test_held_noise_is_a_function_of_the_state_and_its_probability_is_exact(system, monkeypatch):
    """With a noise matrix per episode, the residuals of an episode of 6 steps are linear in 2 features.

    Log-probabilities are those of the current policy in the same state, so that the first ratio is one.
    """
    overrides = [*SMALL, f"system={system}", "env=gymnax/pendulum", "network=mlp_gsde", "system.sde_sample_freq=1000"]
    overrides = [o for o in overrides if system == "ppo/ff_ppo" or not o.startswith(("system.epochs", "system.num_m"))]
    overrides += ["network.actor_network.pre_torso.layer_sizes=[2]", "network.actor_network.action_head.min_scale=1e-6"]
    setup = setup_of(*overrides)
    algorithm, batches = type(make_algorithm(setup)), []
    targets = algorithm.targets

    def spy(self, agent, trajectory, *args):
        pi = self.networks.policy(agent.shared.params, trajectory.transitions.observation)
        steps = trajectory.transitions
        log_prob = pi.log_prob(steps.action)
        jax.debug.callback(
            lambda *x: batches.append(x), steps.action - pi.mode(), pi._features, steps.extras, log_prob, pi.stddev()
        )
        return targets(self, agent, trajectory, *args)

    monkeypatch.setattr(algorithm, "targets", spy)
    TrainingLoop(setup, MultiLogger([])).advance(1)
    jax.effects_barrier()
    noise, features, stored, log_prob, scale = (np.asarray(x) for x in batches[0])
    np.testing.assert_allclose(stored, log_prob, atol=1e-4)
    normal = -0.5 * (noise / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(stored, normal.sum(-1), atol=1e-3)
    for env in range(noise.shape[1]):
        matrix, *_ = np.linalg.lstsq(features[:, env, :2], noise[:, env], rcond=None)
        np.testing.assert_allclose(features[:, env, :2] @ matrix, noise[:, env], atol=1e-4)
    # Each environment has a matrix of its own.
    assert np.abs(noise[0, 0] - noise[0, 1]) > 1e-3
