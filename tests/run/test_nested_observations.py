import jax
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Observation
from stoix_like.envs import suites
from stoix_like.errors import ConfigError
from support.set_ups import setup_of

ENV = ("env=gymnax", "env.env_name=nested", "env.scenario.name=discrete")
SMALL = (
    *("arch.total_num_envs=4", "arch.num_evaluation=1", "arch.num_eval_episodes=2", "arch.absolute_metric=false"),
    *("arch.compile_cache=false", "logger=silent", "system.rollout_length=4"),
)
REPLAY = ("system.warmup_steps=8", "system.total_batch_size=8", "system.total_buffer_size=64", "system.epochs=1")
CNN = (
    "{_target_: stoix_like.networks.torso.CNNTorso,channel_sizes: [2],kernel_sizes: [3],strides: [2],hidden_sizes: [4]}"
)
LAYER = f"{{_target_: stoix_like.networks.inputs.DictInput,layers: {{pixels: {CNN}}}}}"
NUM_ENTRIES = 3 + 6 * 6


@pytest.fixture(autouse=True)
def suite(monkeypatch):
    monkeypatch.setitem(suites.SUITES, "nested", suites.Suite("support.nested", "jax", ""))


def prepare(*overrides):
    return setup_of(*ENV, *SMALL, *overrides)


def layer(network, value=LAYER):
    return (f"+network.{network}.input_layer={value}",)


def feature(network, name):
    return layer(network, f"{{_target_: stoix_like.networks.inputs.FeatureInput,feature_name: {name}}}")


def initial_params(*overrides):
    setup = prepare(*overrides)
    _, timestep = setup.env.reset(jax.random.split(jax.random.key(0), 4))
    return jax.eval_shape(setup.build_system().init, jax.random.key(1), timestep).shared.params


