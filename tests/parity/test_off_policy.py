"""Gradient steps of off-policy systems on the weights, batches and noise of other implementations.

Both sides start from the same float32 numbers; theirs are then computed in float64, so that the differences are the
rounding of ours. The largest ones are those of Adam's bias correction, whose 1 - 0.999 is 1.3e-5 too small in float32,
and of parameters near 1, whose rounding of 6e-8 is 6e-5 of a change by 1e-3; hence a tolerance of 1e-4 of the largest
entry of a layer. Losses are those of four steps, parameters their changes after all of them.
`record_off_policy.py`, `record_crossq.py`, `record_xqc.py` and `record_fast_td3.py` in `scripts/parity` recorded the
references.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import OnlineAndTarget
from stoix_like.networks.hyperspherical import UNIT_KERNEL
from stoix_like.networks.normalisation import STATISTICS, BatchRenorm
from stoix_like.systems.ddpg.ddpg_types import DDPGParams
from stoix_like.systems.sac.sac_types import SACParams
from support import parity
from support.parity import agree, change, critics, dense, load, mean_gradient, perceptron, squashed_policy

pytestmark = pytest.mark.slow

FIRST = ("Dense_0", "Dense_1")
GAMMA, TAU, TOLERANCE = 0.9, 0.5, 1e-4
COMMON = [f"system.gamma={GAMMA}", f"system.tau={TAU}", "system.adam_eps=1e-3", "system.q_lr=1e-2"]
SMALL = [
    *COMMON,
    "system.actor_lr=1e-2",
    "network.actor_network.pre_torso.layer_sizes=[16,16]",
    "network.q_network.pre_torso.layer_sizes=[16,16]",
]
DISCRETE = [
    *COMMON,
    *("env.kwargs={discrete:true}", "network.actor_network.pre_torso.layer_sizes=[16,16]"),
    *("system.decay_learning_rates=false", "system.max_grad_norm=0.5", "system.huber_loss_parameter=1.0"),
]


def soft(system, recorded, *overrides):
    sac, shared = parity.algorithm(system, *SMALL, "system.alpha_lr=1e-2", *overrides)
    policy, values = squashed_policy(recorded["initial"]["actor"]), critics(recorded["initial"]["critic"])
    params = SACParams(policy, OnlineAndTarget(values, values), np.zeros((), np.float32))
    return sac, parity.with_params(shared, params)


def gradient_steps(step, shared, recorded, *noises):
    """Take the recorded gradient steps, each with rows of noises; return the state after them, and their losses."""
    rows, losses = recorded["batch"], []
    for i in range(len(next(iter(recorded["loss"].values())))):
        shared, metrics = step(shared, parity.batch_of(rows, i, GAMMA), *(rows[name][i] for name in noises))
        losses.append(metrics)
    return shared, parity.stack(losses)


def soft_steps(sac, shared, recorded):
    @jax.jit
    def step(shared, batch, noise, next_noise):
        draws = [(batch.observation, noise), (batch.next_observation, next_noise)]
        noisy = dataclasses.replace(sac, actor=parity.RecordedNoise(sac.actor, draws))
        return noisy.sgd_step(shared, batch, jax.random.key(0))

    return gradient_steps(step, shared, recorded, "noise", "next_noise")


def agree_soft(name, shared, losses, recorded, scale=1.0):
    """Check losses, gradients, parameters and targets; `scale`: our loss of the critics in units of theirs."""
    agree(f"{name}: loss of the critics", losses["q_loss"], scale * recorded["loss"]["critic_loss"], TOLERANCE)
    agree(f"{name}: loss of the policy", losses["actor_loss"], recorded["loss"]["actor_loss"], TOLERANCE)
    policy, q = shared.params.actor_params, shared.params.q_params
    agree_network(f"{name}: policy", recorded, "actor", squashed_policy, policy, shared.opt_states.actor_opt_state)
    agree_network(f"{name}: critics", recorded, "critic", critics, q.online, shared.opt_states.q_opt_state, scale)
    agree_target(f"{name}: target critics", recorded, "critic", critics, q.target)


def agree_network(name, recorded, which, convert, params, opt_state, scale=1.0):
    expected = jax.tree.map(lambda leaf: scale * leaf, convert(recorded["mean_gradient"][which]))
    agree(f"{name}: gradients", mean_gradient(opt_state), expected, TOLERANCE)
    before, after = (convert(recorded[when][which]) for when in ("initial", "final"))
    agree(f"{name}: parameters", change(params, before), change(after, before), TOLERANCE)


def agree_target(name, recorded, which, convert, params):
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
    means = (mean_gradient(shared.opt_states.alpha_opt_state), recorded["mean_gradient"]["log_ent_coef"][0])
    agree("SAC with a learned temperature: its gradient", *means, TOLERANCE)
    expected = recorded["final"]["log_ent_coef"][0]
    agree("SAC with a learned temperature: its logarithm", shared.params.log_alpha, expected, TOLERANCE)


def test_tqc():
    """Their loss is the mean over two critics, ours (and the paper's) the sum."""
    recorded = load("sb3_tqc")
    fixed = ("system.autotune=false", "system.ent_coef=0.2")
    sizes = ("system.num_critics=2", "system.num_quantiles=7", "system.num_dropped_quantiles=2")
    tqc, shared = soft("sac/ff_tqc", recorded, *fixed, *sizes)
    agree_soft("TQC", *soft_steps(tqc, shared, recorded), recorded, scale=2.0)


def renormalised(weights, head, dense):
    """Return a perceptron of sbx with batch renormalisation; `dense`: the layers of the head, one behind the other."""
    torso = {name: layer for name, layer in weights.items() if name.startswith("BatchRenorm") or name in FIRST}
    outputs = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=-1), *(weights[name] for name in dense))
    return {"torso": torso, head: {"Dense_0": outputs}}


