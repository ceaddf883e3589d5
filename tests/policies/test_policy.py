import dataclasses
import gc
import weakref

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation, RolloutState
from stoix_like.envs import factory, suites
from stoix_like.envs.spaces import entries
from stoix_like.errors import ConfigError
from stoix_like.policies.load import load_policy, load_shared, open_run
from stoix_like.policies.make import make_policy
from stoix_like.policies.recurrent import RecurrentPolicy
from support.algorithms import make_algorithm
from support.systems import SYSTEMS, environment, needs_examples, takes_discrete
from support.trained_runs import SMALL
from support.untrained import untrained


@pytest.mark.slow
def test_a_policy_with_another_state_keeps_nothing_of_the_first_one(pendulum):
    first = load_policy(pendulum, "last")
    parameter = weakref.ref(jax.tree.leaves(first.params)[0])
    second = first.with_state(jax.tree.map(jnp.copy, load_shared(open_run(pendulum), "last").shared), 1)
    observation = np.zeros(second.observation_space.shape, np.float32)
    np.testing.assert_array_equal(first(observation), second(observation))
    del first
    gc.collect()
    assert parameter() is None
    assert second(observation).shape == second.action_space.shape


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
    shared, view = policy.shared, np.array([0.3, -0.7, 5.0], np.float32)
    shifted = shared._replace(statistics=dataclasses.replace(shared.statistics, mean=shared.statistics.mean + 1.0))
    assert abs(policy(view) - policy._compiled(shifted, Observation(view[None]), jax.random.key(0))[0]) > 1e-3


HOST = [*SMALL, "env=gymnasium", "env.scenario.name=support.scripted:Scripted-v0", "+env.kwargs.as_dict=true"]


@pytest.mark.slow
def test_predict_applies_the_wrappers_of_environments_on_the_host():
    """Of `[9, -1, 3, -9]`, the mask leaves `[9, 3, -9]`, clipped `[5, 3, -5]`; noise is the environment's own."""
    keys = ["env.flatten_observation=true", "env.observation_mask=['1']", "env.observation_clip=5"]
    policy = make_policy(*untrained(*HOST, *keys, "env.observation_noise=0.1"), {})
    views = np.asarray([[9.0, -1.0, 3.0, -9.0], [1.0, 2.0, 3.0, 4.0]])
    expected = policy(np.asarray([[5.0, 3.0, -5.0], [1.0, 3.0, 4.0]]))
    for given in ({"all": views}, np.clip(views[:, [0, 2, 3]], -5.0, 5.0)):
        np.testing.assert_array_equal(policy.predict(given)[0], expected)
    assert policy.predict({"all": views[0]})[0] == expected[0]


def test_predict_takes_observations_with_the_last_action_as_calls_do():
    policy = make_policy(*untrained(*HOST, "env.observe_last_action=true"), {})
    observation = {"all": np.arange(4.0), "last_action": np.asarray([0.0, 1.0, 0.0])}
    assert policy.predict(observation)[0] == policy.predict(Observation(observation))[0] == policy(observation)
    with pytest.raises(ValueError, match="observation has no agent_view.last_action: pass a dictionary with these"):
        policy.predict({"all": np.arange(4.0)})


@pytest.mark.slow
def test_greedy_policy_is_the_mode_where_evaluation_explores():
    """With one constant key, an epsilon-greedy policy would act alike in a batch row whatever it observes."""
    setup, shared = untrained("system=q_learning/ff_dqn", "env=gymnax/acrobot", "system.evaluation_epsilon=0.9")
    policy = make_policy(setup, shared, {"evaluation_epsilon": 0.8})
    observation = policy.random_observations(jax.random.key(0), 64)
    mode = make_algorithm(setup).q(shared.params.online, observation)[0].argmax(-1)
    np.testing.assert_array_equal(policy(observation), mode)
    np.testing.assert_array_equal(policy(observation, jax.random.key(5)), mode)
    sampling = make_policy(setup, shared, {}, greedy=False)
    with pytest.raises(ValueError, match="key=None"):
        sampling(observation)
    # Before the first update, epsilon is 1.
    assert (sampling(observation, jax.random.key(5)) != mode).sum() > 20


