import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.base import ScannedRNN
from support.compiled import run
from support.recurrent_references import KEY, RESETS, X, dense, layer_norm, outputs, random_params, sigmoid
from support.selections import first


def gate(params, x, y):
    y_r, y_z, y_g = np.split(dense(params["from_output"], y), 3)
    x_r, x_z = np.split(dense(params["from_input"], x), 2)
    r, z = sigmoid(y_r + x_r), sigmoid(y_z + x_z - params["bias"])
    return (1 - z) * x + z * np.tanh(y_g + dense(params["from_reset_input"], r * x))


def encode(distance, width):
    angles = [distance / 10000.0 ** (2 * j / width) for j in range(width // 2)]
    return np.concatenate([np.sin(angles), np.cos(angles)])


@pytest.mark.parametrize("window", first(1, [2, 1, 4, 7]))
def test_outputs_are_those_of_each_step_attending_to_its_window(window):
    rnn = ScannedRNN(4, "gtrxl", cell_kwargs={"window": window, "num_heads": 2, "mlp_factor": 3})
    variables, params = random_params(rnn)
    found = outputs(rnn, variables)
    u, v = params["attention_biases"]
    for n in range(2):
        episode = []
        for t in range(len(X)):
            episode = [] if RESETS[t, n] else episode
            episode.append(dense(params["embed"], X[t, n]))
            normed = [layer_norm(params["norms_0"], e) for e in episode[-window - 1 :]]
            query = (normed[-1] @ params["query"]["kernel"]).reshape(2, 2)
            both = (np.stack(normed) @ params["key_value"]["kernel"]).reshape(-1, 2, 2, 2)
            keys, values = both[:, 0], both[:, 1]
            attended = np.zeros((2, 2))
            for h in range(2):
                scores = []
                for s, key in enumerate(keys[:, h]):
                    position = encode(len(keys) - 1 - s, 4) @ params["position"]["kernel"][:, 2 * h : 2 * h + 2]
                    scores.append(((query[h] + u[h]) @ key + (query[h] + v[h]) @ position) / np.sqrt(2))
                weights = np.exp(scores) / np.sum(np.exp(scores))
                attended[h] = weights @ values[:, h]
            y = dense(params["out"], attended.reshape(4))
            y = gate(params["gates_0"], episode[-1], np.maximum(y, 0.0))
            hidden = np.maximum(dense(params["mlp_0"], layer_norm(params["norms_1"], y)), 0.0)
            output = gate(params["gates_1"], y, np.maximum(dense(params["mlp_1"], hidden), 0.0))
            np.testing.assert_allclose(found[t, n], output, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_no_gradient_flows_into_the_window_before_a_sequence():
    rnn = ScannedRNN(4, "gtrxl", cell_kwargs={"window": 3})
    variables, _ = random_params(rnn)
    x, resets = jax.random.normal(KEY, (5, 2, 3)), jnp.zeros((5, 2), bool)
    start = run(rnn.apply, variables, rnn.initialize_carry(2), (x, resets))[0]
    apply = jax.jit(jax.grad(lambda state, x: rnn.apply(variables, state, (x, resets))[1][-1].sum(), (0, 1)))
    by_state, by_inputs = apply(start, x)
    assert (np.abs(by_inputs).sum((1, 2)) > 0).tolist() == [False, True, True, True, True]
    np.testing.assert_array_equal(by_state, 0.0)
