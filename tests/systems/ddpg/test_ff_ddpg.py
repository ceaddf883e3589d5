import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation, RolloutState
from stoix_like.utils.loss import categorical_td_learning, td3_critic_loss
from support.off_policy_runs import algorithm, equal, random_batch, timestep

WIDE = ["env=gymnax/pendulum", "env.rescale_actions=false"]


def make_agent(system, *overrides):
    """Return an algorithm, a new agent, and the time step of 4 environments in the middle of an episode."""
    ddpg = algorithm(system, *overrides)
    size = ddpg.actions.minimum.shape[-1]
    assert size == 1
    width = 3 if "env=gymnax/pendulum" in overrides else 1
    view = Observation(jnp.linspace(-0.8, 0.8, 4 * width).reshape(4, width))
    step = timestep([1] * 4, [False] * 4)._replace(observation=view)
    return ddpg, jax.jit(ddpg.init)(jax.random.key(0), step), step


@pytest.mark.slow
def test_exploration_noise_scales_with_the_action_range():
    """Torques are in [-2, 2]: noise of 0.1 has a standard deviation of 0.2. Noisy actions stay in the bounds."""
    ddpg, agent, step = make_agent("ddpg/ff_ddpg", *WIDE)
    state = RolloutState((), step, jax.random.split(jax.random.key(9), 4))
    act = jax.vmap(lambda key: ddpg.act(agent.shared, state, key)[1])
    noise = act(jax.random.split(jax.random.key(1), 2000)) - ddpg.act(agent.shared, state, None, greedy=True)[1][None]
    assert float(noise.std()) == pytest.approx(0.2, rel=0.05)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.02)
    assert ddpg.actions.add_noise(jnp.full((4, 1), 1.9), jnp.full((4, 1), 0.2)).tolist() == [[2.0]] * 4


@pytest.mark.slow
def test_td3_clips_the_target_policy_noise():
    """Noise of deviation 0.2 is clipped to 0.25, in units of half the range [-2, 2]: to 0.5."""
    ddpg, agent, step = make_agent("ddpg/ff_td3", *WIDE, "system.noise_clip=0.25")
    params = agent.shared.params.actor_params.target
    plain = ddpg.policy(params, step.observation)
    smooth = jax.vmap(lambda key: ddpg.target_action(params, step.observation, key))
    noise = smooth(jax.random.split(jax.random.key(1), 2000)) - plain[None]
    assert float(jnp.abs(noise).max()) == pytest.approx(0.5, abs=1e-5)
    # For a standard normal x, P(|x| > 0.25 / 0.2) = 0.211.
    assert float(jnp.mean(jnp.abs(noise) > 0.4999)) == pytest.approx(0.211, abs=0.02)


@pytest.mark.slow
def test_critic_losses_equal_those_of_the_papers():
    """With weights of one half, the losses are half of the papers' losses of the batch."""
    batch, key = random_batch(16), jax.random.key(4)
    batch = batch._replace(weight=jnp.full((16,), 0.5))
    for system in ("ddpg/ff_ddpg", "ddpg/ff_td3", "ddpg/ff_d4pg"):
        ddpg, agent, _ = make_agent(system, "system.policy_noise=0.0") if "td3" in system else make_agent(system)
        # Targets start as copies.
        leaves, structure = jax.tree.flatten(agent.shared.params)
        keys = jax.random.split(jax.random.key(5), len(leaves))
        noisy = [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
        params = jax.tree.unflatten(structure, noisy)
        action = ddpg.policy(params.actor_params.target, batch.next_observation)
        q_t = ddpg.critics.apply(params.q_params.target, batch.next_observation, {"action": action})
        q_tm1 = ddpg.critics.apply(params.q_params.online, batch.observation, {"action": batch.action})
        if system.endswith("d4pg"):
            (_, logits_tm1, atoms_tm1), (_, logits_t, atoms_t) = jax.tree.map(lambda x: x[..., 0], (q_tm1, q_t))
            expected = categorical_td_learning(logits_tm1, atoms_tm1, batch.reward, batch.discount, logits_t, atoms_t)
        else:
            assert q_tm1.shape == (16, 2 if "td3" in system else 1)
            expected = td3_critic_loss(q_tm1, batch.reward, batch.discount, q_t)
        loss, _ = ddpg.critic_loss(params.q_params.online, params, batch, key)
        assert float(loss) == pytest.approx(0.5 * float(expected), rel=1e-5)


@pytest.mark.slow
def test_policy_gradient_is_that_of_the_first_critic():
    """The gradient of the actor loss follows from the chain rule: -mean(dq/da da/dtheta), equation 6."""
    ddpg, agent, _ = make_agent("ddpg/ff_td3")
    (actor_params, q_params), batch = agent.shared.params, random_batch(16)
    action, vjp = jax.vjp(lambda params: ddpg.policy(params, batch.observation), actor_params.online)
    dq_da = jax.grad(lambda a: ddpg.q_values(q_params.online, batch.observation, a)[:, 0].sum())(action)
    (expected,) = vjp(-dq_da * batch.weight[:, None] / 16)
    got = jax.grad(lambda params: ddpg.actor_loss(params, q_params.online, batch)[0])(actor_params.online)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), got, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("system", "targets"), [("ff_td3", [False, True, False]), ("ff_td3_c51", [True] * 3)])
def test_the_policy_updates_every_policy_frequency_steps_and_fast_td3s_targets_in_every_step(system, targets):
    ddpg, agent, _ = make_agent(f"ddpg/{system}", "system.policy_frequency=2")
    assert (agent.shared.params.actor_params.target == ()) == (system == "ff_td3_c51")
    sgd_step, batch, states = jax.jit(ddpg.sgd_step), random_batch(16), [agent.shared]
    for step in range(3):
        states.append(sgd_step(states[-1], batch, jax.random.key(step))[0])
    parts = [lambda p: p.q_params.online, lambda p: p.q_params.target, lambda p: p.actor_params]
    changed = [
        [not equal(part(old.params), part(new.params)) for old, new in itertools.pairwise(states)] for part in parts
    ]
    assert changed == [[True] * 3, targets, [False, True, False]]


@pytest.mark.slow
def test_critics_of_fast_td3_learn_their_own_targets_for_the_current_policy():
    ddpg, agent, _ = make_agent("ddpg/ff_td3_c51", "system.policy_noise=0", "system.critic_reduction=mean")
    (actor_params, q_params), batch = agent.shared.params, random_batch(16)
    # The heads start with equal distributions.
    q_params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), q_params)
    action = ddpg.policy(actor_params.online, batch.next_observation)
    _, logits_t, atoms = ddpg.critics.apply(q_params.target, batch.next_observation, {"action": action})
    _, logits_tm1, _ = ddpg.critics.apply(q_params.online, batch.observation, {"action": batch.action})
    each = [
        categorical_td_learning(
            logits_tm1[..., c], atoms[..., c], batch.reward, batch.discount, logits_t[..., c], atoms[..., c]
        )
        for c in range(2)
    ]
    params = agent.shared.params._replace(q_params=q_params)
    loss, _ = ddpg.critic_loss(q_params.online, params, batch, jax.random.key(0))
    assert float(loss) == pytest.approx(float(sum(each)), rel=1e-5)
