import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

from stoix_like.networks.base import ScannedRNN
from stoix_like.networks.recurrent import MAX_STATES, S5Cell
from stoix_like.networks.recurrent.s5 import hippo_eigenvalues, hippo_eigenvectors
from support.recurrent_references import KEY, RESETS, X, dense, gelu, layer_norm, outputs, random_params, sigmoid
from support.selections import first


def test_eigenvalues_are_those_of_the_normal_part_of_hippo():
    # For two rows, A = [[-1, 0], [-sqrt(3), -2]] and p = (sqrt(1/2), sqrt(3/2)): A + p p^T has -1/2 on its diagonal and
    # +-sqrt(3)/2 beside it, with eigenvalues -1/2 +- i sqrt(3)/2.
    values, vectors = hippo_eigenvalues(2), hippo_eigenvectors(2)
    np.testing.assert_allclose(values, [-0.5 + 0.5j * np.sqrt(3.0)])
    expected = np.array([[-0.5, np.sqrt(3) / 2], [-np.sqrt(3) / 2, -0.5]])
    np.testing.assert_allclose(2 * np.real(vectors * values @ vectors.conj().T), expected, atol=1e-12)
    values, vectors = hippo_eigenvalues(8), hippo_eigenvectors(8)
    assert (values.imag > 0).all()
    matrix = 2 * np.real(vectors * values @ vectors.conj().T)
    np.testing.assert_allclose(matrix + matrix.T, -np.eye(8), atol=1e-12)
    # Row 2, column 1: -sqrt(5 * 3) + sqrt(2.5 * 1.5).
    np.testing.assert_allclose(matrix[2, 1], -np.sqrt(15.0) / 2.0)


@pytest.mark.parametrize("size", first(1, [64, 256]))
def test_eigenvalues_and_vectors_diagonalise_the_matrix(size):
    """They are those of numpy, in the order of LAPACK; vectors are unique but for their phases."""
    root = np.sqrt(2.0 * np.arange(size) + 1.0)
    skew = np.triu(np.outer(root, root), 1) / 2.0
    expected, basis = np.linalg.eigh(-1j * (skew - skew.T))
    values, vectors = hippo_eigenvalues(size), hippo_eigenvectors(size)
    np.testing.assert_allclose(values, -0.5 + 1j * expected[size // 2 :], rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(basis[:, size // 2 :].conj() * vectors, axis=0)), 1.0, rtol=1e-12)
    # The largest size converges, too: the last one is P^2 / pi, but for terms of the order of P^0.
    np.testing.assert_allclose(hippo_eigenvalues(2 * MAX_STATES).imag[-1], (2 * MAX_STATES) ** 2 / np.pi, rtol=1e-2)


@pytest.mark.parametrize("prenorm", [pytest.param(True, marks=pytest.mark.slow), False])
def test_outputs_are_those_of_the_continuous_system_with_constant_inputs_between_steps(prenorm):
    rnn = ScannedRNN(4, "s5", cell_kwargs={"prenorm": prenorm, "states": 3})
    variables, params = random_params(rnn)
    found = outputs(rnn, variables)
    eigenvalues = np.minimum(params["real"], -1e-4) + 1j * params["imaginary"]
    for n in range(2):
        state = np.zeros(3, complex)
        for t in range(len(X)):
            x = dense(params["embed"], X[t, n])
            u = layer_norm(params["norm"], x) if prenorm else x
            encoded = dense(params["encode"], u)
            driven = encoded[:3] + 1j * encoded[3:]
            before = 0.0 * state if RESETS[t, n] else state
            for p in range(3):
                # h' = lambda h + b with b constant for one time step: the exponential of the system of h and 1.
                system = np.exp(params["log_step"][p]) * np.array([[eigenvalues[p], driven[p]], [0.0, 0.0]])
                state[p] = (expm(system) @ [before[p], 1.0])[0]
            y = np.concatenate([state.real, -state.imag]) @ params["decode"]["kernel"] + params["skip"] * u
            output = x + gelu(y) * sigmoid(dense(params["gate"], gelu(y)))
            output = output if prenorm else layer_norm(params["norm"], output)
            np.testing.assert_allclose(found[t, n], output, atol=2e-5)


@pytest.mark.slow
def test_initial_parameters_follow_the_paper():
    cell = S5Cell(64, dt_min=1e-3, dt_max=1e-1)
    params = jax.jit(lambda key: cell.init(key, cell.initialize_carry(key, (64,)), jnp.zeros(64)))(KEY)["params"]
    values = hippo_eigenvalues(64)
    np.testing.assert_allclose(params["real"] + 1j * params["imaginary"], values, rtol=1e-6)
    steps = np.exp(params["log_step"])
    assert 1e-3 <= steps.min() < 3e-3 < 3e-2 < steps.max() <= 1e-1
    # B = V^* B' and C = C' V for real B' of variance 1/H, and complex C' of variance 2/P: |b|^2 averages 1/H, and that
    # of 2 C averages 8/P.
    real, imaginary = np.split(np.asarray(params["encode"]["kernel"]), 2, axis=1)
    np.testing.assert_allclose(np.mean(real**2 + imaginary**2), 1 / 64, rtol=0.1)
    real, imaginary = np.split(np.asarray(params["decode"]["kernel"]), 2)
    np.testing.assert_allclose(np.mean(real**2 + imaginary**2), 8 / 64, rtol=0.1)
