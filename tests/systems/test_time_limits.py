"""Tests of the values that every system learns on a chain of three states, with truncation and with termination.

An episode visits the states 0, 1, 2, with rewards -1, 1, 0, and ends when it leaves 2, where the successor would be 1.
Half of the episodes are truncated by a time limit, the other half terminate; the view tells which.

    truncated, v1 = 1 + gamma v2 and v2 = 0 + gamma v1:  v1 = 1 / (1 - gamma^2), v2 = gamma v1, v0 = -1 + gamma v1
    terminated:                                          v2 = 0,                 v1 = 1,        v0 = -1 + gamma

The true successor of a truncated episode is 1, and a reset returns 0: a bootstrap from the reset observation would give
v2 = gamma v0.
"""

import typing
from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from stoix_like.base_types import ActorCriticHiddenStates, Observation
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.data.files import write_data
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.envs.suites import probes
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic
from stoix_like.networks.inputs import EmbeddingActionInput
from stoix_like.schema import flat_hints, get_value
from stoix_like.systems.dreamer.world_model import make_world_model as make_dreamed_model
from stoix_like.systems.off_policy.actor_critic import make_critics
from stoix_like.systems.off_policy.recurrent import ReplayedSequences
from stoix_like.systems.off_policy.recurrent import make_recurrent_networks as make_sequence_networks
from stoix_like.systems.on_policy.networks import make_networks
from stoix_like.systems.on_policy.recurrent import make_recurrent_networks
from stoix_like.systems.parts.recurrent import make_actor, unroll
from stoix_like.systems.search.world_model import make_latent_model
from stoix_like.systems.tdmpc.world_model import make_model
from support import disco
from support.compiled import run
from support.programs import train
from support.selections import select
from support.set_ups import config_of
from support.small_tdmpc import NETWORK as TDMPC2_NETWORK
from support.small_tdmpc import PLANS
from support.systems import SYSTEMS, schema
from support.tiny_dreamer import NETWORK

REWARDS = (-1.0, 1.0, 0.0)
GAMMAS = (0.6, 0.5)
# One row per state: first for truncated episodes, then for terminated ones.
VIEWS = jax.device_put(np.eye(6))


class Chain(probes.Probe):
    """The chain; actions have no effect on values.

    With `optional_limit`, only positive actions truncate episodes, which otherwise continue with 1: a recurrent network
    then also learns from the sequence that ends with the true successor.
    """

    optimal_return = 0.0
    observation_space = Box(0.0, 1.0, (6,))

    def __init__(self, continuous: bool = False, optional_limit: bool = False) -> None:
        self.action_space = Box(-1.0, 1.0, (1,)) if continuous else Discrete(2)
        self.optional_limit = optional_limit

    def first_view(self, key):
        return VIEWS[3 * jax.random.randint(key, (), 0, 2)]

    def outcome(self, state, action):
        position = jnp.argmax(state.view)
        place, ends = position % 3, position >= 3
        leaves = place == 2
        following = jnp.where(leaves, position - 1, position + 1)
        terminated = leaves & ends
        truncated = leaves & ~terminated & ((jnp.ravel(action)[0] > 0) if self.optional_limit else True)
        return probes.Outcome(jnp.asarray(REWARDS)[place], terminated, truncated, VIEWS[following])

    def optimal_value(self, view, gamma):
        return view @ jnp.asarray(expected(gamma))


def expected(gamma):
    """Return the values of the six states."""
    v1 = 1.0 / (1.0 - gamma**2)
    return np.array([-1.0 + gamma * v1, v1, gamma * v1, -1.0 + gamma, 1.0, 0.0])


class Case(typing.NamedTuple):
    overrides: list[str]  # budget and sizes that suffice for the chain
    values: Callable  # (networks, shared, hyperparams) -> [6], the values learned by one member
    atol: float = 0.05


