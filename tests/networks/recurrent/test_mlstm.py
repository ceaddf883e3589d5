import numpy as np
import pytest

from stoix_like.networks.base import ScannedRNN
from support.recurrent_references import RESETS, X, dense, layer_norm, outputs, random_params, sigmoid
from support.selections import first


@pytest.mark.parametrize(("forget_gate", "chunk_size"), first(1, [("sigmoid", 4), ("exp", 1), ("exp", 64)]))
def test_outputs_are_those_of_the_equations_without_a_stabiliser(forget_gate, chunk_size):
    rnn = ScannedRNN(8, "mlstm", cell_kwargs={"num_heads": 2, "forget_gate": forget_gate, "chunk_size": chunk_size})
    variables, params = random_params(rnn)
    found = outputs(rnn, variables)
    for n in range(2):
        matrix, normaliser = np.zeros((2, 4, 4)), np.zeros((2, 4))
        for t in range(len(X)):
            x = dense(params["embed"], X[t, n])
            u = layer_norm(params["norm"], x)
            query, key, value = dense(params["query_key_value"], u).reshape(3, 2, 4)
            log_input, forget = dense(params["gates"], u).reshape(2, 2)
            if RESETS[t, n]:
                matrix, normaliser = 0.0 * matrix, 0.0 * normaliser
            hidden = np.zeros((2, 4))
            for h in range(2):
                f = sigmoid(forget[h]) if forget_gate == "sigmoid" else np.exp(forget[h])
                i, k = np.exp(log_input[h]), key[h] / np.sqrt(4)
                matrix[h] = f * matrix[h] + i * np.outer(value[h], k)
                normaliser[h] = f * normaliser[h] + i * k
                hidden[h] = matrix[h] @ query[h] / max(abs(normaliser[h] @ query[h]), 1.0)
                hidden[h] /= np.sqrt(np.mean(hidden[h] ** 2) + 1e-6)
            hidden = sigmoid(dense(params["output_gate"], u)) * (hidden * params["head_norm"]["scale"]).reshape(8)
            np.testing.assert_allclose(found[t, n], x + dense(params["out"], hidden), rtol=1e-4, atol=1e-4)
