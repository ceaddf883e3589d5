import dataclasses
import itertools
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import onnxruntime
import pytest
import toys
from trained_runs import SMALL, train_members, train_pendulum

from stoix_like.base_types import Observation, RolloutState
from stoix_like.composition import compose_config, group_choices
from stoix_like.config import parse_config
from stoix_like.envs import factory, suites
from stoix_like.errors import ConfigError
from stoix_like.inference import contract
from stoix_like.inference.load import load_policy, load_shared, open_run
from stoix_like.inference.setup import set_up_inference
from stoix_like.policies.formats import numpy_policy
from stoix_like.policies.make import make_policy
from stoix_like.policies.recurrent import RecurrentPolicy


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    return train_pendulum(tmp_path_factory)


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    return train_members(tmp_path_factory)


@pytest.fixture(scope="module")
def policy(pendulum):
    return load_policy(pendulum, "last")


@pytest.fixture(scope="module")
def sampling(pendulum):
    return load_policy(pendulum, "last", greedy=False)


def untrained(*overrides):
    """Return a run, and the shared state of its agent before training."""
    setup = set_up_inference(parse_config(compose_config([*overrides])))
    _, timestep = jax.jit(setup.env.reset)(jax.random.split(jax.random.key(0), setup.spec.num_envs))
    return setup, jax.jit(setup.build_system().init)(jax.random.key(1), timestep).shared


def test_policy_acts_as_in_evaluation_in_native_units(pendulum, policy):
    """The suite's Pendulum driven by the policy follows the wrapped one driven by `eval_act`."""
    run = open_run(pendulum)
    setup, shared = run.setup, load_shared(run, "last").shared
    system, wrapped, native = setup.build_system(), setup.env, factory.make_eval(setup.config.env)
    keys = jax.random.split(jax.random.key(0), 3)

    @jax.jit
    def step(env_state, timestep, native_state, native_action):
        _, action, _ = system.eval_act(shared, RolloutState(env_state, timestep, ()), keys[0])
        native_state, native_timestep = native.unwrapped.step(keys, native_state, native_action)
        return action, *wrapped.step(keys, env_state, action), native_state, native_timestep

    env_state, timestep = jax.jit(wrapped.reset)(keys)
    native_state = native.native_state(env_state)
    actions = []
    for _ in range(6):
        actions.append(policy(timestep.observation.agent_view))
        action, env_state, timestep, native_state, native_timestep = step(
            env_state, timestep, native_state, actions[-1]
        )
        np.testing.assert_allclose(actions[-1], 2 * np.clip(action, -1, 1), rtol=1e-5, atol=1e-6)
        view, native_view = timestep.observation.agent_view, native_timestep.observation.agent_view
        np.testing.assert_allclose(native_view, view, rtol=1e-4, atol=1e-4)
    assert np.ptp(actions) > 0.1
    assert np.abs(actions).max() <= 2
    assert (policy.action_space.low, policy.action_space.high, policy.action_space.shape) == (-2.0, 2.0, (1,))
    assert policy.observation_space.shape == (3,)


def test_policy_normalises_observations(policy):
    """Different statistics give different actions for the same observation."""
    shared, view = policy._shared, np.array([0.3, -0.7, 5.0], np.float32)
    shifted = shared._replace(statistics=dataclasses.replace(shared.statistics, mean=shared.statistics.mean + 1.0))
    assert abs(policy(view) - policy._compiled(shifted, Observation(view[None]), jax.random.key(0))[0]) > 1e-3


