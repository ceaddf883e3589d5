"""Gradient steps of off-policy systems on the weights, batches and noise of stable-baselines3 and sb3-contrib.

Both sides start from the same float32 numbers; theirs are then computed in float64, so that the differences are the
rounding of ours. The largest is that of Adam's bias correction: 1 - 0.999 is 1.3e-5 too small in float32, and its root
changes the first steps by 0.7e-5 of their size; hence a tolerance of 3e-5 of the largest entry of a layer. Losses are
those of four steps, parameters their changes after all of them. `scripts/parity/record_off_policy.py` recorded the
references.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import OnlineAndTarget
from stoix_like.systems.ddpg.ddpg_types import DDPGParams
from stoix_like.systems.sac.sac_types import SACParams
from support import parity
from support.parity import agree, change, critics, load, mean_gradient, perceptron, squashed_policy

pytestmark = pytest.mark.slow

GAMMA, TAU, TOLERANCE = 0.9, 0.5, 3e-5
COMMON = [f"system.gamma={GAMMA}", f"system.tau={TAU}", "system.adam_eps=1e-3", "system.q_lr=1e-2"]
SMALL = [
    *COMMON,
    "system.actor_lr=1e-2",
    "network.actor_network.pre_torso.layer_sizes=[16,16]",
    "network.q_network.pre_torso.layer_sizes=[16,16]",
]
DISCRETE = [
    *COMMON,
    "env.kwargs={discrete:true}",
    "network.actor_network.pre_torso.layer_sizes=[16,16]",
    "system.decay_learning_rates=false",
    "system.max_grad_norm=0.5",
    "system.huber_loss_parameter=1.0",
]


def soft(system, recorded, *overrides):
    """Return SAC or TQC with recorded weights."""
    sac, shapes = parity.algorithm(system, *SMALL, "system.alpha_lr=1e-2", *overrides)
    policy, values = squashed_policy(recorded["initial"]["actor"]), critics(recorded["initial"]["critic"])
    params = SACParams(policy, OnlineAndTarget(values, values), np.zeros((), np.float32))
    return sac, parity.with_params(shapes, params)


def soft_steps(sac, shared, recorded):
    """Take the recorded gradient steps; return the state after them, and the losses of each."""
    rows = recorded["batch"]

    @jax.jit
    def step(shared, batch, noise, next_noise):
        draws = [(batch.observation, noise), (batch.next_observation, next_noise)]
        noisy = dataclasses.replace(sac, actor=parity.RecordedNoise(sac.actor, draws))
        return noisy.sgd_step(shared, batch, jax.random.key(0))

    losses = []
    for i in range(len(recorded["loss"]["critic_loss"])):
        batch = parity.batch_of(rows, i, GAMMA)
        shared, metrics = step(shared, batch, rows["noise"][i], rows["next_noise"][i])
        losses.append(metrics)
    return shared, parity.stack(losses)


def agree_soft(name, shared, losses, recorded, scale=1.0):
    """Check losses, gradients, parameters and targets; `scale`: our loss of the critics in units of theirs."""
    agree(f"{name}: loss of the critics", losses["q_loss"], scale * recorded["loss"]["critic_loss"], TOLERANCE)
    agree(f"{name}: loss of the policy", losses["actor_loss"], recorded["loss"]["actor_loss"], TOLERANCE)
    policy, q = shared.params.actor_params, shared.params.q_params
    agree_network(f"{name}: policy", recorded, "actor", squashed_policy, policy, shared.opt_states.actor_opt_state)
    agree_network(f"{name}: critics", recorded, "critic", critics, q.online, shared.opt_states.q_opt_state, scale)
    agree_target(f"{name}: target critics", recorded, "critic", critics, q.target)


def agree_network(name, recorded, which, convert, params, opt_state, scale=1.0):
    """Check the gradients and the new parameters of a network."""
    expected = jax.tree.map(lambda leaf: scale * leaf, convert(recorded["mean_gradient"][which]))
    agree(f"{name}: gradients", mean_gradient(opt_state), expected, TOLERANCE)
    before, after = (convert(recorded[when][which]) for when in ("initial", "final"))
    agree(f"{name}: parameters", change(params, before), change(after, before), TOLERANCE)


def agree_target(name, recorded, which, convert, params):
    """Check the new target parameters of a network."""
    before, after = (convert(recorded[when][which]) for when in ("initial", "target"))
    agree(name, change(params, before), change(after, before), TOLERANCE)


def test_sac():
    recorded = load("sb3_sac")
    sac, shared = soft("sac/ff_sac", recorded, "system.autotune=false", "system.ent_coef=0.2")
    agree_soft("SAC", *soft_steps(sac, shared, recorded), recorded)


def test_temperature_of_sac():
    """One step: theirs is linear in the logarithm of the temperature, ours (and the paper's) in the temperature.

    At a temperature of 1 both have the same value and gradient; the logarithm itself, and so their loss, is 0.
    """
    recorded = load("sb3_sac_temperature")
    sac, shared = soft("sac/ff_sac", recorded)
    shared, losses = soft_steps(sac, shared, recorded)
    agree_soft("SAC with a learned temperature", shared, losses, recorded)
    expected = recorded["final"]["log_ent_coef"][0]
    agree("SAC: logarithm of the temperature", shared.params.log_alpha, expected, TOLERANCE)


def test_tqc():
    """Their loss is the mean over two critics, ours (and the paper's) the sum."""
    recorded = load("sb3_tqc")
    fixed = ("system.autotune=false", "system.ent_coef=0.2")
    sizes = ("system.num_critics=2", "system.num_quantiles=7", "system.num_dropped_quantiles=2")
    tqc, shared = soft("sac/ff_tqc", recorded, *fixed, *sizes)
    agree_soft("TQC", *soft_steps(tqc, shared, recorded), recorded, scale=2.0)


def test_td3():
    """Their loss is twice ours: ours is half the squared error."""
    recorded = load("sb3_td3")
    overrides = ("system.policy_frequency=2", "system.policy_noise=0.2", "system.noise_clip=0.5")
    td3, shapes = parity.algorithm("ddpg/ff_td3", *SMALL, *overrides)
    policy, values = deterministic_policy(recorded["initial"]["actor"]), critics(recorded["initial"]["critic"])
    shared = parity.with_params(shapes, DDPGParams(OnlineAndTarget(policy, policy), OnlineAndTarget(values, values)))
    rows = recorded["batch"]

    @jax.jit
    def step(shared, batch, noise):
        def smooth(action, key, actions):
            # The clipping of noise and of actions is tested beside its function.
            del key
            return jnp.clip(action + jnp.clip(0.2 * noise, -0.5, 0.5), actions.minimum[None], actions.maximum[None])

        return dataclasses.replace(td3, smooth=smooth).sgd_step(shared, batch, jax.random.key(0))

    losses = []
    for i in range(4):
        shared, metrics = step(shared, parity.batch_of(rows, i, GAMMA), rows["next_noise"][i])
        losses.append(metrics)
    agree("TD3: loss of the critics", parity.stack(losses)["q_loss"], 0.5 * recorded["loss"]["critic_loss"], TOLERANCE)
    (policy, q), opt_states = shared.params, shared.opt_states
    agree_network("TD3: policy", recorded, "actor", deterministic_policy, policy.online, opt_states.actor_opt_state)
    agree_network("TD3: critics", recorded, "critic", critics, q.online, opt_states.q_opt_state, 0.5)
    agree_target("TD3: target policy", recorded, "actor", deterministic_policy, policy.target)
    agree_target("TD3: target critics", recorded, "critic", critics, q.target)


def deterministic_policy(weights):
    """Return the policy of TD3 in stable-baselines3."""
    return {"params": perceptron(weights, "mu")}


@pytest.mark.parametrize(
    ("system", "name", "net"), [("ff_dqn", "sb3_dqn", "q_net"), ("ff_qr_dqn", "sb3_qr_dqn", "quantile_net")]
)
def test_dqn_and_qr_dqn(system, name, net):
    recorded = load(name)
    quantiles = ("system.num_quantiles=7",) if system == "ff_qr_dqn" else ()
    dqn, shapes = parity.algorithm(f"q_learning/{system}", *DISCRETE, *quantiles)

    def convert(weights):
        return {"params": perceptron(weights, net)}

    online = convert(recorded["initial"]["q"])
    shared = parity.with_params(shapes, OnlineAndTarget(online, online))

    @jax.jit
    def step(shared, batch, count):
        shared, losses, _ = dqn.sgd_step(shared, batch, jax.random.key(0))
        return shared._replace(params=dqn.update_target(shared.params, count)), {"loss": losses.mean()}

    losses = []
    for i in range(4):
        shared, metrics = step(shared, parity.batch_of(recorded["batch"], i, GAMMA), i + 1)
        losses.append(metrics)
    name = {"ff_dqn": "DQN", "ff_qr_dqn": "QR-DQN"}[system]
    agree(f"{name}: loss", parity.stack(losses)["loss"], recorded["loss"]["loss"], TOLERANCE)
    agree_network(name, recorded, "q", convert, shared.params.online, shared.opt_state)
    agree_target(f"{name}: target", recorded, "q", convert, shared.params.target)
