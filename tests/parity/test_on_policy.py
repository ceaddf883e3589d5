"""Updates of PPO and REPPO on the weights, rollouts and noise of stable-baselines3, rsl_rl and REPPO's authors.

Both sides start from the same float32 numbers; theirs are then computed in float64, but for the rollouts of
stable-baselines3, which it stores in float32. Tolerances are those of `test_off_policy`, for the same reasons.

The PPO of both divides advantages by their sample deviation, with n - 1 = 63 in the place of n = 64; ours are larger by
k = sqrt(64 / 63). With entropy bonus, value loss and Adam's constant in units of k, too, our updates are theirs.
`record_on_policy.py` and `record_reppo.py` in `scripts/parity` recorded the references.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import ActorCriticParams, Agent, Observation, Trajectory, Transition
from stoix_like.systems.on_policy.actor_critic import OnPolicyLocal
from stoix_like.systems.reppo.reppo_types import REPPOParams
from support import parity
from support.parity import agree, change, dense, load, mean_gradient, perceptron

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
K = math.sqrt(64 / 63)
SETTINGS = [
    *("system.rollout_length=16", "system.num_minibatches=1", "system.gamma=0.9", "system.gae_lambda=0.8"),
    *(
        "system.clip_eps=0.1",
        f"system.ent_coef={0.02 * K}",
        f"system.vf_coef={2 * 0.3 * K}",
        f"system.adam_eps={1e-3 * K}",
    ),
    *("system.max_grad_norm=null", "system.decay_learning_rates=false", "system.normalize_rewards=false"),
    "network.actor_network.pre_torso.layer_sizes=[16,16]",
    "network.critic_network.pre_torso.layer_sizes=[16,16]",
]
NORMAL = ("network=mlp_normal", "network.actor_network.action_head.min_scale=0.0", "env.kwargs={bounded:false}")


def updated(recorded, convert, log_probs, *overrides):
    """Return PPO's batch of the recorded rollout, and its state and metrics after the update."""
    ppo, shared = parity.algorithm("ppo/ff_ppo", *SETTINGS, *overrides)
    script, flags = recorded["script"], jnp.zeros((16, 4), bool)
    now, following = (Observation(script[name]) for name in ("observation", "next_observation"))
    results = (script[name] for name in ("reward", "terminated", "truncated"))
    steps = Transition(now, recorded["rollout"]["actions"], *results, following, flags, log_probs)
    shared = parity.with_params(shared, convert(recorded["initial"]))
    agent, trajectory = Agent(shared, OnPolicyLocal()), Trajectory(jax.tree.map(jnp.asarray, steps), ())
    _, batch, _ = jax.jit(ppo.targets)(agent, trajectory, jax.random.key(0))
    agent, metrics = jax.jit(ppo.update)(agent, trajectory, jax.random.key(0))
    return batch, agent.shared, metrics


def agree_update(name, recorded, convert, shared):
    gradients = ActorCriticParams(*(mean_gradient(state) for state in shared.opt_states))
    scaled = jax.tree.map(lambda leaf: K * leaf, convert(recorded["mean_gradient"]))
    agree(f"{name}: gradients of the policy", gradients.actor_params, scaled.actor_params, TOLERANCE)
    agree(f"{name}: gradients of the critic", gradients.critic_params, scaled.critic_params, TOLERANCE)
    before, after = convert(recorded["initial"]), convert(recorded["final"])
    got, expected = change(shared.params, before), change(after, before)
    agree(f"{name}: policy", got.actor_params, expected.actor_params, TOLERANCE)
    agree(f"{name}: critic", got.critic_params, expected.critic_params, TOLERANCE)


def sb3_networks(weights):
    def network(torso, output, head):
        layers = {f"Dense_{i}": dense(weights, f"mlp_extractor.{torso}.{2 * i}") for i in range(2)}
        return {"torso": layers, head: {"Dense_0": dense(weights, output)}}

    actor = network("policy_net", "action_net", "action_head")
    if "log_std" in weights:
        actor["action_head"]["log_scale"] = {"value": weights["log_std"]}
    critic = network("value_net", "value_net", "critic_head")
    return ActorCriticParams({"params": actor}, {"params": critic})


