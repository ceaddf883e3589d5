import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Agent, Observation, OnlineAndTarget, Trajectory, Transition
from stoix_like.networks.distributions import Categorical
from stoix_like.networks.distributions.masks import mask_logits
from stoix_like.systems.disco_rl.anakin.ff_disco103 import DiscoShared, divergence
from stoix_like.systems.disco_rl.meta_network import RuleTargets
from stoix_like.utils.replay import SequenceBatch
from support import disco
from support.compiled import run
from support.disco import EXPECTED


def batch(steps):
    return SequenceBatch(steps, disco.ends(), (), jnp.ones((1, disco.B)), None)


@pytest.mark.slow
def test_loss_and_gradients_are_those_of_another_implementation(tmp_path):
    agent, expected = disco.make(*disco.save(tmp_path / "weights.npz")), EXPECTED["synthetic"]
    params = OnlineAndTarget(disco.predictions(1.0), disco.predictions(2.0))
    shared = DiscoShared(params, (), disco.LIFETIME, disco.MOMENTS)
    loss = jax.jit(jax.value_and_grad(agent.loss, has_aux=True))
    (total, (lifetime, moments, _)), gradients = loss(params.online, shared, batch(disco.steps()))
    np.testing.assert_allclose(total, expected["loss"], rtol=1e-5)
    np.testing.assert_allclose(jnp.stack(moments), EXPECTED["moments"], rtol=1e-5)
    np.testing.assert_allclose(lifetime.hidden[:6], expected["hidden"], atol=1e-5)
    found = {
        "logits": gradients.policy._logits,
        "y": gradients.y,
        "z": gradients.z,
        "q": gradients.q,
        "aux": gradients.next_policy,
    }
    sums = {name: jnp.sum(jnp.abs(gradient)) for name, gradient in found.items()}
    assert sums == pytest.approx(expected["gradients"], rel=1e-4)


@pytest.mark.parametrize("mask", [None, jnp.asarray([[True, False, True]])])
def test_divergence_of_masked_policies_is_finite(mask):
    logits = jnp.asarray([[1.0, 2.0, 3.0]])
    p, q = (Categorical(logits=logits).logits, Categorical(logits=2.0 * logits).logits)
    if mask is not None:
        low = jnp.finfo(jnp.float32).min
        p, q = jnp.where(mask, p, low), jnp.where(mask, q, low)
    probabilities = np.exp(np.asarray([1.0, 3.0] if mask is not None else [1.0, 2.0, 3.0]))
    first, second = (each / each.sum() for each in (probabilities, probabilities**2))
    value, gradient = run(jax.value_and_grad(lambda q: divergence(p, q)[0]), q)
    np.testing.assert_allclose(value, np.sum(first * np.log(first / second)), rtol=1e-5)
    assert np.isfinite(gradient).all()


def test_targets_of_the_policy_are_masked(tmp_path, monkeypatch):
    """Uniform targets and policies over three legal actions of four do not diverge."""
    shape = disco.T, disco.B
    targets = RuleTargets(*(jnp.zeros((*shape, size)) for size in (disco.A, 600, 600)))
    monkeypatch.setattr("stoix_like.systems.disco_rl.meta_network.apply", lambda *_: (targets, disco.LIFETIME))
    agent, steps = disco.make(*disco.save(tmp_path / "weights.npz")), disco.steps()
    mask = ~jax.nn.one_hot((steps.action + 1) % disco.A, disco.A, dtype=bool)
    steps = steps._replace(observation=steps.observation._replace(action_mask=mask))
    everywhere = jnp.concatenate([mask, jnp.ones_like(mask[:1])])
    policy = Categorical(logits=mask_logits(jnp.zeros(everywhere.shape), everywhere))
    params = OnlineAndTarget(*[disco.predictions(1.0)._replace(policy=policy)] * 2)
    shared = DiscoShared(params, (), disco.LIFETIME, disco.MOMENTS)
    _, (_, _, metrics) = jax.jit(agent.loss)(params.online, shared, batch(steps))
    assert float(metrics["policy_loss"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("random", [False, True])
def test_random_actions_are_stored_with_the_probabilities_of_random_legal_actions(random):
    """In a warm-up, the actions are not those that the policy chose."""
    added = []
    replay = SimpleNamespace(add=lambda local, trajectory: added.append(trajectory.transitions.extras.extras))
    agent = dataclasses.replace(disco.make(), replay=replay)
    chosen, logits = jnp.asarray([[0], [1]]), jnp.asarray([[[1.0, 2.0, 3.0]], [[3.0, 2.0, 1.0]]])
    view = Observation(jnp.zeros((2, 1, 1)), jnp.asarray([[[True, True, False]]] * 2))
    action = 1 - chosen if random else chosen
    nothing, no = jnp.zeros((2, 1)), jnp.zeros((2, 1), bool)
    steps = Transition(view, action, nothing, no, no, view, no, (chosen, logits))
    agent.observe(Agent((), ()), Trajectory(steps, ()))
    low = jnp.finfo(jnp.float32).min
    np.testing.assert_array_equal(added[0], jnp.asarray([[[0.0, 0.0, low]]] * 2) if random else logits)