def crossq_policy(weights):
    return {"params": renormalised(weights, "action_head", ("Dense_2", "Dense_3"))}


def crossq_critics(weights):
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], weights["VmapCritic_0"]) for i in range(2)]
    return {"params": {f"networks_{i}": renormalised(each[i], "critic_head", ("Dense_2",)) for i in range(2)}}


def moments(statistics):
    """Return the running means and variances of a torso, ours or that of sbx."""
    names = {"mean": "mean", "var": "variance"}
    return {
        layer: {kind: rows[kind if kind in rows else names[kind]] for kind in names}
        for layer, rows in statistics.items()
        if layer.startswith("BatchRenorm")
    }


def agree_renormalised(name, shared, recorded, converts, moments_of):
    """Check the parameters and the statistics of both networks; `moments_of` reads those of the other side."""
    after = {"actor": shared.params.actor_params, "critic": shared.params.q_params.online}
    opt_states = {"actor": shared.opt_states.actor_opt_state, "critic": shared.opt_states.q_opt_state}
    for which in after:
        params, gradients = ({"params": tree["params"]} for tree in (after[which], mean_gradient(opt_states[which])))
        convert = converts[which]
        agree(f"{name}: {which}: gradients", gradients, convert(recorded["mean_gradient"][which]), TOLERANCE)
        before, expected = (convert(recorded[when][which]) for when in ("initial", "final"))
        agree(f"{name}: {which}: parameters", change(params, before), change(expected, before), TOLERANCE)
    got, statistics = after["actor"]["batch_stats"]["torso"], recorded["statistics"]
    agree(f"{name}: statistics of the policy", moments(got), moments_of(statistics["actor"]), TOLERANCE)
    for i in range(2):
        got = after["critic"]["batch_stats"][f"networks_{i}"]["torso"]
        expected = moments_of(jax.tree.map(lambda leaf, i=i: leaf[i], statistics["critic"]["VmapCritic_0"]))
        agree(f"{name}: statistics of critic {i}", moments(got), expected, TOLERANCE)