def test_policy_accepts_any_batch_axes(policy):
    view = np.asarray(policy.random_observations(jax.random.key(0), 3).agent_view)
    many = policy(view)
    assert many.shape == (3, 1)
    assert policy(view[0]).shape == (1,)
    np.testing.assert_allclose(policy(view[0]), many[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(policy(view.reshape(3, 1, 3)), many.reshape(3, 1, 1))
    np.testing.assert_array_equal(policy(Observation(view)), many)
    np.testing.assert_allclose(jax.jit(policy)(view), many, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(policy(view.astype(np.float64)), many)


def test_sampling_policy_needs_a_key(policy, sampling):
    view = np.zeros((3, 3), np.float32)
    with pytest.raises(ValueError, match="key=None, .* pass a key, or load it with greedy=True"):
        sampling(view)
    keys = jax.random.split(jax.random.key(0))
    first, second = (np.asarray(sampling(view, key)) for key in keys)
    assert len(np.unique([first, second])) == 6
    np.testing.assert_array_equal(sampling(view, keys[0]), first)
    assert policy.greedy
    np.testing.assert_array_equal(policy(view), policy(view, keys[1]))


def test_predict_returns_what_calls_return(pendulum, policy, sampling):
    observations = np.asarray([[1.0, 0.0, 0.5], [0.0, -1.0, -2.0]], np.float32)
    for given in (observations, observations[0]):
        actions, state = policy.predict(given, deterministic=True)
        assert (type(actions), state) == (np.ndarray, None)
        np.testing.assert_array_equal(actions, policy(given))
    drawn = [sampling.predict(observations)[0] for _ in range(2)]
    assert not np.array_equal(*drawn)
    again = load_policy(pendulum, "last", greedy=False)
    np.testing.assert_array_equal([again.predict(observations, deterministic=False)[0] for _ in range(2)], drawn)


def test_predict_says_how_to_load_the_other_kind_of_policy(policy, sampling):
    for one, other in ((policy, False), (sampling, True)):
        with pytest.raises(ValueError, match=f"load it with greedy={other}"):
            one.predict(np.zeros(3, np.float32), deterministic=other)


@pytest.mark.slow
def test_greedy_policy_is_the_mode_where_evaluation_explores():
    """With one constant key, an epsilon-greedy policy would act alike in a batch row whatever it observes."""
    setup, shared = untrained("system=q_learning/ff_dqn", "env=gymnax/acrobot", "system.evaluation_epsilon=0.9")
    policy = make_policy(setup, shared, {"evaluation_epsilon": 0.8})
    observation = policy.random_observations(jax.random.key(0), 64)
    mode = setup.build_system().act.__self__.q(shared.params.online, observation)[0].argmax(-1)
    np.testing.assert_array_equal(policy(observation), mode)
    np.testing.assert_array_equal(policy(observation, jax.random.key(5)), mode)
    sampling = make_policy(setup, shared, {}, greedy=False)
    with pytest.raises(ValueError, match="key=None"):
        sampling(observation)
    # Before the first update, epsilon is 1.
    assert (sampling(observation, jax.random.key(5)) != mode).sum() > 20


def test_parameters_are_public(policy):
    """Actions are a function of `params` and the observation, with gradients."""
    view = np.asarray(policy.random_observations(jax.random.key(0), 3).agent_view)
    np.testing.assert_array_equal(policy.apply(policy.params, view), policy(view))
    doubled = jax.tree.map(lambda leaf: 2 * leaf, policy.params)
    assert (policy.apply(doubled, view) != policy(view)).any()
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), policy.params, doubled)
    both = jax.vmap(policy.apply, (0, None))(stacked, view)
    np.testing.assert_allclose(both[1], policy.apply(doubled, view), rtol=1e-5, atol=1e-6)
    grads = jax.grad(lambda params: policy.apply(params, view).sum())(policy.params)
    assert any((leaf != 0).any() for leaf in jax.tree.leaves(grads.actor_params))


def test_representation(policy, sampling):
    assert repr(policy).startswith(
        "Policy(ppo/ff_ppo on gymnax/Pendulum-v1, greedy, 128 env steps: agent_view float32[3]"
    )
    assert "sampling" in repr(sampling)
    assert len(repr(policy)) < 200


@pytest.mark.parametrize("name", ["policy.mlir", "policy.v2.PT"])
def test_export_refuses_endings_of_other_formats(policy, tmp_path, name):
    with pytest.raises(ConfigError, match=r"ends like a \..* use policy\..*stablehlo"):
        policy.export(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_observation_of_wrong_shape_or_dtype_raises(policy):
    for view in (np.zeros(4), np.zeros((5, 2)), np.zeros(())):
        with pytest.raises(ValueError, match=r"agent_view has shape .* takes \[\.\.\., \*\(3,\)\]"):
            policy(view)
    with pytest.raises(ValueError, match="agent_view has dtype complex128: this policy takes float32"):
        policy(np.zeros(3, complex))


LOAD = """
    import pathlib, sys
    import jax, jax.export, numpy
    given = numpy.load(sys.argv[2])
    act = jax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes()).call
    found, expected = numpy.asarray(act(given["view"], given["key_data"])), given["action"]
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), (found.shape, found.dtype)
    numpy.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert not any(name.partition(".")[0] in ("stoix_like", "flax", "distrax", "gymnax") for name in sys.modules)
    print("equal")
"""


@pytest.mark.slow
def test_exported_policy_needs_only_jax(sampling, tmp_path):
    key = jax.random.key(3)
    view = np.asarray(sampling.random_observations(key, 3).agent_view)
    np.savez(tmp_path / "given.npz", view=view, action=sampling(view, key), key_data=jax.random.key_data(key))
    path = sampling.export(tmp_path / "policy.stablehlo")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "given.npz",
        "policy.stablehlo",
        "policy.stablehlo.json",
    ]
    command = [sys.executable, "-I", "-c", textwrap.dedent(LOAD), path, tmp_path / "given.npz"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("equal\n", 0), done.stderr


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param([], marks=pytest.mark.slow),
        ["system.normalize_observations=true", "network=mlp_normal"],
    ],
)
def test_numpy_policy_acts_as_the_policy(overrides, tmp_path):
    """The reader runs alone, on a copy of its file; bounds of the actions come from the policy."""
    setup, shared = untrained("env=gymnax/pendulum", *overrides)
    if overrides:
        statistics = dataclasses.replace(
            shared.statistics, mean=np.float32([0.1, -0.2, 3.0]), std=np.float32([2, 1, 4])
        )
        shared = shared._replace(statistics=statistics)
    # Actions beyond the bounds of the environment.
    shared = shared._replace(params=jax.tree.map(lambda leaf: 100 * leaf, shared.params))
    policy = make_policy(setup, shared, {})
    path = policy.export(tmp_path / "policy.npz")
    view = np.asarray(policy.random_observations(jax.random.key(0), 64).agent_view)
    reader = runpy.run_path(numpy_policy.__file__)
    found = reader["load"](path)(view)
    assert np.ptp(found) > 3
    assert np.abs(found).max() <= 2
    np.testing.assert_allclose(found, policy(view), rtol=1e-4, atol=1e-4)
    assert len(Path(numpy_policy.__file__).read_text().splitlines()) <= 60


