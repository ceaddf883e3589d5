"""Losses, gradients, the optimiser and the recurrent state-space model of DreamerV3, on those of its authors' code.

Both sides compute in float32, in other orders, which leaves 1e-5 of the largest entry of a layer; parameters, whose
steps divide by the roots of moments, agree to 3e-5 of their change. Policy and critic are linear in given latents.
`scripts/parity/record_dreamer.py` recorded the references.
"""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stoix_like.base_types import Observation
from stoix_like.networks.distributions import mix_uniform
from stoix_like.networks.rssm import RSSM, Latent
from stoix_like.systems.dreamer.dreamer_types import DreamerParams
from stoix_like.systems.dreamer.world_model import Imagined
from stoix_like.utils.loss.world_model import kl_balance_loss
from stoix_like.utils.replay import Stream, StreamBatch
from support import parity
from support.parity import agree, change, load

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5
SETTINGS = [
    *("env.kwargs={discrete:true}", "system.rollout_length=4", "system.warmup_steps=12"),
    *("system.total_buffer_size=256", "system.total_batch_size=4", "system.sequence_length=8"),
    *("system.latent_period=4", "system.online_sequences=2", "system.train_ratio=4", "system.imagination_length=4"),
    *("system.lr=1e-2", "system.lr_warmup_steps=2", f"system.gamma={1 - 1 / 333}"),
    "network.world_model.dynamics.deterministic_size=8",
    *(f"network.world_model.dynamics.{size}" for size in ("num_blocks=2", "num_latents=1", "num_classes=4")),
    *(f"network.{name}_network.pre_torso.layer_sizes=[]" for name in ("actor", "critic")),
    "network.critic_network.critic_head.num_atoms=31",
]


def latent_of(features):
    return Latent(features[..., :8], features[..., 8:].reshape(*features.shape[:-1], 1, 4))


@dataclasses.dataclass
class RecordedModel:
    """A world model whose parameters are the latents of the batch, and whose dreams are given."""

    dream: dict

    def loss(self, params, batch, key):
        return jnp.zeros(()), latent_of(params), {}

    def imagine(self, params, start, mask, act, key, length):
        return Imagined(latent_of(self.dream["features"]), self.dream["action"][:-1], mask)

    def reward(self, params, latent):
        return SimpleNamespace(mean=lambda: self.dream["reward"])

    def continues(self, params, latent):
        return self.dream["continues"]


def test_losses_gradients_and_laprop():
    recorded = load("dreamer_losses")
    inputs = jax.tree.map(jnp.asarray, recorded["input"])
    dreamer, _ = parity.algorithm("dreamer/dreamer_v3", *SETTINGS)

    def convert(tree):
        heads = (
            {"params": {f"{kind}_head": {"Dense_0": tree[name]}}}
            for name, kind in (("actor", "action"), ("critic", "critic"))
        )
        return DreamerParams(tree["latents"], *heads)

    params = convert(inputs)
    slow = {"params": {"critic_head": {"Dense_0": inputs["slow"]}}}
    flags = inputs["is_last"], inputs["terminated"]
    nothing = Observation(jnp.zeros((6, 3, 3)))
    entries = Stream(nothing, jnp.zeros((6, 3), jnp.int32), inputs["replayed_reward"], jnp.zeros((6, 3), bool), *flags)

    @jax.jit
    def step(params, opt_state, return_scale, dream):
        recorded_model = dataclasses.replace(dreamer, model=RecordedModel(dream))
        gradient = jax.grad(recorded_model.loss, has_aux=True)
        key = jax.random.key(0)
        gradients, (metrics, _, return_scale) = gradient(
            params, slow, return_scale, StreamBatch(entries, None, ()), key
        )
        updates, opt_state = dreamer.optim.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, return_scale, gradients, metrics

    opt_state, return_scale = dreamer.optim.init(params), dreamer.returns.init()
    names = {"policy_loss": "policy", "value_loss": "value", "replay_value_loss": "repval", "return_range": "range"}
    names |= {"entropy": "entropy"}
    for i in range(3):
        dream, expected = inputs["dreams"][str(i)], recorded["steps"][str(i)]
        params, opt_state, return_scale, gradients, metrics = step(params, opt_state, return_scale, dream)
        for ours, theirs in names.items():
            agree(f"DreamerV3: step {i}: {theirs}", metrics[ours], expected["loss"][theirs], TOLERANCE)
        theirs = convert(expected["gradients"])
        for name in DreamerParams._fields:
            agree(
                f"DreamerV3: step {i}: gradient of {name}", getattr(gradients, name), getattr(theirs, name), TOLERANCE
            )
    before, after = convert(inputs), convert(recorded["final"])
    agree("DreamerV3: parameters", change(params, before), change(after, before), 3e-5)