def test_crossq():
    recorded = load("sbx_crossq")
    layers = ("momentum=0.9", "warmup_steps=100")
    torsos = [f"network.{name}_network.pre_torso.{layer}" for name in ("actor", "q") for layer in layers]
    overrides = [override for override in SMALL if "tau" not in override]
    fixed = ("system.autotune=false", "system.ent_coef=0.2", "system.policy_frequency=2", "system.adam_b1=0.5")
    crossq, shared = parity.algorithm("sac/ff_crossq", *overrides, "system.alpha_lr=1e-2", *torsos, *fixed)
    converts = {"actor": crossq_policy, "critic": crossq_critics}
    initial = {"actor": shared.params.actor_params, "critic": shared.params.q_params.online}
    variables = {which: initial[which] | convert(recorded["initial"][which]) for which, convert in converts.items()}
    params = SACParams(variables["actor"], OnlineAndTarget(variables["critic"], ()), np.zeros((), np.float32))
    shared, losses = soft_steps(crossq, parity.with_params(shared, params), recorded)
    agree("CrossQ: loss of the critics", losses["q_loss"], recorded["loss"]["critic_loss"], TOLERANCE)
    # The policy improves in every second step, where its metrics count twice.
    expected = 2.0 * recorded["loss"]["actor_loss"] * [0, 1, 0, 1]
    agree("CrossQ: loss of the policy", losses["actor_loss"], expected, TOLERANCE)
    agree_renormalised("CrossQ", shared, recorded, converts, moments)


def unit_layers(weights, head, *outputs):
    """Return the networks of XQC as torso and head; `outputs`: the layers of the head."""
    blocks = [weights["MLP_0"][f"XQCBlock_{i}"] for i in range(2)]
    norms = [weights["BatchNormEmbedder_0"]["BatchNorm_0"], *(block["BatchNorm_0"] for block in blocks)]
    torso = {f"BatchRenorm_{i}": norm for i, norm in enumerate(norms)}
    torso |= {f"UnitDense_{i}": {UNIT_KERNEL: block["Dense_0"]["kernel"]} for i, block in enumerate(blocks)}
    layers = {
        f"UnitOutput_{i}": {"UnitDense_0": {UNIT_KERNEL: layer["kernel"]}, "bias": layer["bias"]}
        for i, layer in enumerate(outputs)
    }
    return {"torso": torso, head: layers}


def xqc_policy(weights):
    head = weights["predictor_tanh_gauss"]
    return {"params": unit_layers(weights, "action_head", head["mean"], head["log_std"])}


def xqc_critics(weights):
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], weights["VmapCritic_0"]) for i in range(2)]
    heads = [unit_layers(critic, "critic_head", critic["predictor_scalar"]["value"]) for critic in each]
    return {"params": {f"networks_{i}": head for i, head in enumerate(heads)}}


def test_xqc():
    """Their temperature is 1 at first, and target critics differ from the critics."""
    recorded = load("xqc")
    fixed = ("system.policy_frequency=1", "system.decay_learning_rates=false", "system.init_alpha=1")
    atoms = ("system.num_atoms=7", "system.vmin=-3", "system.vmax=3", "network.actor_network.pre_torso.momentum=0.99")
    xqc, shared = parity.algorithm("sac/ff_xqc", *SMALL, "system.alpha_lr=1e-2", *fixed, *atoms)
    converts = {"actor": xqc_policy, "critic": xqc_critics, "target": xqc_critics}
    rest = {"actor": shared.params.actor_params, "critic": shared.params.q_params.online}
    rest["target"] = rest["critic"]
    variables = {which: rest[which] | convert(recorded["initial"][which]) for which, convert in converts.items()}
    q_params = OnlineAndTarget(variables["critic"], variables["target"])
    params = SACParams(variables["actor"], q_params, np.zeros((), np.float32))
    shared, losses = soft_steps(xqc, parity.with_params(shared, params), recorded)
    for ours, theirs in (("q_loss", "critic_loss"), ("actor_loss", "actor_loss"), ("alpha_loss", "temp_loss")):
        agree(f"XQC: {ours}", losses[ours], recorded["loss"][theirs], TOLERANCE)
    agree_renormalised("XQC", shared, recorded, converts, xqc_moments)
    target = {"params": shared.params.q_params.target["params"]}
    agree("XQC: target critics", target, xqc_critics(recorded["target"]["critic"]), TOLERANCE)
    agree("XQC: temperature", shared.params.log_alpha, recorded["final"]["log_temp"], TOLERANCE)