def test_a_policy_takes_shared_states_that_are_dataclasses():
    """As flax's `TrainState`; the same parameters act in the same way."""
    setup, shared = untrained("env=probe/policy", "network.actor_network.pre_torso.layer_sizes=[4]")
    fields = {"__annotations__": dict.fromkeys(shared._fields, object)}
    state = flax.struct.dataclass(type("State", (), fields))(*shared)
    observation = np.zeros(setup.env.observation_space.shape, np.float32)
    policies = [make_policy(setup, one, {}) for one in (shared, state)]
    assert policies[0](observation) == policies[1](observation)
    assert policies[1].params is policies[1].shared.params


def test_observation_of_wrong_shape_or_dtype_raises(policy):
    for view in (np.zeros(4), np.zeros((5, 2)), np.zeros(())):
        with pytest.raises(ValueError, match=r"agent_view has shape .* takes \[\.\.\., \*\(3,\)\]"):
            policy(view)
    with pytest.raises(ValueError, match="agent_view has dtype complex128: this policy takes float32"):
        policy(np.zeros(3, complex))


def test_policy_takes_only_legal_actions(tmp_path, monkeypatch):
    monkeypatch.setitem(suites.SUITES, "masked", suites.Suite("support.masked", "jax", ""))
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
    assert exported.platforms == ("cpu", "cuda", "tpu")
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


@pytest.mark.slow
def test_a_policy_that_maps_noise_to_actions_has_no_mode(tmp_path):
    setup, shared = untrained("system=offline/ff_fql", "env=gymnax/pendulum")
    policy = make_policy(setup, shared, {})
    observation = np.zeros((5, 3), np.float32)
    actions = [policy(observation, jax.random.key(seed)) for seed in range(2)]
    assert not np.allclose(*actions)
    with pytest.raises(ValueError, match="samples actions: pass a key$"):
        policy(observation)
    with pytest.raises(ConfigError, match="ff_fql .* maps noise to actions, without a mode: omit it"):
        make_policy(setup, shared, {}, greedy=True)
    with pytest.raises(ValueError, match="samples actions: it has no mode, omit the argument"):
        policy.predict(observation, deterministic=True)
    with pytest.raises(ConfigError, match="ONNX has no random numbers of jax: use stablehlo"):
        policy.export(tmp_path / "policy.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_has_a_policy(system, tmp_path):
    """Greedy and sampling policies, as functions and as files; every call draws new noise keys."""
    setup, shared = untrained(f"system={system}", environment(system))
    low, high = (0, 1) if takes_discrete(system) else (-2.0, 2.0)
    for greedy in (True, False) if setup.config.system.has_mode else (False,):
        policy = make_policy(setup, shared, {}, greedy=greedy)
        view, key = policy.random_observations(jax.random.key(2), 5), jax.random.key(3)
        views = entries(view.agent_view, "agent_view")
        inputs = [views[name] for name in views if name in policy.argument_shapes]
        if isinstance(policy, RecurrentPolicy):
            state, is_first = policy.initial_state(5), np.arange(5) > 2
            inputs = [*inputs, *jax.tree.leaves(state), is_first]
            action, _ = policy(view, state, is_first, key)
        else:
            action = policy(view, key)
        assert action.shape == (5, *policy.action_space.shape)
        assert ((low <= action) & (action <= high)).all()
        inspected = policy.inspect(view)
        if not needs_examples(system):
            assert np.isfinite(inspected.value).all()
            assert inspected.value.shape[:1] == (5,)
        if greedy and not isinstance(policy, RecurrentPolicy):
            np.testing.assert_allclose(inspected.action, action, rtol=1e-5, atol=1e-6)
        if takes_discrete(system):
            np.testing.assert_allclose(inspected.probabilities.sum(-1), np.ones(5), rtol=1e-5)
            np.testing.assert_array_equal(inspected.probabilities.argmax(-1), inspected.action)
        exported = jax.export.deserialize(policy.export(tmp_path / "policy").read_bytes())
        found, *_ = jax.tree.leaves(exported.call(*inputs, jax.random.key_data(key)))
        np.testing.assert_allclose(found, action, rtol=1e-4, atol=1e-5)
