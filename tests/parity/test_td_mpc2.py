"""Gradient steps of TD-MPC2 on the weights, batches and noise of a transcription of its authors' update.

`scripts/parity/record_td_mpc2.py` recorded the reference, in float64; see it for what is set as in our code.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.networks import distributions
from stoix_like.systems.tdmpc.tdmpc_types import TDMPC2Params
from stoix_like.systems.tdmpc.world_model import ImplicitModel, ModelParams
from stoix_like.utils.replay import Step
from support import parity
from support.algorithms import with_methods
from support.parity import agree, change, dense, load

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
SETTINGS = [
    *("system.gamma=0.9", "system.rho=0.5", "system.tau=0.25", "system.lr=1e-2", "system.encoder_lr_scale=0.3"),
    *("system.max_grad_norm=2", "system.adam_eps=1e-3", "system.consistency_coef=20", "system.reward_coef=0.1"),
    *("system.vf_coef=0.1", "system.continue_coef=1", "system.ent_coef=1e-2", "system.num_atoms=21"),
    *("system.vmin=-4", "system.vmax=4", "system.horizon=3", "system.num_critics=5", "system.return_decay=0.99"),
    *("network.q_network.pre_torso.dropout_rate=0", "system.total_batch_size=32"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[16,16,16]" for name in ("representation", "dynamics")),
    *(f"network.{name}_network.pre_torso.layer_sizes=[16,16]" for name in ("reward", "continue", "actor", "q")),
]


def torso(weights, name):
    """Return two layers with their normalisation."""
    places = ((f"{name}.{3 * i}", f"{name}.{3 * i + 1}") for i in range(2))
    params = {}
    for i, (layer, norm) in enumerate(places):
        params[f"Dense_{i}"] = dense(weights, layer)
        params[f"LayerNorm_{i}"] = {"scale": weights[f"{norm}.weight"], "bias": weights[f"{norm}.bias"]}
    return params


def latent_network(weights, name, place):
    body = torso(weights, name) | {"Dense_2": dense(weights, f"{name}.6")}
    norm = {"scale": weights[f"{name}.7.weight"], "bias": weights[f"{name}.7.bias"]}
    return {"params": {place: {"MLPTorso_0": body, "LayerNorm_0": norm}}}


def with_head(weights, name, head="critic_head", sign=1.0):
    last = jax.tree.map(lambda x: sign * x, dense(weights, f"{name}.6"))
    return {"torso": torso(weights, name), head: {"Dense_0": last}}


def critics(weights, name="q."):
    return {"params": {f"networks_{i}": with_head(weights, f"{name}{i}") for i in range(5)}}


def params_of(weights):
    """Return the parameters of a model and a policy; theirs predicts termination, ours continuation."""
    model = ModelParams(
        representation=latent_network(weights, "encoder", "layers_1"),
        dynamics=latent_network(weights, "dynamics", "layers_0"),
        reward={"params": with_head(weights, "reward")},
        continues={"params": with_head(weights, "termination", sign=-1.0)},
        q=critics(weights),
    )
    return model, {"params": with_head(weights, "pi", "action_head")}


def recorded_model(model, rows):
    """Return a model whose policy draws recorded noise, and whose first two critics are those that are drawn."""

    def policy(self, params, latent):
        normal = ImplicitModel.policy(self, params, latent).distribution.distribution
        noise = rows["next_noise" if len(latent) == 3 else "noise"]
        drawn = parity.RecordedNormal(normal.loc, normal.scale, noise)
        return distributions.Independent(distributions.AffineTanhTransformedDistribution(drawn, -1.0, 1.0), 1)

    def two_values(self, q_params, latent, action, key):
        return self.values(q_params, latent, action)[..., :2]

    return with_methods(model, policy=policy, two_values=two_values)


def test_four_steps():
    recorded = load("td_mpc2")
    tdmpc2, shared = parity.algorithm("tdmpc/td_mpc2", *SETTINGS)
    model, actor = params_of(recorded["initial"])
    shared = parity.with_params(shared, TDMPC2Params(model, model.q, actor))
    # Their running range starts at one.
    shared = shared._replace(value_percentiles=jnp.asarray([0.0, 1.0]))

    @jax.jit
    def step(shared, rows):
        made = with_methods(tdmpc2)
        object.__setattr__(made, "model", recorded_model(tdmpc2.model, rows))
        now, following = (Observation(rows[name]) for name in ("observation", "next_observation"))
        flags = rows["terminated"], rows["truncated"]
        return made.sgd_step(shared, Step(now, rows["action"], rows["reward"], *flags, following), jax.random.key(0))

    losses = []
    for i in range(4):
        shared, metrics = step(shared, jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), recorded["batch"]))
        losses.append(metrics)
    losses = parity.stack(losses)
    names = {"consistency_loss": "consistency", "reward_loss": "reward", "q_loss": "value"}
    names |= {"continue_loss": "termination", "policy_loss": "policy", "value_range": "scale"}
    for ours, theirs in names.items():
        agree(f"TD-MPC2: {theirs}", losses[ours], recorded["loss"][theirs], TOLERANCE)
    after = params_of(recorded["final"])
    for name, got, before, expected in (
        *((name, *(getattr(tree, name) for tree in (shared.params.model, model, after[0]))) for name in model._fields),
        ("policy", shared.params.actor, actor, after[1]),
    ):
        agree(f"TD-MPC2: parameters of {name}", change(got, before), change(expected, before), TOLERANCE)
    slow = critics(recorded["target"], "")
    agree("TD-MPC2: target critics", change(shared.params.target_q, model.q), change(slow, model.q), TOLERANCE)
    assert np.isfinite(losses["entropy"]).all()