def xqc_moments(statistics):
    """Return the running means and variances of a network of the authors."""
    blocks = statistics["MLP_0"]
    layers = [statistics["BatchNormEmbedder_0"], *(blocks[f"XQCBlock_{i}"] for i in range(2))]
    return {f"BatchRenorm_{i}": layer["BatchNorm_0"] for i, layer in enumerate(layers)}


def test_batch_renormalisation():
    """With epsilon = 1e-8: sbx adds it elsewhere, which is no rounding where variances are near it.

    It divides by sqrt(var / r^2 + epsilon), ours by sqrt(var + epsilon) / r, and it shifts by d sqrt(var), ours by
    d sqrt(var + epsilon), as in Ioffe (2017). Of the four features, two exceed the bounds of r, one that of d.
    """
    recorded = load("sbx_batch_renorm")
    inputs = recorded["input"]
    layer = BatchRenorm(momentum=0.9, warmup_steps=0, epsilon=1e-8)
    statistics = {"mean": inputs["mean"], "variance": inputs["var"], "steps": jnp.zeros(())}

    def loss(params, x):
        y, updated = layer.apply({"params": params, STATISTICS: statistics}, x, mutable=STATISTICS)
        return jnp.sum(inputs["weight"] * y), (y, updated[STATISTICS])

    gradients, (y, updated) = jax.grad(loss, argnums=(0, 1), has_aux=True)(inputs["params"], inputs["x"])
    agree("batch renormalisation: output", y, recorded["y"], TOLERANCE)
    agree("batch renormalisation: gradients of parameters", gradients[0], recorded["gradient_params"], TOLERANCE)
    agree("batch renormalisation: gradient of inputs", gradients[1], recorded["gradient_x"], TOLERANCE)
    got = {"mean": updated["mean"], "var": updated["variance"]}
    agree("batch renormalisation: statistics", got, recorded["updated"], TOLERANCE)


def smoothed_steps(td3, shared, recorded, clip):
    """Take the recorded gradient steps of TD3, with recorded noise; random noise is tested beside its function."""

    @jax.jit
    def step(shared, batch, noise):
        def smooth(action, key, actions):
            return jnp.clip(action + jnp.clip(0.2 * noise, -clip, clip), actions.minimum[None], actions.maximum[None])

        return dataclasses.replace(td3, smooth=smooth).sgd_step(shared, batch, jax.random.key(0))

    return gradient_steps(step, shared, recorded, "next_noise")


def test_td3():
    """Their loss is twice ours: ours is half the squared error."""
    recorded = load("sb3_td3")
    overrides = ("system.policy_frequency=2", "system.policy_noise=0.2", "system.noise_clip=0.5")
    td3, shared = parity.algorithm("ddpg/ff_td3", *SMALL, *overrides)
    policy, values = deterministic_policy(recorded["initial"]["actor"]), critics(recorded["initial"]["critic"])
    shared = parity.with_params(shared, DDPGParams(OnlineAndTarget(policy, policy), OnlineAndTarget(values, values)))
    shared, losses = smoothed_steps(td3, shared, recorded, 0.5)
    agree("TD3: loss of the critics", losses["q_loss"], 0.5 * recorded["loss"]["critic_loss"], TOLERANCE)
    (policy, q), opt_states = shared.params, shared.opt_states
    agree_network("TD3: policy", recorded, "actor", deterministic_policy, policy.online, opt_states.actor_opt_state)
    agree_network("TD3: critics", recorded, "critic", critics, q.online, opt_states.q_opt_state, 0.5)
    agree_target("TD3: target policy", recorded, "actor", deterministic_policy, policy.target)
    agree_target("TD3: target critics", recorded, "critic", critics, q.target)