def rssm_of(weights):
    """Return the parameters of their model; the layer that sees a block and all inputs is two of ours."""

    def layer(name, norm=True):
        linear = {"kernel": weights[f"{name}.kernel"], "bias": weights[f"{name}.bias"]}
        if not norm:
            return linear
        return {"Dense_0": linear, "RMSNorm_0": {"scale": weights[f"{name}norm.scale"]}}

    joined, posterior = weights["dynhid0.kernel"], weights["obs0.kernel"]
    params = {
        "from_deterministic": layer("dynin0"),
        "from_stochastic": layer("dynin1"),
        "from_action": layer("dynin2"),
        # [blocks, width of a block and of the inputs, width of a block].
        "from_block": {"kernel": joined[:, :4], "bias": weights["dynhid0.bias"].reshape(2, 4)},
        "from_inputs": {"kernel": np.moveaxis(np.asarray(joined[:, 4:]), 0, 1).reshape(18, 8)},
        "joined_norm": {"scale": weights["dynhid0norm.scale"]},
        "gates": {"kernel": weights["dyngru.kernel"], "bias": weights["dyngru.bias"].reshape(2, 12)},
        "prior_layers_0": layer("prior0"),
        "prior_layers_1": layer("prior1"),
        "prior_out": layer("priorlogit", norm=False),
        "posterior_in": {"kernel": posterior[:8], "bias": weights["obs0.bias"]},
        "posterior_tokens": {"kernel": posterior[8:]},
        "posterior_norm": {"scale": weights["obs0norm.scale"]},
        "posterior_out": layer("obslogit", norm=False),
    }
    return {"params": params}


def test_recurrent_state_space_model():
    """A step of the model, with actions beyond [-1, 1], and the losses between prior and posterior."""
    recorded = load("dreamer_rssm")
    inputs = jax.tree.map(jnp.asarray, recorded["input"])
    rssm = RSSM(deterministic_size=8, hidden_size=6, num_classes=4, num_latents=2, num_blocks=2)

    def outputs(params, inputs):
        latent = Latent(inputs["deter"], inputs["stoch"])
        deterministic = rssm.apply(params, latent, inputs["action"], method="advance")
        embedding = rssm.apply(params, inputs["tokens"], method="embed_tokens")
        posterior = rssm.apply(params, deterministic, embedding, method="posterior")
        prior = rssm.apply(params, deterministic, method="prior")
        dynamics, representation = kl_balance_loss(mix_uniform(posterior, 0.01), mix_uniform(prior, 0.01), 0.1)
        means = {"dyn": dynamics.mean(), "rep": representation.mean()}
        found = {"deter": deterministic, "posterior": posterior, "prior": prior}
        return means["dyn"] + 0.1 * means["rep"], (means, found)

    params = jax.tree.map(jnp.asarray, rssm_of(recorded["weights"]))
    gradients, (means, found) = jax.jit(jax.grad(outputs, has_aux=True))(params, inputs)
    agree("RSSM: outputs", found, recorded["output"], TOLERANCE)
    agree("RSSM: losses", means, recorded["loss"], TOLERANCE)
    agree("RSSM: gradients", gradients, rssm_of(recorded["gradients"]), TOLERANCE)
