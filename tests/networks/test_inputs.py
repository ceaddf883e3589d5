import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation
from stoix_like.networks.inputs import (
    ArrayInput,
    DictInput,
    EmbeddingActionInput,
    EmbeddingActionOnehotInput,
    EntriesInput,
    FeatureInput,
    FlattenInput,
    StepCountInput,
)
from stoix_like.networks.torso import MLPTorso
from stoix_like.systems.parts.normalizer import make_normalizer
from support.compiled import run

VIEW = {
    "grid": np.stack([np.full((2, 2), 255, np.uint8), np.zeros((2, 2), np.uint8)]),
    "agent": {"speed": np.asarray([[3.0], [4.0]]), "armed": np.asarray([True, False])},
}
# Sorted by name: armed, speed, then the four pixels.
DIMS, FLAT = (0, 1, 2), [[1.0, 3.0, 1.0, 1.0, 1.0, 1.0], [0.0, 4.0, 0.0, 0.0, 0.0, 0.0]]
OBSERVATION = jax.device_put(Observation(VIEW, step_count=np.asarray([5, 10])))


def test_entries_are_flattened_and_concatenated_sorted_by_name():
    for layer in (FlattenInput(ArrayInput(), DIMS), DictInput({}, DIMS)):
        np.testing.assert_array_equal(run(layer.apply, {}, OBSERVATION), FLAT)


def test_named_entries_pass_through_their_own_torsos():
    layer = DictInput(
        {"grid": MLPTorso((1,), kernel_init="ones"), "agent.speed": MLPTorso((2,), kernel_init="ones")}, DIMS
    )
    params = jax.jit(layer.init)(jax.random.key(0), OBSERVATION)
    # Two units copy the speed, and one sums the four pixels.
    np.testing.assert_allclose(run(layer.apply, params, OBSERVATION), [[1.0, 3.0, 3.0, 4.0], [0.0, 4.0, 4.0, 0.0]])
    with pytest.raises(ValueError, match=r"layers\.gird is not an entry of the observation: did you mean 'grid'"):
        DictInput({"gird": MLPTorso((1,))}, DIMS).init(jax.random.key(0), OBSERVATION)


def test_features_are_selected_by_dotted_names():
    np.testing.assert_array_equal(run(FeatureInput("agent_view.agent.speed").apply, {}, OBSERVATION), [[3.0], [4.0]])
    assert set(run(FeatureInput("agent_view.agent").apply, {}, OBSERVATION)) == {"speed", "armed"}
    with pytest.raises(AttributeError, match=r"agent_view\.gird is not part of .* did you mean 'agent_view\.grid'"):
        run(FeatureInput("agent_view.gird").apply, {}, OBSERVATION)
    with pytest.raises(AttributeError, match="use step_count, which is an array"):
        run(FeatureInput("step_count.grid").apply, {}, OBSERVATION)


def test_entries_are_selected_by_their_names():
    selected = run(EntriesInput(("agent",)).apply, {}, OBSERVATION)
    np.testing.assert_array_equal(selected["agent"]["speed"], VIEW["agent"]["speed"])
    assert set(selected) == {"agent"}


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_actions_of_any_shape_are_appended_as_vectors(shape):
    action = np.arange(2.0 * np.prod(shape)).reshape(2, *shape)
    joined = run(EmbeddingActionInput().apply, {}, *jax.device_put((Observation(np.ones((2, 4))), action)))
    np.testing.assert_array_equal(joined, np.concatenate([np.ones((2, 4)), action.reshape(2, -1)], -1))


def test_the_step_count_is_appended():
    layer = StepCountInput(FeatureInput("agent_view.agent.speed"), 20.0)
    np.testing.assert_array_equal(run(layer.apply, {}, OBSERVATION), [[3.0, 0.25], [4.0, 0.5]])
    with_action = StepCountInput(EmbeddingActionInput(FeatureInput("agent_view.agent.speed")), 10.0)
    action = jax.device_put(np.asarray([[7.0], [8.0]]))
    np.testing.assert_array_equal(
        run(with_action.apply, {}, OBSERVATION, action=action), [[3.0, 7.0, 0.5], [4.0, 8.0, 1.0]]
    )


def test_normalisation_changes_all_but_pixels():
    normalizer = make_normalizer(True, Axes())
    state = run(lambda x: normalizer.update(normalizer.init(x), x), OBSERVATION)
    view = run(normalizer.apply, state, OBSERVATION).agent_view
    # Speeds 3 and 4 have mean 3.5 and standard deviation 0.5.
    np.testing.assert_allclose(view["agent"]["speed"], [[-1.0], [1.0]], rtol=1e-5)
    np.testing.assert_array_equal(view["grid"], VIEW["grid"])
    assert view["grid"].dtype == jnp.uint8
    np.testing.assert_allclose(view["agent"]["armed"], 1.0 - 2.0 * ~VIEW["agent"]["armed"], rtol=1e-5)


def test_flatten_input_returns_vectors_of_floats():
    flatten = FlattenInput(ArrayInput(), 3)
    image, dtypes = np.repeat(np.asarray([0, 255], np.uint8), 4).reshape(2, 2, 2, 1), (jnp.uint8, bool, jnp.bfloat16)
    pixels, flags, floats = jax.jit(lambda image: [flatten.apply({}, image.astype(x)) for x in dtypes])(image)
    np.testing.assert_array_equal(pixels, [[0.0] * 4, [1.0] * 4])
    assert [x.dtype for x in (pixels, flags, floats)] == [jnp.float32, jnp.float32, jnp.bfloat16]


def test_pixels_next_to_an_action_are_scaled():
    pixels, action = jax.device_put((np.asarray([[0, 51, 255]], np.uint8), np.asarray([[3.0]])))
    joined = run(EmbeddingActionInput().apply, {}, pixels, action)
    np.testing.assert_allclose(joined, [[0.0, 0.2, 1.0, 3.0]])
    one_hot = run(EmbeddingActionOnehotInput(2).apply, {}, pixels, jax.device_put(np.asarray([1])))
    np.testing.assert_allclose(one_hot, [[0.0, 0.2, 1.0, 0.0, 1.0]])