def q_values(networks, shared, hyperparams):
    actor = networks.actor_network
    head = actor.action_head
    head = head.clone(**{name: value for name, value in hyperparams.items() if hasattr(head, name)})
    params = getattr(shared.params, "online", shared.params)
    output = FeedForwardActor(head, actor.pre_torso, actor.input_layer).apply(params, Observation(VIEWS))
    policy = output[0] if isinstance(output, tuple) else output
    return policy.preferences.max(-1)


def in_sequences(network, params):
    """Return the output of a recurrent network in the sequences 0, 1, 2: `[3, 2]`, truncated ones first."""
    views = VIEWS.reshape(2, 3, 6).swapaxes(0, 1)
    starts = jnp.asarray([[True], [False], [False]]) & jnp.ones((1, 2), bool)
    return unroll(network, params, network.initialize_carry(2), Observation(views), starts)[1]


def recurrent_state_values(networks, shared, hyperparams):
    """Compute the values of the states in the sequences 0, 1, 2."""
    built = make_recurrent_networks(networks, 1)
    return in_sequences(built.critic, built.critic_params(shared.params)).T.ravel()


def recurrent_q_values(networks, shared, hyperparams):
    """Compute the values of the greedy actions in the sequences 0, 1, 2."""
    params = getattr(shared.params, "online", shared.params)
    values = in_sequences(make_actor(networks.actor_network), params).preferences.max(-1).T.ravel()
    return rlax.SIGNED_HYPERBOLIC_PAIR.apply_inv(values) if "max_priority_weight" in hyperparams else values


def critic_values(networks, shared, hyperparams):
    """Compute the minimum over critics of the value of the policy's action, or of the best discrete action."""
    network, params = networks.q_network, getattr(shared.params.q_params, "online", shared.params.q_params)
    head = network.critic_head
    head = head.clone(**{name: value for name, value in hyperparams.items() if hasattr(head, name)})
    critics = make_critics(SimpleNamespace(**{**vars(network), "critic_head": head}), len(params["params"]))
    if isinstance(network.input_layer, EmbeddingActionInput):
        actor, actor_params = networks.actor_network, shared.params.actor_params
        policy = FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer)
        pi = policy.apply(getattr(actor_params, "online", actor_params), Observation(VIEWS))
        output = critics.apply(params, Observation(VIEWS), {"action": pi.mode()})
        q = output[0] if isinstance(output, tuple) else output
        return (q.mean(1) if q.ndim == 3 else q).min(-1)
    return critics.apply(params, Observation(VIEWS)).preferences.min(-1).max(-1)


def recurrent_critic_values(networks, shared, hyperparams):
    """Compute the minimum over critics of the value of the policy's action in the sequences 0, 1, 2."""
    policy, critics = make_sequence_networks(networks, 2, burn_in_length=0)
    observation = Observation(VIEWS.reshape(2, 3, 6).swapaxes(0, 1))
    starts = jnp.asarray([[True], [False], [False]]) & jnp.ones((1, 2), bool)
    states = ActorCriticHiddenStates(policy.cells.initialize_carry(2), critics.cells.initialize_carry(2))
    sequences = ReplayedSequences(observation, starts, observation, states)
    actor_params = getattr(shared.params.actor_params, "online", shared.params.actor_params)
    action = policy.apply(actor_params, sequences).mode()
    q = critics.apply(shared.params.q_params.online, sequences, {"action": action})
    return q.min(-1).reshape(3, 2).T.ravel()


def flow_values(networks, shared, hyperparams):
    """Compute the mean over critics of the value of the policy's action without noise."""
    # The members of a population hold floats alone.
    actor, nothing = networks.actor_network, jnp.zeros((6, hyperparams.get("chunk", 1), 1))
    policy = FeedForwardCritic(actor.action_head, actor.pre_torso, actor.input_layer)
    action = policy.apply(shared.params.actor_params.one_step, Observation(VIEWS), {"action": nothing})
    critics = make_critics(networks.q_network, 2)
    return critics.apply(shared.params.q_params.online, Observation(VIEWS), {"action": action}).mean(-1)


def soft_flow_values(networks, shared, hyperparams):
    """Compute the minimum over critics of the values of the middle action, which has the value of all others."""
    critics, q_params = make_critics(networks.q_network, 2), shared.params.q_params.online
    return critics.apply(q_params, Observation(VIEWS), {"action": jnp.zeros((6, 1))}).min(-1)


