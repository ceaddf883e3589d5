import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.rssm import RSSM, Latent
from support.platforms import take_accelerator_forms
from support.recurrent_references import sigmoid

MODEL = RSSM(deterministic_size=4, hidden_size=3, num_classes=2, num_latents=2, num_blocks=2)


def _apply(model, latent, action, tokens):
    """Return the next deterministic part, and the logits of prior and posterior."""
    deterministic = model.advance(latent, action)
    return deterministic, model.prior(deterministic), model.posterior(deterministic, model.embed_tokens(tokens))


def _activate(x, norm):
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-4) * norm["scale"]
    return x * sigmoid(x)


def _layer(x, params):
    dense = params["Dense_0"]
    return _activate(x @ dense["kernel"] + dense["bias"], params["RMSNorm_0"])


def _blocks(x, params):
    """Multiply `[B, 4]` by a matrix of two blocks; return `[B, 2, F]`, one row per block."""
    parts = [part @ kernel for part, kernel in zip(np.split(x, 2, axis=-1), params["kernel"], strict=True)]
    return np.stack(parts, axis=-2) + params["bias"]


@pytest.mark.parametrize("accelerator", [False, True])
def test_the_cell_and_its_latents_match_numpy(accelerator, monkeypatch):
    if accelerator:
        take_accelerator_forms(monkeypatch)
    draw = np.random.default_rng(0).standard_normal
    latent = Latent(draw((5, 4), np.float32), np.eye(2, dtype=np.float32)[[[0, 1]] * 5])
    # Actions beyond 1 are limited.
    action, tokens = 3.0 * draw((5, 3), np.float32), draw((5, 6), np.float32)
    given = latent, action, tokens
    shapes = jax.eval_shape(lambda *given: MODEL.init(jax.random.key(0), *given, method=_apply), *given)
    params = jax.tree.map(lambda leaf: draw(leaf.shape, np.float32), shapes)
    found = jax.jit(lambda params, *given: MODEL.apply(params, *given, method=_apply))(params, *given)

    p, state = params["params"], latent.deterministic
    inputs = {"deterministic": state, "stochastic": [[1, 0, 0, 1]] * 5, "action": np.clip(action, -1.0, 1.0)}
    inputs = np.concatenate([_layer(np.asarray(x), p[f"from_{name}"]) for name, x in inputs.items()], axis=-1)
    x = inputs @ p["from_inputs"]["kernel"] + _blocks(state, p["from_block"]).reshape(5, 4)
    reset, candidate, update = np.split(_blocks(_activate(x, p["joined_norm"]), p["gates"]), 3, axis=-1)
    reset, candidate, update = (gate.reshape(5, 4) for gate in (reset, candidate, update))
    candidate, update = np.tanh(sigmoid(reset) * candidate), sigmoid(update - 1.0)
    deterministic = update * candidate + (1.0 - update) * state
    prior = _layer(_layer(deterministic, p["prior_layers_0"]), p["prior_layers_1"])
    x = deterministic @ p["posterior_in"]["kernel"] + p["posterior_in"]["bias"]
    posterior = _activate(x + tokens @ p["posterior_tokens"]["kernel"], p["posterior_norm"])
    logits = [
        x @ p[name]["kernel"] + p[name]["bias"] for x, name in ((prior, "prior_out"), (posterior, "posterior_out"))
    ]
    for ours, expected in zip(found, (deterministic, *(x.reshape(5, 2, 2) for x in logits)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_an_episode_starts_with_zeros_and_blocks_must_divide_the_state():
    assert [leaf.shape for leaf in MODEL.initial((3,))] == [(3, 4), (3, 2, 2)]
    assert not any(leaf.any() for leaf in MODEL.initial((3,)))
    assert MODEL.initial((3,)).features.shape == (3, 8)
    with pytest.raises(ValueError, match="deterministic_size=5 must be a multiple of num_blocks=2"):
        RSSM(deterministic_size=5, hidden_size=3, num_classes=2, num_blocks=2)


def test_parameters_and_latents_stay_float32_where_numbers_are_float64():
    with jax.enable_x64(True):
        created = jax.eval_shape(
            lambda: MODEL.init_with_output(
                jax.random.key(0),
                MODEL.initial((2,)),
                jnp.zeros((2, 3), jnp.float32),
                jnp.zeros((2, 5), jnp.float32),
                method=_apply,
            )
        )
    assert {leaf.dtype for leaf in jax.tree.leaves(created)} == {jnp.dtype(jnp.float32)}
