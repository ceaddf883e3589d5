"""Record gradient steps of XQC in the code of its authors.

    git clone https://github.com/danielpalenicek/xqc && git -C xqc checkout 9a6832b
    pip install flax optax tfp-nightly
    python scripts/parity/record_xqc.py xqc

Its functions run as published, in float64, on given weights, batches and noise, and improve the policy in every step.
Adam's constant is 1e-3, with which the size of a gradient matters from the first step on; atoms are integers, which the
float32 of the authors' critic does not round.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_recording import Noisy, draw, statistics
from recording import STEPS, make_batches, save

sys.path.insert(0, sys.argv[1])
jax.config.update("jax_enable_x64", True)

from xqc.agents.xqc.actor import update_actor  # noqa: E402
from xqc.agents.xqc.critic import categorical_critic_loss_fn, update_critic  # noqa: E402
from xqc.agents.xqc.temperature import Temperature  # noqa: E402
from xqc.agents.xqc.temperature import update as update_temperature  # noqa: E402
from xqc.agents.xqc.utils import target_update  # noqa: E402
from xqc.networks.common import Model, norm_network  # noqa: E402
from xqc.networks.critic_net import VMapCritic  # noqa: E402
from xqc.networks.policies import NormalTanhPolicy  # noqa: E402
from xqc.replay_buffer import Batch  # noqa: E402

GAMMA, TAU, ATOMS, RANGE = 0.9, 0.5, 7, 3.0


class NoisyNetwork:
    """The policy; with running statistics, its samples are those of the successors."""

    def __init__(self, network):
        self.network, self.noises = network, {}

    def apply(self, variables, *args, **kwargs):
        """Return the policy, and with `mutable` also the statistics."""
        output = self.network.apply(variables, *args, **kwargs)
        if isinstance(output, tuple):
            return Noisy(output[0], self.noises["noise"]), output[1]
        return Noisy(output, self.noises["next_noise"])


def model(network, inputs, rng, **kwargs):
    """Return a network with drawn parameters and an optimiser."""
    variables = network.init(jax.random.key(0), *inputs)
    made = Model(
        1, network, draw(rng, variables["params"]), statistics(variables.get("batch_stats", {})), None, **kwargs
    )
    made = norm_network(made)
    tx = optax.adamw(1e-2, eps=1e-3, weight_decay=0.0)
    return made.replace(tx=tx, opt_state=tx.init(made.params))


def main():
    """Record four steps."""
    rng = np.random.default_rng(12)
    batches = make_batches(rng, discrete=False)
    layers = {
        "hidden_dims": (16, 16),
        "pre_activation_bn": True,
        "use_layer_norm": False,
        "use_batch_norm": True,
        "skip_connections": False,
    }
    critic_net = VMapCritic(max_v=RANGE, min_v=-RANGE, n_outputs=ATOMS, n_critics=2, **layers)
    observation, action = batches["observation"][0], batches["action"][0]
    critic = model(critic_net, (observation, action, False), rng, loss_fn=categorical_critic_loss_fn)
    target = model(critic_net, (observation, action, False), rng)
    actor = model(NormalTanhPolicy(action_dim=2, **layers), (observation,), rng)
    noisy = NoisyNetwork(actor.apply_fn)
    actor = actor.replace(apply_fn=noisy)
    adam = optax.adam(1e-2, eps=1e-3)
    log_temp = {"log_temp": jnp.zeros(())}
    temperature = Model(1, Temperature(), log_temp, None, adam, adam.init(log_temp))
    initial = {"actor": actor.params, "critic": critic.params, "target": target.params}
    losses = {"critic_loss": [], "actor_loss": [], "temp_loss": []}
    for step in range(STEPS):
        rows = {name: jnp.asarray(value[step]) for name, value in batches.items()}
        noisy.noises = rows
        batch = Batch(
            observations=rows["observation"],
            actions=rows["action"],
            rewards=rows["reward"],
            masks=1.0 - rows["terminated"],
            next_observations=rows["next_observation"],
            discount=GAMMA,
        )
        critic, info = update_critic(None, actor, critic, target, temperature, batch, use_weight_norm=True)
        target = target_update(critic, target, TAU)
        actor, actor_info = update_actor(None, actor, critic, temperature, batch, use_weight_norm=True)
        temperature, alpha_info = update_temperature(temperature, actor_info["entropy"], -1.0)
        info |= actor_info | alpha_info
        for name, values in losses.items():
            values.append(info[name])
    final = {"actor": actor, "critic": critic}
    tree = {
        "batch": batches,
        "initial": initial,
        "final": {name: made.params for name, made in final.items()} | temperature.params,
        "target": {"critic": target.params},
        "statistics": {name: made.batch_stats for name, made in final.items()},
        "mean_gradient": {name: optax.tree.get(made.opt_state, "mu") for name, made in final.items()},
        "loss": losses,
    }
    save("xqc", tree, ("flax", "jax"), ("xqc 9a6832b",))


if __name__ == "__main__":
    main()