RUNS = {
    "ppo": ("ppo/ff_ppo", ["system.num_minibatches=2", "system.normalize_observations=true"]),
    "ppo_layers": ("ppo/ff_ppo", ["system.num_minibatches=2", *layer("actor_network"), *layer("critic_network")]),
    "dqn": ("q_learning/ff_dqn", [*REPLAY, "env.step_count=true"]),
    "sac": (
        "sac/ff_sac",
        [
            *(*REPLAY, "env.scenario.name=continuous", "system.normalize_observations=true"),
            f"+network.q_network.input_layer.input_layer={LAYER}",
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_on_dictionaries_trains_evaluates_loads_and_exports(name, tmp_path):
    system, overrides = RUNS[name]
    changes = [*ENV, *SMALL, *overrides, "arch.total_timesteps=64"]
    run_dir = stoix_like.train(system, changes, run_dir=tmp_path / "run").run_dir
    assert 0 <= stoix_like.evaluate(run_dir, 3)["episode_return_mean"] <= 4
    policy = stoix_like.load_policy(run_dir, "last", greedy=True)
    extra = ("step_count",) if name == "dqn" else ()
    assert policy.inputs == ("agent_view.inner.features", "agent_view.pixels", *extra)
    observation = policy.random_observations(jax.random.key(0), 5)
    assert observation.agent_view["pixels"].dtype == np.uint8
    action = policy(observation if extra else observation.agent_view)
    assert action.shape == (5, *policy.action_space.shape)
    exported = jax.export.deserialize(policy.export(tmp_path / "policy").read_bytes())
    key_data = jax.random.key_data(jax.random.key(0))
    np.testing.assert_allclose(exported.call(*jax.tree.leaves(observation), key_data), action, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"no agent_view\.pixels: pass a dictionary"):
        policy(Observation({"inner": observation.agent_view["inner"]}, None, observation.step_count))


@pytest.mark.slow
@pytest.mark.optimized
def test_ppo_learns_from_both_entries(tmp_path):
    """A policy that ignores the image or the features earns 2 of 4 on average."""
    changes = [*ENV, *SMALL, "arch.total_num_envs=64", "system.rollout_length=16", "arch.total_timesteps=4e4"]
    run_dir = stoix_like.train("ppo/ff_ppo", changes, run_dir=tmp_path / "run").run_dir
    assert stoix_like.evaluate(run_dir, 50, which="last")["episode_return_mean"] > 3.8


def test_entries_are_flattened_by_default_and_embedded_where_configured():
    params = initial_params()
    assert params.actor_params["params"]["torso"]["Dense_0"]["kernel"].shape == (NUM_ENTRIES, 64)
    params = initial_params(*layer("actor_network"))
    assert params.actor_params["params"]["torso"]["Dense_0"]["kernel"].shape == (3 + 4, 64)
    assert params.critic_params["params"]["torso"]["Dense_0"]["kernel"].shape == (NUM_ENTRIES, 64)


@pytest.mark.parametrize(
    ("env", "size"),
    [(("env.scenario.name=continuous",), NUM_ENTRIES), (("env.env_name=gymnax", "env.scenario.name=Pendulum-v1"), 3)],
)
def test_critics_flatten_entries_next_to_the_action(env, size):
    params = initial_params("system=sac/ff_sac", *REPLAY, *env)
    shapes = {leaf.shape for leaf in jax.tree.leaves(params.q_params.online)}
    assert (size + 1, 256) in shapes


@pytest.mark.slow
def test_networks_select_entries():
    for name, size in (("inner", 3), ("inner.features", 3), ("pixels", 36)):
        params = initial_params(*feature("actor_network", f"agent_view.{name}"))
        assert params.actor_params["params"]["torso"]["Dense_0"]["kernel"].shape == (size, 64)
    pixels = [feature(network, "agent_view.pixels") for network in ("actor_network", "critic_network")]
    params = initial_params("network=cnn", *pixels[0], *pixels[1])
    assert params.actor_params["params"]["torso"]["Conv_0"]["kernel"].shape == (3, 3, 1, 16)


def test_networks_read_the_step_count():
    inner = "{_target_: stoix_like.networks.inputs.FeatureInput,feature_name: agent_view.inner}"
    count = f"{{_target_: stoix_like.networks.inputs.StepCountInput,input_layer: {inner},scale: 4}}"
    params = initial_params("env.step_count=true", *layer("actor_network", count))
    assert params.actor_params["params"]["torso"]["Dense_0"]["kernel"].shape == (4, 64)
    with pytest.raises(ConfigError, match=r"step_count, which the observation lacks: set env\.step_count=true"):
        prepare(*layer("actor_network", count))
    with pytest.raises(ConfigError, match=r"network\.actor_network\.input_layer=.*scale=0.* must be positive"):
        prepare("env.step_count=true", *layer("actor_network", count.replace("scale: 4", "scale: 0")))


def test_flattened_dictionaries_are_one_vector():
    setup = prepare("env.flatten_observation=true", "env.frame_stack=2")
    assert setup.env.observation_space.shape == (2 * NUM_ENTRIES,)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.frame_stack=2"], r"env\.frame_stack=2 .* dictionary of inner\.features, pixels: set env\.flatten_obs"),
        (["network=cnn"], r"actor_network\.pre_torso does not fit observations of the entries .*: choose network=mlp"),
        (
            feature("actor_network", "agent_view.pixel"),
            r"input_layer\.feature_name=agent_view\.pixel is not part .* did you mean 'agent_view\.pixels'",
        ),
        (layer("actor_network", LAYER.replace("pixels", "pixel")), r"layers\.pixel is not an .* mean 'pixels'\?"),
        (
            layer("actor_network", LAYER.replace("pixels", "inner.features")),
            r"layers\.inner\.features=CNNTorso does not fit an entry of shape \(3,\): use a torso of dense layers",
        ),
        (
            [*layer("actor_network"), "env.env_name=gymnax", "env.scenario.name=CartPole-v1"],
            r"DictInput takes dictionaries, not observations of shape \(4",
        ),
        ([*layer("actor_network"), "network=cnn"], r"pre_torso=CNNTorso takes images, but .*input_layer returns"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        prepare(*overrides)
    assert "\n" not in str(caught.value)