@pytest.mark.parametrize("policy", ["normal", "categorical"])
def test_ppo_of_stable_baselines3(policy):
    name = f"PPO, {policy} policy"
    recorded = load(f"sb3_ppo_{policy}")
    rollout, losses = recorded["rollout"], recorded["loss"]
    if policy == "categorical":
        rollout["actions"] = rollout["actions"][..., 0].astype(np.int32)
    kind = NORMAL if policy == "normal" else ("env.kwargs={discrete:true}",)
    rates = ("system.epochs=3", "system.actor_lr=1e-2", "system.critic_lr=1e-2")
    batch, shared, metrics = updated(recorded, sb3_networks, rollout["log_probs"], *kind, *rates)
    advantages = rollout["advantages"].reshape(-1)
    expected = (advantages - advantages.mean()) / advantages.std()
    agree(f"{name}: advantages", batch.advantage, expected, TOLERANCE)
    agree(f"{name}: value targets", batch.target, rollout["returns"].reshape(-1), TOLERANCE)
    agree(f"{name}: policy loss", metrics["policy_loss"], K * losses["policy_gradient_loss"], TOLERANCE)
    agree(f"{name}: value loss", metrics["value_loss"], 0.5 * losses["value_loss"], TOLERANCE)
    agree(f"{name}: entropy", metrics["entropy"], -losses["entropy_loss"], TOLERANCE)
    agree(f"{name}: clipped fraction", metrics["clip_fraction"], losses["clip_fraction"], TOLERANCE)
    agree(f"{name}: explained variance", metrics["explained_variance"], losses["explained_variance"], TOLERANCE)
    agree_update(name, recorded, sb3_networks, shared)


def rsl_rl_networks(weights):
    actor, critic = perceptron(weights["actor"], "mlp"), perceptron(weights["critic"], "mlp", "critic_head")
    actor["action_head"]["log_scale"] = {"value": weights["actor"]["distribution.log_std_param"]}
    return ActorCriticParams({"params": actor}, {"params": critic})


def test_ppo_of_rsl_rl():
    """Ten minibatches; the divergence raises the rate once and lowers it seven times, as recorded."""
    recorded = load("rsl_rl_ppo")
    rollout, losses, rates = recorded["rollout"], recorded["loss"], recorded["rates"]
    rising, falling = (rates[1:] > rates[:-1]).sum(), (rates[1:] < rates[:-1]).sum()
    assert (rising, falling) == (1, 7)
    overrides = ("system.epochs=10", "system.actor_lr=2e-3", "system.critic_lr=2e-3", "system.desired_kl=0.004")
    log_probs = rollout["actions_log_prob"][..., 0]
    batch, shared, metrics = updated(
        recorded, rsl_rl_networks, log_probs, *NORMAL, *overrides, "system.clip_value=true"
    )
    agree("PPO, adaptive rate: advantages", batch.advantage, K * rollout["advantages"].reshape(-1), TOLERANCE)
    agree("PPO, adaptive rate: value targets", batch.target, rollout["returns"].reshape(-1), TOLERANCE)
    agree("PPO, adaptive rate: mean learning rate", metrics["learning_rate"], rates.mean(), TOLERANCE)
    agree("PPO, adaptive rate: last learning rate", shared.parts["rate_factor"] * 2e-3, rates[-1], TOLERANCE)
    agree("PPO, adaptive rate: policy loss", metrics["policy_loss"], K * losses["surrogate"], TOLERANCE)
    agree("PPO, adaptive rate: value loss", metrics["value_loss"], 0.5 * losses["value"], TOLERANCE)
    agree("PPO, adaptive rate: entropy", metrics["entropy"], losses["entropy"], TOLERANCE)
    agree_update("PPO, adaptive rate", recorded, rsl_rl_networks, shared)


