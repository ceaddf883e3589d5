import dataclasses
import json
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from quick_compilation import quick_compilation  # noqa: F401

import stoix_like
from stoix_like.base_types import Actor, Observation
from stoix_like.config import compose_config, typed
from stoix_like.envs import factory
from stoix_like.errors import ConfigError
from stoix_like.policy import Policy, load_policy
from stoix_like.runner import saved
from stoix_like.runner.prepared import make_system, prepare

SMALL = [
    "network.actor_network.pre_torso.layer_sizes=[8]",
    "network.critic_network.pre_torso.layer_sizes=[8]",
    "system.rollout_length=16",
    "system.num_minibatches=2",
    "arch.total_num_envs=4",
    "arch.num_eval_episodes=2",
    "arch.max_eval_steps=20",
    "arch.absolute_metric=false",
    "arch.compile_cache=false",
    "logger=silent",
]
# Large steps, so that few of them make a policy that acts.
PENDULUM = [
    *SMALL,
    "env=gymnax/pendulum",
    "system.normalize_observations=true",
    "system.actor_lr=0.1",
    "arch.total_timesteps=128",
    "arch.num_evaluation=2",
]
MEMBERS = [
    *SMALL,
    "arch.population.hyperparams={actor_lr: [1e-4, 1e-1, 1e-2]}",
    "arch.total_timesteps=192",
    "arch.num_evaluation=3",
]


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    return stoix_like.train("ppo/ff_ppo", PENDULUM, run_dir=tmp_path_factory.mktemp("runs") / "pendulum").run_dir


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    return stoix_like.train("ppo/ff_ppo", MEMBERS, run_dir=tmp_path_factory.mktemp("runs") / "members").run_dir


def untrained(*overrides, **kwargs):
    """A policy as it is before training."""
    prepared = prepare(typed(compose_config([*SMALL, *overrides])))
    system = make_system(prepared, {})
    _, timestep = prepared.env.reset(jax.random.split(jax.random.key(0), prepared.plan.envs_per_shard))
    return Policy(prepared, system.init(jax.random.key(1), timestep).shared, {}, **kwargs)


def test_it_acts_as_the_evaluation_does_in_the_units_of_the_environment(pendulum):
    """The suite's own Pendulum, driven by the policy, goes where the wrapped one goes, driven by `eval_act`."""
    policy = load_policy(pendulum)
    run = saved.open_run(pendulum)
    prepared, shared = run.prepared, saved.load_shared(run, "best").shared
    system, wrapped, native = make_system(prepared, {}), prepared.eval_env, factory.make_single(prepared.run.env)
    keys = jax.random.split(jax.random.key(0), 5)
    env_state, timestep = wrapped.reset(keys)
    native_state = jax.vmap(native.native_state)(env_state)
    actions = []
    for _ in range(6):
        actions.append(policy(timestep.observation.agent_view))
        _, action, _ = system.eval_act(shared, Actor(env_state, timestep, ()), keys[0])
        np.testing.assert_allclose(actions[-1], 2 * jnp.clip(action, -1, 1), rtol=1e-5, atol=1e-6)
        env_state, timestep = wrapped.step(keys, env_state, action)
        native_state, seen = jax.vmap(native.unwrapped.step)(keys, native_state, actions[-1])
        np.testing.assert_allclose(seen.observation.agent_view, timestep.observation.agent_view, rtol=1e-4, atol=1e-4)
    assert np.ptp(actions) > 0.1
    assert np.abs(actions).max() <= 2
    assert (policy.action_space.low, policy.action_space.high, policy.action_space.shape) == (-2.0, 2.0, (1,))
    assert policy.observation_space.shape == (3,)


def test_normalisation_is_part_of_it(pendulum):
    """Other statistics of the same observations give other actions."""
    policy, view = load_policy(pendulum, "last"), np.array([0.3, -0.7, 5.0], np.float32)
    run = saved.open_run(pendulum)
    shared = saved.load_shared(run, "last").shared
    shifted = shared._replace(statistics=dataclasses.replace(shared.statistics, mean=shared.statistics.mean + 1.0))
    assert abs(policy(view) - Policy(run.prepared, shifted, {})(view)) > 1e-3