def action_atom_values(networks, shared, hyperparams):
    head = networks.q_network.critic_head.clone(vmin=hyperparams["vmin"], vmax=hyperparams["vmax"])
    critics = make_critics(networks.q_network, 1, head)
    policy, *_ = critics.apply(shared.params.q_params, Observation(VIEWS))
    return policy.preferences[..., 0].max(-1)


def continuous_pqn_values(networks, shared, hyperparams):
    actor = networks.actor_network
    policy = FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer)
    actor_params, q_params = shared.params
    mode = policy.apply(actor_params, Observation(VIEWS)).mode()
    return make_critics(networks.q_network, 2).apply(q_params, Observation(VIEWS), {"action": mode}).mean(-1)


def state_values(networks, shared, hyperparams):
    networks = make_networks(networks)
    return networks.values(shared.params, Observation(VIEWS))


def model_values(networks, shared, hyperparams):
    config = SimpleNamespace(
        support={"num_atoms": 31, "vmin": hyperparams["vmin"], "vmax": hyperparams["vmax"]},
        target_distribution="two_hot",
    )
    space = Box(-1.0, 1.0, (1,)) if "num_samples" in hyperparams else Discrete(2)
    model = make_latent_model(config, SimpleNamespace(networks=networks, action_space=space))
    return model.values(shared.params, Observation(VIEWS))


def planned_values(networks, shared, hyperparams):
    """Compute the mean over critics of the values of the policy's modes."""
    atoms = SimpleNamespace(support={"num_atoms": 101, "vmin": hyperparams["vmin"], "vmax": hyperparams["vmax"]})
    spec, params = SimpleNamespace(networks=networks, action_space=Box(-1.0, 1.0, (1,))), shared.params
    model = make_model(atoms, 5, True, spec)
    latent = model.represent(params.model, Observation(VIEWS))
    return model.values(params.model.q, latent, model.policy(params.actor, latent).mode()).mean(-1)


def dreamed_values(networks, shared, hyperparams):
    """Compute the averaged critic's values of the states in the sequences 0, 1, 2, in the likeliest latents."""
    spec = SimpleNamespace(networks=networks, observation_space=Chain.observation_space, action_space=Discrete(2))
    model = make_dreamed_model(SimpleNamespace(uniform_mix=0.01), spec)
    critic = FeedForwardCritic(networks.critic_network.critic_head, networks.critic_network.pre_torso)
    latent, values = model.initial((2,)), []
    for place, view in enumerate(VIEWS.reshape(2, 3, 6).swapaxes(0, 1)):
        inputs = jnp.zeros(2, jnp.int32), Observation(view), jnp.full(2, place == 0)
        latent = model.step(shared.params.model_params, latent, *inputs, None)
        values.append(critic.apply(shared.slow_critic, latent.features).mean())
    return jnp.stack(values, axis=1).ravel()


def spo_values(networks, shared, hyperparams):
    return make_networks(networks).value(shared.params.networks.online, Observation(VIEWS))


def discovered_values(networks, shared, hyperparams):
    """Compute the values of the policy; the atoms are on the scale of `rlax.SIGNED_HYPERBOLIC_PAIR`."""
    actor = networks.actor_network
    network = FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer)
    predictions = network.apply(shared.params.online, Observation(VIEWS))
    atoms = jnp.linspace(hyperparams["vmin"], hyperparams["vmax"], actor.action_head.num_atoms)
    q = rlax.SIGNED_HYPERBOLIC_PAIR.apply_inv(jax.nn.softmax(predictions.q) @ atoms)
    return jnp.sum(predictions.policy.probs * q, -1)


def without(overrides, *words):
    return [override for override in overrides if not any(word in override for word in words)]


