"""Record the update of REPPO on one rollout.

    git clone https://github.com/cvoelcker/reppo
    git -C reppo checkout 1f04f33 && git -C reppo show 0bb815e:src/algorithms/utils.py > reppo/src/algorithms/utils.py
    pip install jax flax optax
    python scripts/parity/record_reppo.py reppo

`learn_step` runs as published, in float64, with given networks and noise: three epochs of one minibatch. Of the 16
actions that estimate the divergence, half are one deviation above the mean and half one below, for which the estimate
is exact: this package computes it in closed form. Of what collects rollouts, the soft reward is repeated here, without
the entropy of a successor that does not exist, after termination.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import definitions
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from recording import random_weights, round32, save

jax.config.update("jax_enable_x64", True)

LENGTH, ENVS, OBSERVATION, ACTION, WIDTH = 8, 4, 3, 2, 16
ATOMS, RANGE, GAMMA = 21, 10.0, 0.9


class Policy:
    """A squashed normal policy with given noise."""

    def __init__(self, params, observation):
        view, self.noise = observation[..., :OBSERVATION], observation[..., OBSERVATION:]
        output = perceptron(params, view)
        self.loc, spread = output[..., :ACTION], output[..., ACTION:]
        self.scale = jax.nn.softplus(spread) + 1e-3

    def sample_and_log_prob(self, seed, sample_shape=()):
        """Return actions and their log-probabilities by entry."""
        del seed
        signs = jnp.where(jnp.arange(16) % 2 == 0, 1.0, -1.0).reshape(16, 1, 1)
        noise = jnp.broadcast_to(signs, (16, *self.loc.shape)) if sample_shape else self.noise
        x = self.loc + self.scale * noise
        return jnp.tanh(x), self.log_density(x)

    def log_prob(self, action):
        """Return the log-probabilities of actions by entry."""
        return self.log_density(jnp.arctanh(action))

    def log_density(self, x):
        """Return the log-density of tanh x."""
        slope = 2.0 * (jnp.log(2.0) - x - jax.nn.softplus(-2.0 * x))
        return jax.scipy.stats.norm.logpdf(x, self.loc, self.scale) - slope


def perceptron(params, x):
    """Apply a layer of rectified units and a linear one."""
    hidden = jax.nn.relu(x @ params["w0"].T + params["b0"])
    return hidden @ params["w1"].T + params["b1"]


def make_actor(params):
    """Return a policy with its multipliers."""
    return SimpleNamespace(
        actor=lambda observation: Policy(params["net"], observation),
        temperature=lambda: jnp.exp(params["log_alpha"]),
        lagrangian=lambda: jnp.exp(params["log_multiplier"]),
    )


def make_critic(params):
    """Return a categorical critic without auxiliary predictions."""
    atoms = jnp.linspace(-RANGE, RANGE, ATOMS)

    def logits(observation, action):
        return perceptron(params, jnp.concatenate([observation[..., :OBSERVATION], action], -1))

    def value(observation, action):
        return jnp.sum(jax.nn.softmax(logits(observation, action)) * atoms, -1)

    def forward(observation, action):
        nothing = jnp.zeros((*observation.shape[:-1], 1))
        return nothing, nothing, nothing, value(observation, action)

    return SimpleNamespace(critic_cat=logits, critic=value, forward=forward)


class Network(flax.struct.PyTreeNode):
    """Parameters with their optimiser."""

    graphdef: Any = flax.struct.field(pytree_node=False)
    tx: Any = flax.struct.field(pytree_node=False)
    params: Any = None
    opt_state: Any = None

    def apply_gradients(self, gradients):
        """Take a step."""
        updates, opt_state = self.tx.update(gradients, self.opt_state, self.params)
        return self.replace(params=optax.apply_updates(self.params, updates), opt_state=opt_state)


class TrainState(flax.struct.PyTreeNode):
    """The networks."""

    critic: Network
    actor: Network
    actor_target: Network


class Transition(flax.struct.PyTreeNode):
    """One rollout."""

    obs: Any
    critic_obs: Any
    action: Any
    next_emb: Any
    reward: Any
    soft_reward: Any
    value: Any
    done: Any
    truncated: Any
    importance_weight: Any


def main(root):
    """Record three gradient steps of critic, policy and multipliers."""
    rng, size = np.random.default_rng(12), (LENGTH, ENVS)

    def weights(inputs, outputs):
        shapes = {"w0": (WIDTH, inputs), "b0": (WIDTH,), "w1": (outputs, WIDTH), "b1": (outputs,)}
        return random_weights(rng, shapes)

    actor, critic = weights(OBSERVATION, 2 * ACTION), weights(OBSERVATION + ACTION, ATOMS)
    rows = {
        "observation": rng.normal(size=(*size, OBSERVATION)),
        "next_observation": rng.normal(size=(*size, OBSERVATION)),
        "noise": rng.normal(size=(*size, ACTION)),
        "next_noise": rng.normal(size=(*size, ACTION)),
        "action": rng.uniform(-0.9, 0.9, size=(*size, ACTION)),
        "reward": rng.normal(size=size),
    }
    rows = round32(rows)
    rows["terminated"] = rng.uniform(size=size) < 0.2
    # The last step of a rollout bootstraps there in any case.
    rows["terminated"][-1] = False
    actor_params = round32({"net": actor, "log_alpha": np.log(0.3), "log_multiplier": np.log(0.5)})
    actor_params, critic = jax.tree.map(jnp.asarray, (actor_params, critic))
    cfg = SimpleNamespace(
        gamma=GAMMA,
        lmbda=0.8,
        num_steps=LENGTH,
        num_envs=ENVS,
        num_epochs=3,
        num_mini_batches=1,
        hl_gauss=True,
        num_bins=ATOMS,
        vmin=-RANGE,
        vmax=RANGE,
        aux_loss_mult=0.0,
        reverse_kl=False,
        actor_kl_clip_mode="clipped",
        kl_bound=0.02,
        reduce_kl=True,
        update_entropy_lagrangian=True,
        update_kl_lagrangian=True,
    )
    space = {"jax": jax, "jnp": jnp, "optax": optax, "cfg": cfg, "PRNGKey": Any, "SACTrainState": Any}
    utils = definitions.load(root / "src/algorithms/utils.py", ["hl_gauss"], {"jax": jax, "jnp": jnp})
    space |= {
        "Transition": Any,
        "nnx": SimpleNamespace(merge=lambda make, params: make(params)),
        "utils": SimpleNamespace(**utils),
        # The target entropy is minus this; of half a nat for each of two entries.
        "action_size_target": 0.5 * ACTION,
    }
    learn_step = definitions.load(root / "src/jaxrl/reppo.py", ["learn_step"], space)["learn_step"]

    pi = Policy(actor_params["net"], jnp.concatenate([rows["next_observation"], rows["next_noise"]], -1))
    next_action, log_prob = pi.sample_and_log_prob(None)
    alive = 1.0 - rows["terminated"]
    batch = Transition(
        obs=jnp.concatenate([rows["observation"], rows["noise"]], -1),
        critic_obs=jnp.asarray(rows["observation"]),
        action=jnp.asarray(rows["action"]),
        next_emb=jnp.zeros((*size, 1)),
        reward=jnp.asarray(rows["reward"]),
        soft_reward=rows["reward"] - GAMMA * alive * log_prob.sum(-1) * jnp.exp(actor_params["log_alpha"]),
        value=make_critic(critic).critic(rows["next_observation"], next_action),
        done=jnp.asarray(rows["terminated"], jnp.float64),
        truncated=jnp.zeros(size),
        importance_weight=jnp.zeros(size),
    )
    tx = optax.adam(1e-2, eps=1e-3)
    actors = Network(make_actor, tx, actor_params, tx.init(actor_params))
    state = TrainState(Network(make_critic, tx, critic, tx.init(critic)), actors, actors)
    state, metrics = jax.jit(learn_step)(jax.random.key(0), state, batch)
    means = {name: float(jnp.mean(metrics[name])) for name in ("critic_update_loss", "actor_loss", "kl", "entropy")}
    networks = {"actor": state.actor, "critic": state.critic}
    tree = {
        "rollout": rows,
        "initial": {"actor": actor_params, "critic": critic},
        "final": {name: network.params for name, network in networks.items()},
        "mean_gradient": {name: optax.tree.get(network.opt_state, "mu") for name, network in networks.items()},
        "mean_target": metrics["target_values"],
        "loss": means,
    }
    save("reppo", tree, ("jax", "optax"), ("cvoelcker/reppo 1f04f33",))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