def test_contract_describes_the_exported_file(policy, tmp_path):
    path = policy.export(tmp_path / "policy.npz")
    described = contract.read(path)
    assert described["outputs"] == [
        {"name": "action", "shape": ["batch", 1], "dtype": "float32", "low": -2.0, "high": 2.0}
    ]
    assert [(entry["name"], entry["shape"]) for entry in described["inputs"]] == [("agent_view", ["batch", 3])]
    assert (described["system"], described["environment"]) == ("ppo/ff_ppo", "gymnax/Pendulum-v1")
    assert described["env_steps"] == policy.env_steps
    path.write_bytes(path.read_bytes() + b"0")
    with pytest.raises(ConfigError, match=r"is not the file that policy\.npz\.json describes"):
        contract.read(path)


@pytest.mark.parametrize("format", ["onnx", "npz"])
def test_formats_without_random_numbers_refuse_sampling_policies(sampling, tmp_path, format):
    with pytest.raises(ConfigError, match=f"format={format}: .* random numbers of jax: export the greedy policy"):
        sampling.export(tmp_path / "policy", format)
    assert list(tmp_path.iterdir()) == []


def test_arrays_for_numpy_hold_multilayer_perceptrons_alone(tmp_path):
    sizes = [f"network.{name}_network.pre_torso.hidden_sizes=[8]" for name in ("actor", "critic")]
    policy = make_policy(*untrained("env=gymnax/breakout", "network=cnn", *sizes), {})
    with pytest.raises(ConfigError, match="has a CNNTorso: use onnx or stablehlo"):
        policy.export(tmp_path / "policy.npz")


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo/rec_ppo", "q_learning/ff_dqn"])
def test_onnx_graph_acts_as_the_policy(system, tmp_path):
    """Export itself compares the graph with the policy; this checks the names and the batch axis."""
    policy = make_policy(*untrained(f"system={system}", "env=gymnax/cartpole"), {}, greedy=True)
    session = onnxruntime.InferenceSession(policy.export(tmp_path / "policy.onnx"))
    assert [entry.name for entry in session.get_inputs()] == list(policy.argument_shapes)
    assert [entry.name for entry in session.get_outputs()] == policy.result_names
    arrays = policy.random_arguments(jax.random.key(9), 5)
    found = session.run(None, dict(zip(policy.argument_shapes, map(np.asarray, arrays), strict=True)))
    for one, other in zip(found, jax.tree.leaves(policy.act_on(arrays, jax.random.key(0))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_export_that_differs_from_the_policy_raises_and_writes_no_file(policy, tmp_path, monkeypatch):
    act, traces = policy.act_on, itertools.count()
    # Another function whenever it is traced: for the file, and for the comparison.
    monkeypatch.setattr(policy, "act_on", lambda *inputs: act(*inputs) + 1e-3 * next(traces))
    with pytest.raises(RuntimeError, match="batch=1: the exported function and the policy differ"):
        policy.export(tmp_path / "policy.stablehlo")
    assert list(tmp_path.iterdir()) == []


def test_policy_takes_only_legal_actions(tmp_path, monkeypatch):
    monkeypatch.setitem(suites.SUITES, "masked", suites.Suite("masked", "jax", ""))
    overrides = ["env=gymnax", "env.env_name=masked", "env.scenario.name=masked", "env.step_count=true"]
    policy = make_policy(*untrained(*SMALL, *overrides), {})
    assert policy.inputs == ("agent_view", "action_mask", "step_count")
    observation = policy.random_observations(jax.random.key(0), 32)
    mask, action = np.asarray(observation.action_mask), np.asarray(policy(observation))
    any_legal = mask.any(-1)
    assert (~mask).sum(-1)[any_legal].sum() > 3
    assert mask[any_legal, action[any_legal]].all()
    with pytest.raises(ValueError, match="observation has no action_mask and step_count"):
        policy(observation.agent_view)
    with pytest.raises(ValueError, match="different batch axes"):
        policy(observation._replace(action_mask=mask[0]))
    exported = jax.export.deserialize(policy.export(tmp_path / "policy").read_bytes())
    key_data = jax.random.key_data(jax.random.key(0))
    np.testing.assert_array_equal(exported.call(*observation, key_data), action)
    assert policy(Observation(*(leaf[0] for leaf in observation))) == action[0]


@pytest.mark.slow
def test_flattened_and_stacked_images():
    overrides = ["env=gymnax", "env.scenario.name=Catch-bsuite", "env.flatten_observation=true", "env.frame_stack=2"]
    policy = make_policy(*untrained(*SMALL, *overrides), {})
    assert policy.observation_space.shape == (100,)
    assert policy.random_observations(jax.random.key(0), 2).agent_view.shape == (2, 100)
    assert policy(np.zeros((5, 100), np.float32)).shape == (5,)


def test_a_system_with_a_carry_has_a_recurrent_policy():
    setup, shared = untrained(*SMALL[4:], *toys.overrides(rollout_length=4), "env=probe/value")
    assert isinstance(make_policy(setup, shared, {}), RecurrentPolicy)


def recurrent_policy(cell_type, greedy=True):
    """Return the policy of an untrained recurrent system, and its run and shared state."""
    rnn, sizes = "network.actor_network.rnn_layer", ["arch.total_num_envs=4", "env=gymnax/pendulum"]
    cells = [f"{rnn}.cell_type={cell_type}", f"{rnn}.num_layers=2", f"{rnn}.hidden_state_dim=4"]
    setup, shared = untrained("system=ppo/rec_ppo", *sizes, *cells)
    return make_policy(setup, shared, {}, greedy=greedy), setup, shared


@pytest.mark.slow
@pytest.mark.parametrize("cell_type", ["optimised_lstm", "lru"])
def test_a_recurrent_policy_continues_from_its_state(cell_type, tmp_path):
    """Along random observations, actions are those of `eval_act`, and a first observation resets the state."""
    policy, setup, shared = recurrent_policy(cell_type)
    views = np.asarray(policy.random_observations(jax.random.key(1), 12).agent_view).reshape(4, 3, -1)
    system, carry, state = setup.build_system(), policy._system.init_carry(3), policy.initial_state(3)
    eval_act = jax.jit(system.eval_act)
    exported = jax.export.deserialize(policy.export(tmp_path / "policy").read_bytes())
    _, first = setup.env.reset(jax.random.split(jax.random.key(0), 3))
    stored, sb3_state = jax.tree.leaves(state), None
    for t, view in enumerate(views):
        is_first = np.array([t == 0, t in (0, 2), False])
        length, observation = np.where(is_first, 0, 7), Observation(view)
        timestep = first._replace(observation=observation, episode=first.episode._replace(episode_length=length))
        carry, action, _ = eval_act(shared, RolloutState((), timestep, carry), jax.random.key(0))
        found, state = policy(view, state, is_first)
        np.testing.assert_allclose(found, 2 * np.clip(action, -1, 1), rtol=1e-4, atol=1e-5)
        called, sb3_state = policy.predict(view, sb3_state, episode_start=is_first, deterministic=True)
        np.testing.assert_array_equal(called, found)
        also, *stored = exported.call(view, *stored, is_first, np.zeros(2, np.uint32))
        np.testing.assert_allclose(also, found, rtol=1e-4, atol=1e-5)
    again, _ = policy(views[-1][1], jax.tree.map(lambda leaf: leaf[1], policy.initial_state((3,))))
    alone, _ = policy(views[-1][1], policy.initial_state())
    np.testing.assert_allclose(again, alone, rtol=1e-5)
    assert np.abs(found[1] - again).max() > 1e-5


def test_a_recurrent_policy_refuses_other_states():
    policy, *_ = recurrent_policy("gru", greedy=False)
    view = np.zeros((3, 3), np.float32)
    with pytest.raises(ValueError, match=r"state has the shapes .*\(2, 4\).* pass what policy.initial_state\(\(3,\)\)"):
        policy(view, policy.initial_state(2), key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"is_first has shape \(2,\): this call takes \(3,\)"):
        policy(view, policy.initial_state(3), np.zeros(2, bool), jax.random.key(0))
    with pytest.raises(ValueError, match="key=None, but this policy samples actions"):
        policy(view, policy.initial_state(3))


@pytest.mark.slow
@pytest.mark.parametrize("system", group_choices("system"))
def test_every_system_has_a_policy(system, tmp_path):
    """Greedy and sampling policies, as functions and as files; every call draws new noise keys."""
    continuous = system.startswith(("ddpg/", "reppo/", "sac/")) and system != "sac/ff_sac_discrete"
    setup, shared = untrained(f"system={system}", f"env=gymnax/{'pendulum' if continuous else 'cartpole'}")
    low, high = (-2.0, 2.0) if continuous else (0, 1)
    for greedy in (True, False):
        policy = make_policy(setup, shared, {}, greedy=greedy)
        view, key = policy.random_observations(jax.random.key(2), 5), jax.random.key(3)
        inputs = [view.agent_view]
        if isinstance(policy, RecurrentPolicy):
            state, is_first = policy.initial_state(5), np.arange(5) > 2
            inputs = [*inputs, *jax.tree.leaves(state), is_first]
            action, _ = policy(view, state, is_first, key)
        else:
            action = policy(view, key)
        assert action.shape == (5, *policy.action_space.shape)
        assert ((low <= action) & (action <= high)).all()
        inspected = policy.inspect(view)
        assert np.isfinite(inspected.value).all()
        assert inspected.value.shape[:1] == (5,)
        if greedy and not isinstance(policy, RecurrentPolicy):
            np.testing.assert_allclose(inspected.action, action, rtol=1e-5, atol=1e-6)
        if not continuous:
            np.testing.assert_allclose(inspected.probabilities.sum(-1), np.ones(5), rtol=1e-5)
            np.testing.assert_array_equal(inspected.probabilities.argmax(-1), inspected.action)
        exported = jax.export.deserialize(policy.export(tmp_path / "policy").read_bytes())
        found, *_ = jax.tree.leaves(exported.call(*inputs, jax.random.key_data(key)))
        np.testing.assert_allclose(found, action, rtol=1e-4, atol=1e-5)