def reppo_network(weights, head):
    layers = [{"kernel": weights[f"w{i}"].T, "bias": weights[f"b{i}"]} for i in range(2)]
    return {"torso": {"Dense_0": layers[0]}, head: {"Dense_0": layers[1]}}


def reppo_params(weights):
    actor = weights["actor"]
    critic = {"params": {"networks_0": reppo_network(weights["critic"], "critic_head")}}
    policy = {"params": reppo_network(actor["net"], "action_head")}
    return REPPOParams(policy, critic, actor["log_alpha"], actor["log_multiplier"])


def test_reppo():
    """Three gradient steps; the divergence is above its bound for some states, and below for others."""
    recorded = load("reppo")
    torsos = [
        f"network.{name}_network.pre_torso.{key}"
        for name in ("actor", "q")
        for key in ("layer_sizes=[16]", "activation=relu", "use_layer_norm=false")
    ]
    settings = [
        *("system.rollout_length=8", "system.num_minibatches=1", "system.gamma=0.9", "system.q_lambda=0.8"),
        *("system.num_atoms=21", "system.vmin=-10.0", "system.vmax=10.0", "system.adam_eps=1e-3"),
        *(f"system.{name}_lr=1e-2" for name in ("actor", "q", "dual")),
        *("system.max_grad_norm=null", "system.normalize_rewards=false", "system.normalize_observations=false"),
        *("system.target_entropy_scale=0.5", "system.target_kl=0.02"),
    ]
    reppo, shared = parity.algorithm("reppo/ff_reppo", *settings, *torsos)
    shared = parity.with_params(shared, reppo_params(recorded["initial"]))
    rows = jax.tree.map(jnp.asarray, recorded["rollout"])
    observation, following = Observation(rows["observation"]), Observation(rows["next_observation"])
    flags = jnp.zeros((8, 4), bool)
    steps = Transition(observation, rows["action"], rows["reward"], rows["terminated"], flags, following, flags, ())

    @jax.jit
    def evaluate(shared, steps, noise):
        noisy = parity.RecordedNoise(reppo.actor, [(steps.next_observation, noise)])
        return dataclasses.replace(reppo, actor=noisy).evaluate(shared, Trajectory(steps, ()), jax.random.key(0))

    @jax.jit
    def step(behaviour, shared, batch, noise):
        noisy = parity.RecordedNoise(reppo.actor, [(batch.observation, noise)])
        return dataclasses.replace(reppo, actor=noisy).sgd_step(behaviour, shared, batch, jax.random.key(0))

    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), evaluate(shared, steps, rows["next_noise"]))
    behaviour, metrics = shared.params.actor_params, {}
    for _ in range(3):
        shared, metrics = step(behaviour, shared, batch, rows["noise"].reshape(-1, 2))
    losses = recorded["loss"]
    agree("REPPO: mean of the targets", batch.target.mean(), recorded["mean_target"], TOLERANCE)
    agree("REPPO: loss of the critic", metrics["q_loss"], losses["critic_update_loss"], TOLERANCE)
    agree("REPPO: loss of the policy", metrics["policy_loss"], losses["actor_loss"], TOLERANCE)
    agree("REPPO: divergence", metrics["kl"], losses["kl"], TOLERANCE)
    agree("REPPO: entropy", metrics["entropy"], losses["entropy"], TOLERANCE)
    means = [mean_gradient(state) for state in shared.opt_states]
    gradients = REPPOParams(means[0], means[1], *means[2])
    before, after, expected = (reppo_params(recorded[when]) for when in ("initial", "final", "mean_gradient"))
    changes = change(shared.params, before), change(after, before)
    for name in REPPOParams._fields:
        agree(f"REPPO: gradient of {name}", getattr(gradients, name), getattr(expected, name), TOLERANCE)
        agree(f"REPPO: {name}", *(getattr(tree, name) for tree in changes), TOLERANCE)