REPLAY = [
    *("arch.total_timesteps=8000", "system.rollout_length=4", "system.warmup_steps=16", "system.epochs=4"),
    *("system.total_buffer_size=1024", "system.total_batch_size=64", "system.tau=0.05", "system.max_grad_norm=10"),
]
DQN = [*REPLAY, "system.q_lr=3e-3", "network.actor_network.pre_torso.layer_sizes=[32]"]
PQN = [
    *("arch.total_timesteps=24000", "system.rollout_length=16", "system.num_minibatches=2", "system.q_lr=1e-2"),
    "network.actor_network.pre_torso.layer_sizes=[32]",
]
ATOMS = ["system.num_atoms=31", "system.vmin=-2", "system.vmax=2"]
ACTOR_CRITIC = [
    *REPLAY,
    *("system.actor_lr=3e-3", "system.q_lr=3e-3", "system.noise_correlation=0.5"),
    *("network.actor_network.pre_torso.layer_sizes=[16]", "network.q_network.pre_torso.layer_sizes=[32]"),
]
CONTINUOUS = [*ACTOR_CRITIC, "+env.kwargs.continuous=true"]
# The number of atoms or quantiles of the configured head, with which the tests compute values.
HEAD = "network.actor_network.action_head"
NOISE = ["system.exploration_noise=1.0"]
CRITIC_HEAD = "network.critic_network.critic_head"
FEW_QUANTILES = ["system.num_online_quantiles=8", "system.num_target_quantiles=8"]
PRIORITISED = ["system.prioritised=true", "system.total_batch_size=32"]
# A small temperature: soft values include the entropy.
ENTROPY = ["system.autotune=false", "system.ent_coef=1e-3"]
ON_POLICY = [
    *("arch.total_timesteps=24000", "system.rollout_length=8", "system.critic_lr=1e-2", "system.max_grad_norm=10"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[32]" for name in ("actor", "critic")),
]
PPO = [*ON_POLICY, "system.num_minibatches=1", "system.clip_value=false", "system.normalize_rewards=false"]
OPTIONS = [
    *("network=mlp_gsde", "system.sde_sample_freq=2", "system.target_kl=1", "system.standardize_advantages=minibatch"),
    *("system.final_clip_eps=0.1", "system.final_ent_coef=0"),
]
SHARED_TORSO = ["network=mlp_shared", "system.actor_lr=3e-3", *without(ON_POLICY, "critic_network")]
RECURRENT_CRITIC = [
    *("+env.kwargs.optional_limit=true", "network.critic_network.post_torso.layer_sizes=[16]"),
    *(f"network.{name}_network.rnn_layer.hidden_state_dim=16" for name in ("actor", "critic")),
]
SHARED_CELLS = [
    *("network=rnn_shared", "system.actor_lr=3e-3"),
    *without([*ON_POLICY, *RECURRENT_CRITIC], "critic_network"),
]
SEQUENCES = ["system.n_step=4", "system.total_batch_size=32", "system.total_buffer_size=1024", "system.epochs=4"]
RECURRENT = [
    *("+env.kwargs.optional_limit=true", "system.training_epsilon=1.0"),
    *(f"network.actor_network.{torso}_torso.layer_sizes=[16]" for torso in ("pre", "post")),
    "network.actor_network.rnn_layer.hidden_state_dim=16",
]
# A small temperature, and a support that the values fill; 151 atoms are those of the configured head.
REPPO = [
    *("arch.total_timesteps=24000", "system.rollout_length=16", "system.num_minibatches=2", "system.q_lr=3e-3"),
    *("system.vmin=-3", "system.vmax=3", "system.init_alpha=1e-3", "system.normalize_observations=false"),
    *("network.actor_network.pre_torso.layer_sizes=[16]", "network.q_network.pre_torso.layer_sizes=[32]"),
    *("system.max_grad_norm=10", "+env.kwargs.continuous=true", "system.normalize_rewards=false"),
]
SEARCH = [
    *("arch.total_timesteps=16000", "system.rollout_length=8", "system.critic_lr=1e-2", "system.max_grad_norm=10"),
    *("system.warmup_steps=16", "system.epochs=4", "system.total_buffer_size=512", "system.total_batch_size=16"),
    *("system.sequence_length=8", "system.n_step=2", "system.num_simulations=4", "system.evaluation_simulations=2"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[32]" for name in ("actor", "critic")),
]
RECURRENT_CONTINUOUS = [
    *without(CONTINUOUS, "noise_correlation"),
    *("+env.kwargs.optional_limit=true", "arch.total_timesteps=16000", "system.rollout_length=8", "system.epochs=16"),
    *("system.total_batch_size=16", "system.burn_in_length=2", "system.sequence_length=6", "system.sequence_period=4"),
    *(f"network.{name}_network.rnn_layer.hidden_state_dim=16" for name in ("actor", "q")),
    *(f"network.{name}_network.post_torso.layer_sizes=[16]" for name in ("actor", "q")),
]
MUZERO = [
    *without(REPLAY, "tau"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[16]" for name in ("reward", "actor", "critic")),
    *(f"network.{name}_network.pre_torso.layer_sizes=[32]" for name in ("representation", "dynamics")),
    *(*ATOMS, "system.unroll_steps=2", "system.n_step=2", "system.num_simulations=4", "system.lr=3e-3"),
    "system.normalize_observations=false",
]
CASES = {
    "offline/ff_iql": Case(
        [*without(CONTINUOUS, "noise"), *("system.value_lr=3e-3", "network.critic_network.pre_torso.layer_sizes=[32]")],
        critic_values,
    ),
    "offline/ff_fql": Case(
        [*without(CONTINUOUS, "noise"), "system.flow_steps=2", "network.flow_network.pre_torso.layer_sizes=[16]"],
        flow_values,
        atol=0.1,
    ),
    "search/ff_az": Case([*SEARCH, "system.prioritised=true"], state_values),
    "search/ff_sampled_az": Case([*SEARCH, "system.num_samples=3", "+env.kwargs.continuous=true"], state_values),
    "spo/ff_spo": Case(
        [
            *without(SEARCH, "simulations", "n_step"),
            *("system.num_particles=4", "system.evaluation_particles=0", "system.search_depth=3", "system.tau=0.5"),
        ],
        spo_values,
    ),
    "reppo/ff_reppo": Case(REPPO, critic_values, atol=0.1),
    "reppo/ff_reppo_discrete": Case(without(REPPO, "continuous"), action_atom_values, atol=0.1),
    "awr/ff_awr": Case([*ON_POLICY, *SEQUENCES], state_values),
    "mpo/ff_vmpo": Case(
        [*ON_POLICY, "system.num_minibatches=1", "system.normalize_rewards=false", "+env.kwargs.continuous=true"],
        state_values,
    ),
    "mpo/ff_mpo": Case(
        [*without(CONTINUOUS, "total_batch"), *SEQUENCES, "system.num_samples=4"], critic_values, atol=0.1
    ),
    # Weights without meaning, and one step per trajectory: action values are all that is tested here.
    "disco_rl/ff_disco103": Case(
        [
            *without(REPLAY, "tau", "batch"),
            *("system.total_batch_size=32", "system.sequence_length=4", "system.sequence_period=4", "system.lr=3e-3"),
            *("system.num_atoms=31", "system.vmin=-2", "system.vmax=2", "system.value_coef=100"),
            *("system.policy_coef=0.01", "system.y_coef=0.01", "system.z_coef=0.01"),
            *("network.actor_network.pre_torso.layer_sizes=[32]", f"{HEAD}.lstm_size=16", f"{HEAD}.layer_sizes=[32]"),
            f"{HEAD}.num_atoms=31",
            *disco.overrides(),
        ],
        discovered_values,
        atol=0.1,
    ),
    "impala/ff_impala": Case(ON_POLICY, state_values),
    "impala/rec_impala": Case(SHARED_CELLS, recurrent_state_values),
    "ppo/rec_ppo": Case([*PPO, *RECURRENT_CRITIC, "system.sequence_length=4"], recurrent_state_values),
    "ppo/ff_ppo_penalty": Case(
        [
            *(*PPO, "network=mlp_hl_gauss", f"{CRITIC_HEAD}.vmin=-3", f"{CRITIC_HEAD}.vmax=3"),
            *("system.desired_kl=0.01", "system.decay_learning_rates=false", "system.actor_lr=1e-2"),
            "system.adapt_kl_coef=false",
        ],
        state_values,
    ),
    "ppo/ff_dpo": Case([*PPO, *OPTIONS, "+env.kwargs.continuous=true"], state_values),
    "ppo/ff_ppo": Case(
        [*PPO, "network=mlp_quantiles", f"{CRITIC_HEAD}.num_quantiles=8", "system.critic_lr=3e-3"], state_values
    ),
    "vpg/ff_a2c": Case(SHARED_TORSO, state_values),
    "vpg/ff_reinforce": Case([*ON_POLICY, "+env.kwargs.continuous=true"], state_values),
    "sac/ff_sac": Case([*CONTINUOUS, *ENTROPY], critic_values, atol=0.1),
    "sac/ff_flow": Case(
        [*CONTINUOUS, *ENTROPY, "system.flow_steps=2", "system.num_samples=4", "system.num_candidates=1"],
        soft_flow_values,
        atol=0.1,
    ),
    "sac/ff_sac_discrete": Case([*ACTOR_CRITIC, *ENTROPY], critic_values),
    # 101 atoms, likewise.
    "sac/ff_sac_c51": Case([*CONTINUOUS, *ENTROPY, *ATOMS, "system.num_atoms=101"], critic_values, atol=0.1),
    "sac/ff_tqc": Case(
        [*CONTINUOUS, *ENTROPY, "system.num_critics=2", "system.num_dropped_quantiles=1"], critic_values, atol=0.1
    ),
    "sac/ff_crossq": Case(
        [
            *without(CONTINUOUS, "system.tau"),
            *ENTROPY,
            *(f"network.{name}_network.pre_torso.warmup_steps=500" for name in ("actor", "q")),
        ],
        critic_values,
        atol=0.1,
    ),
    "sac/ff_xqc": Case(
        [*CONTINUOUS, *ENTROPY, *ATOMS, "system.num_atoms=101", "system.normalize_rewards=false"],
        critic_values,
        atol=0.1,
    ),
    # Critics must learn that actions have no effect, from noise that covers all actions.
    "ddpg/ff_ddpg": Case([*CONTINUOUS, *NOISE], critic_values, atol=0.1),
    "ddpg/ff_td3": Case([*CONTINUOUS, *NOISE], critic_values, atol=0.1),
    # 51 atoms, the number of the configured head, with which the tests compute values.
    "ddpg/ff_d4pg": Case(
        [*CONTINUOUS, *NOISE, *ATOMS, "system.num_atoms=51", "system.n_step=2"], critic_values, atol=0.1
    ),
    "ddpg/ff_td3_c51": Case(
        [*CONTINUOUS, *NOISE, *ATOMS, "system.num_atoms=51", "system.critic_reduction=mean"], critic_values, atol=0.1
    ),
    "q_learning/ff_dqn": Case(DQN, q_values),
    "q_learning/ff_ddqn": Case(
        [*DQN, "network=mlp_noisy_dueling_dqn", f"{HEAD}.layer_sizes=[16]", f"{HEAD}.sigma_zero=0.1", *PRIORITISED],
        q_values,
    ),
    # Small coefficients: the regulariser and the soft maximum bias the values.
    "q_learning/ff_dqn_reg": Case([*DQN, "system.regularizer_weight=1e-3", "system.target_update_period=20"], q_values),
    "q_learning/ff_mdqn": Case([*DQN, "system.entropy_temperature=1e-3"], q_values),
    "q_learning/ff_c51": Case([*DQN, *ATOMS, f"{HEAD}.num_atoms=31", "system.n_step=2"], q_values),
    "q_learning/ff_qr_dqn": Case(
        [*DQN, "system.num_quantiles=5", f"{HEAD}.num_quantiles=5", "system.huber_loss_parameter=0.1"], q_values
    ),
    "q_learning/ff_iqn": Case([*DQN, "system.huber_loss_parameter=0.1", *FEW_QUANTILES], q_values),
    "q_learning/ff_rainbow": Case(
        [
            *(*DQN, *ATOMS, f"{HEAD}.num_atoms=31", "system.total_batch_size=32", "system.epochs=2"),
            *(f"{HEAD}.layer_sizes=[16]", "system.sigma_zero=0.1"),
        ],
        q_values,
    ),
    "q_learning/ff_pqn": Case(PQN, q_values),
    "q_learning/ff_pqn_continuous": Case(
        [
            *("arch.total_timesteps=24000", "system.rollout_length=16", "system.num_minibatches=2", "system.q_lr=1e-2"),
            *("network.actor_network.pre_torso.layer_sizes=[16]", "network.q_network.pre_torso.layer_sizes=[32]"),
            *("+env.kwargs.continuous=true", "system.max_grad_norm=10", "system.normalize_observations=false"),
            "system.normalize_rewards=false",
        ],
        continuous_pqn_values,
        atol=0.1,
    ),
    "q_learning/ff_pqn_vdn": Case(PQN, q_values),
    "q_learning/rec_pqn_vdn": Case([*RECURRENT, *PQN[:-1]], recurrent_q_values),
    "q_learning/rec_pqn": Case([*RECURRENT, *PQN[:-1]], recurrent_q_values),
    "q_learning/rec_r2d2": Case(
        [
            *(*REPLAY, *RECURRENT, "system.q_lr=3e-3", "network.actor_network.action_head.layer_sizes=[16]"),
            *("arch.total_timesteps=16000", "system.rollout_length=8", "system.total_batch_size=16", "system.n_step=2"),
            *("system.burn_in_length=2", "system.sequence_length=6", "system.sequence_period=4"),
        ],
        recurrent_q_values,
    ),
    "sac/rec_sac": Case([*RECURRENT_CONTINUOUS, *ENTROPY], recurrent_critic_values, atol=0.1),
    "ddpg/rec_td3": Case([*RECURRENT_CONTINUOUS, *NOISE], recurrent_critic_values, atol=0.1),
    "search/ff_mz": Case(MUZERO, model_values, atol=0.1),
    "search/ff_sampled_mz": Case(
        [*MUZERO, "+env.kwargs.continuous=true", "system.num_samples=4"], model_values, atol=0.1
    ),
    "tdmpc/td_mpc2": Case(
        [
            *(*REPLAY, *TDMPC2_NETWORK, *PLANS, "+env.kwargs.continuous=true", "system.lr=3e-3"),
            *("system.vmin=-5", "system.vmax=5"),
        ],
        planned_values,
        atol=0.1,
    ),
    # An episode may continue, so that imagination can know what a truncated one misses.
    "dreamer/dreamer_v3": Case(
        [
            *(*NETWORK, "+env.kwargs.optional_limit=true", "arch.total_timesteps=32000", "system.rollout_length=8"),
            *("system.warmup_steps=16", "system.total_buffer_size=4096", "system.total_batch_size=16"),
            *("system.sequence_length=16", "system.train_ratio=16", "system.imagination_length=5"),
            *("system.lr=2e-3", "system.lr_warmup_steps=1"),
            *(f"network.{name}_network.critic_head.num_atoms=255" for name in ("reward", "critic")),
        ],
        dreamed_values,
        atol=0.1,
    ),
}


@pytest.fixture(autouse=True)
def chain(monkeypatch):
    monkeypatch.setitem(probes.PROBES, "chain", Chain)


def test_every_system_has_a_case():
    learns_values = {system for system in SYSTEMS if "gamma" in flat_hints(schema(system))}
    assert set(CASES) == {system for system in learns_values if not schema(system).needs_goals}


def write_chain(path, continuous, pairs=100):
    """Write episodes of both kinds, of random actions; the successor of a truncated one is 1."""
    row, rng = np.arange(8 * pairs), np.random.default_rng(0)
    view = np.tile(np.asarray(VIEWS)[[0, 1, 2, 1, 3, 4, 5, 4]], (pairs, 1))
    action = rng.uniform(-1, 1, (8 * pairs, 1)).astype(np.float32) if continuous else rng.integers(0, 2, 8 * pairs)
    reward = np.tile(np.array([*REWARDS, 0.0, *REWARDS, 0.0], np.float32), pairs)
    flags = row % 8 == 6, row % 8 == 2, row % 4 != 3
    action = action if continuous else action.astype(np.int32)
    write_data(path, DataSet(DataHeader(), Observation(view), action, reward, *flags).with_statistics())


# Chunks of two actions end inside an episode, with it, or after it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "chunk"),
    [
        *[(system, 1) for system in ("offline/ff_iql", "offline/ff_fql", "ddpg/ff_td3", "sac/ff_sac", "sac/rec_sac")],
        *[
            ("tdmpc/td_mpc2", 1),
            ("q_learning/ff_rainbow", 1),
            ("offline/ff_fql", 2),
            ("ddpg/ff_td3", 2),
            ("sac/ff_sac", 2),
        ],
    ],
)
def test_recorded_truncations_are_bootstrapped(system, chunk, tmp_path):
    overrides = without(CASES[system].overrides, "total_timesteps")
    if chunk > 1:
        overrides = [*without(overrides, "noise_correlation"), f"system.chunk={chunk}"]
    write_chain(tmp_path / "chain.npz", continuous="+env.kwargs.continuous=true" in overrides)
    offline = ["arch=offline", "arch.total_timesteps=8000", f"system.data={tmp_path}/chain.npz"]
    common = [f"system={system}", "env=probe", "env.scenario.name=chain", f"system.gamma={GAMMAS[0]}"]
    setup, state = train([*common, *overrides, *offline])
    config = setup.config.system
    hyperparams = {name: get_value(config, name) for name in flat_hints(type(config))}
    values = CASES[system].values(setup.spec.networks, state.shared, hyperparams)
    np.testing.assert_allclose(values, expected(GAMMAS[0]), atol=CASES[system].atol)


def varied(system):
    """Return a population of two that varies every float of the system: the second has 0.9 times the value, or 0.1."""
    config = config_of(f"system={system}", "env=probe", *CASES[system].overrides).system
    hints = flat_hints(type(config))
    # Adam has no weight decay, and the noise of recurrent policies no correlation.
    fixed = {"weight_decay", *(("noise_correlation",) if "/rec_" in system else ())}
    plain = {name: (typing.get_args(hint) or (hint,))[0] for name, hint in hints.items()}
    floats = [name for name, hint in plain.items() if name not in fixed and hint is float]
    assert {"gamma", "training_epsilon"} & set(floats)
    values = {name: [get_value(config, name), 0.9 * get_value(config, name) or 0.1] for name in floats}
    values["gamma"] = list(GAMMAS)
    members = ",".join(f"{name}:{value}" for name, value in values.items())
    return ["arch.population.size=2", f"arch.population.hyperparams={{{members}}}"]


# One base runs with the quick tests; the others take up to 15 s each.
@pytest.mark.parametrize("system", select(CASES, quick=("q_learning/ff_dqn",)))
def test_truncation_is_bootstrapped_and_termination_is_not(system):
    """Each member of a population that varies every float learns the values of its own discount and reward scale."""
    common = [f"system={system}", "env=probe", "env.scenario.name=chain", "arch.total_num_envs=8"]
    setup, state = train([*common, *CASES[system].overrides, *varied(system)])
    for member in range(setup.population.num_members):
        hyperparams = setup.population.of(member)
        shared = jax.tree.map(lambda leaf, member=member: leaf[member], jax.device_get(state.shared))
        values = run(CASES[system].values, setup.spec.networks, jax.device_put(shared), hyperparams)
        target = hyperparams["reward_scale"] * expected(hyperparams["gamma"])
        np.testing.assert_allclose(values, target, atol=CASES[system].atol)
        if member == 0:
            # Truncation treated as termination would give the values of the second half.
            assert (np.abs(np.asarray(values[:3]) - target[3:]) > 2 * CASES[system].atol).all()