def test_one_observation_or_many(pendulum):
    policy = load_policy(pendulum)
    view = np.asarray(policy.random_observations(jax.random.key(0), 6).agent_view)
    many = policy(view)
    assert many.shape == (6, 1)
    assert policy(view[0]).shape == (1,)
    np.testing.assert_allclose(policy(view[0]), many[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy(view.reshape(2, 3, 3)), many.reshape(2, 3, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(policy(Observation(view)), many)
    np.testing.assert_allclose(jax.jit(policy)(view), many, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(policy(view.astype(np.float64)), many)


def test_sampling_takes_a_key(pendulum):
    policy, view = load_policy(pendulum, greedy=False), np.zeros((3, 3), np.float32)
    with pytest.raises(ValueError, match="hand it a key, or load it with greedy=True"):
        policy(view)
    keys = jax.random.split(jax.random.key(0))
    first, second = (np.asarray(policy(view, key)) for key in keys)
    assert len(np.unique([first, second])) == 6
    np.testing.assert_array_equal(policy(view, keys[0]), first)
    assert load_policy(pendulum).greedy
    assert load_policy(pendulum)(view[0]) == load_policy(pendulum)(view[0], keys[1])


def test_observations_that_do_not_fit(pendulum):
    policy = load_policy(pendulum)
    for view in (np.zeros(4), np.zeros((5, 2)), np.zeros(())):
        with pytest.raises(ValueError, match=r"agent_view has the shape .* takes \[\.\.\., \*\(3,\)\]"):
            policy(view)
    with pytest.raises(ValueError, match="is made of complex128, and this policy takes float32"):
        policy(np.zeros(3, complex))


LOAD = """
    import pathlib, sys
    import jax, jax.export, numpy
    given = numpy.load(sys.argv[2])
    act = jax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes()).call
    for batch in (1, 7):
        found = numpy.asarray(act(given[f"view{batch}"], given["key_data"]))
        expected = given[f"action{batch}"]
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), (found.shape, found.dtype)
        numpy.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert not any(name.partition(".")[0] in ("stoix_like", "flax", "distrax", "gymnax") for name in sys.modules)
    print("the same")
"""


@pytest.mark.parametrize("greedy", [True, False])
def test_what_is_exported_needs_jax_alone(pendulum, tmp_path, greedy):
    policy, key = load_policy(pendulum, greedy=greedy), jax.random.key(3)
    views = {batch: policy.random_observations(jax.random.key(batch), batch).agent_view for batch in (1, 7)}
    actions = {batch: policy(view, key) for batch, view in views.items()}
    np.savez(
        tmp_path / "given.npz",
        key_data=jax.random.key_data(key),
        **{f"view{batch}": view for batch, view in views.items()},
        **{f"action{batch}": action for batch, action in actions.items()},
    )
    path = policy.export(tmp_path / "policy.stablehlo")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["given.npz", "policy.stablehlo"]
    command = [sys.executable, "-I", "-c", textwrap.dedent(LOAD), path, tmp_path / "given.npz"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("the same\n", 0), done.stderr


def test_an_export_that_acts_differently_is_not_left_behind(pendulum, tmp_path, monkeypatch):
    policy = load_policy(pendulum)
    act = policy._act_plainly
    monkeypatch.setattr(policy, "_act_plainly", lambda *inputs: act(*inputs) + 1e-3)
    with pytest.raises(RuntimeError, match="acts differently on 1 random observations"):
        policy.export(tmp_path / "policy.stablehlo")
    assert list(tmp_path.iterdir()) == []


def test_legal_actions(tmp_path, monkeypatch):
    monkeypatch.setitem(factory.SUITES, "masked", factory.Suite("masked", "jax", ""))
    policy = untrained("env=gymnax", "env.env_name=masked", "env.scenario.name=masked", "env.step_count=true")
    assert policy.inputs == ("agent_view", "action_mask", "step_count")
    observation = policy.random_observations(jax.random.key(0), 200)
    mask, action = np.asarray(observation.action_mask), np.asarray(policy(observation))
    some = mask.any(-1)
    assert (~mask).sum(-1)[some].sum() > 10
    assert mask[some, action[some]].all()
    with pytest.raises(ValueError, match="this policy also takes action_mask and step_count"):
        policy(observation.agent_view)
    with pytest.raises(ValueError, match="different leading axes"):
        policy(observation._replace(action_mask=mask[0]))
    exported = jax.export.deserialize(policy.export(tmp_path / "policy").read_bytes())
    key_data = jax.random.key_data(jax.random.key(0))
    np.testing.assert_array_equal(exported.call(*observation, key_data), action)
    assert policy(Observation(*(leaf[0] for leaf in observation))) == action[0]


def test_images_stay_what_they_are():
    policy = untrained("env=gymnax/breakout", "env.flatten_observation=true", "env.frame_stack=2")
    assert policy.observation_space.shape == (800,)
    assert policy.random_observations(jax.random.key(0), 2).agent_view.shape == (2, 800)
    assert policy(np.zeros((5, 800), np.float32)).shape == (5,)


def test_a_recurrent_system_is_refused():
    prepared = prepare(typed(compose_config([*SMALL[4:], *toys.overrides(rollout_length=4), "env=probe/value"])))
    with pytest.raises(ConfigError, match="system=toy carries a recurrent state"):
        Policy(prepared, {}, {})


def test_which_parameters(pendulum):
    run = saved.open_run(pendulum)
    assert load_policy(pendulum, "last").env_steps == 128
    records = [json.loads(line) for line in (pendulum / "metrics.jsonl").read_text().splitlines()]
    best = max(records, key=lambda record: record["eval/episode_return_mean"])
    assert load_policy(pendulum).env_steps == best["env_steps"]
    with pytest.raises(ConfigError, match="which=7 is not known"):
        load_policy(pendulum, "7")
    assert saved.load_shared(run, "128").env_steps == load_policy(pendulum, "128").env_steps
    with pytest.raises(ConfigError, match="holds no run"):
        load_policy(pendulum.parent)


def test_members_of_a_population(members):
    run = saved.open_run(members)
    loaded = saved.load_shared(run, "last")
    view = np.array([[0.1, 0.2, -0.1, 0.4], [-1.0, 0.5, 0.05, -2.0]], np.float32)
    key = jax.random.key(0)
    for member in range(3):
        one = jax.tree.map(lambda leaf, member=member: leaf[member], loaded.shared)
        alone = Policy(run.prepared, one, run.prepared.population.of(member), greedy=False)
        policy = load_policy(members, "last", member=member, greedy=False)
        np.testing.assert_array_equal(policy(view, key), alone(view, key))
        expected = jax.tree.leaves(one)
        np.testing.assert_array_equal(jax.tree.leaves(policy._shared)[0], expected[0])


@pytest.mark.parametrize("which", ["best", "last"])
def test_the_best_member(members, which):
    records = [json.loads(line) for line in (members / "metrics.jsonl").read_text().splitlines()]
    scores = np.array([record["eval/episode_return_mean"] for record in records])
    steps = [record["env_steps"] for record in records]
    if which == "best":
        member = int(scores.max(0).argmax())
        taken = steps[int(scores[:, member].argmax())]
    else:
        member, taken = int(scores[-1].argmax()), steps[-1]
    policy, same = load_policy(members, which), load_policy(members, which, member=member)
    assert policy.env_steps == same.env_steps == taken
    jax.tree.map(np.testing.assert_array_equal, policy._shared, same._shared)


@pytest.mark.parametrize("member", [3, -1, "all", "first"])
def test_members_that_are_not_there(members, member):
    with pytest.raises(ConfigError, match=f"member={member} is not there: use best, or 0 to 2"):
        load_policy(members, member=member)


def test_the_best_member_needs_evaluations(members, tmp_path):
    for entry in members.iterdir():
        if entry.name != "metrics.jsonl":
            (tmp_path / entry.name).symlink_to(entry)
    with pytest.raises(ConfigError, match="does not tell which member is best"):
        load_policy(tmp_path)
    assert load_policy(tmp_path, member=1).env_steps >= 0