def fast_policy(weights):
    torso = {f"Dense_{i}": dense(weights, f"net.{2 * i}") for i in range(3)}
    return {"params": {"torso": torso, "action_head": {"Dense_0": dense(weights, "fc_mu.0")}}}


def fast_critics(weights):
    return {
        "params": {f"networks_{i}": perceptron(weights, f"qnet{i + 1}.net", "critic_head", layers=3) for i in range(2)}
    }


@pytest.mark.parametrize("reduction", ["min", "mean"])
def test_fast_td3(reduction):
    recorded = load(f"fast_td3_{reduction}")
    overrides = ("system.policy_frequency=2", "system.num_atoms=11", "system.vmin=-3.0", "system.vmax=3.0")
    layers = [f"network.{network}.pre_torso.layer_sizes=[32,16,8]" for network in ("actor_network", "q_network")]
    rates = ("system.actor_lr=1e-2", "system.decay_learning_rates=false", f"system.critic_reduction={reduction}")
    td3, shared = parity.algorithm("ddpg/ff_td3_c51", *COMMON, *layers, *overrides, *rates, "system.max_grad_norm=null")
    policy, values = fast_policy(recorded["initial"]["actor"]), fast_critics(recorded["initial"]["critic"])
    shared = parity.with_params(shared, DDPGParams(OnlineAndTarget(policy, ()), OnlineAndTarget(values, values)))
    shared, losses = smoothed_steps(td3, shared, recorded, 0.3)
    name = f"FastTD3, {reduction}"
    agree(f"{name}: loss of the critics", losses["q_loss"], recorded["loss"]["qf_loss"], TOLERANCE)
    # The policy improves in every second step, where its metrics count twice.
    agree(f"{name}: loss of the policy", losses["actor_loss"], 2.0 * recorded["loss"]["actor_loss"], TOLERANCE)
    (policy, q), opt_states = shared.params, shared.opt_states
    agree_network(f"{name}: policy", recorded, "actor", fast_policy, policy.online, opt_states.actor_opt_state)
    agree_network(f"{name}: critics", recorded, "critic", fast_critics, q.online, opt_states.q_opt_state)
    agree_target(f"{name}: target critics", recorded, "critic", fast_critics, q.target)


def deterministic_policy(weights):
    return {"params": perceptron(weights, "mu")}


@pytest.mark.parametrize(
    ("system", "name", "net"), [("ff_dqn", "sb3_dqn", "q_net"), ("ff_qr_dqn", "sb3_qr_dqn", "quantile_net")]
)
def test_dqn_and_qr_dqn(system, name, net):
    recorded = load(name)
    quantiles = ("system.num_quantiles=7",) if system == "ff_qr_dqn" else ()
    dqn, shared = parity.algorithm(f"q_learning/{system}", *DISCRETE, *quantiles)

    def convert(weights):
        return {"params": perceptron(weights, net)}

    online = convert(recorded["initial"]["q"])
    shared = parity.with_params(shared, OnlineAndTarget(online, online))

    @jax.jit
    def step(state, batch):
        (shared, losses, _), count = dqn.sgd_step(state[0], batch, jax.random.key(0)), state[1]
        shared = shared._replace(params=dqn.config.target.update(shared.params, count))
        return (shared, count + 1), {"loss": losses.mean()}

    (shared, _), losses = gradient_steps(step, (shared, 1), recorded)
    name = {"ff_dqn": "DQN", "ff_qr_dqn": "QR-DQN"}[system]
    agree(f"{name}: loss", losses["loss"], recorded["loss"]["loss"], TOLERANCE)
    agree_network(name, recorded, "q", convert, shared.params.online, shared.opt_state)
    agree_target(f"{name}: target", recorded, "q", convert, shared.params.target)
