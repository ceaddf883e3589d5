import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like import evaluate, train
from stoix_like.base_types import Observation
from stoix_like.envs import EnvConfig, ScenarioConfig, make, make_eval
from stoix_like.envs.auto_reset import AutoResetState
from stoix_like.envs.environment import Environment, physics_of, restart, transition
from stoix_like.envs.factory import make_model
from stoix_like.envs.randomization import AUTO_RESETS, scaling
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.envs.wrappers import Wrapper
from stoix_like.errors import ConfigError
from stoix_like.loggers import MultiLogger
from stoix_like.run.training_loop import TrainingLoop
from support.compiled import run
from support.randomized import Model
from support.resumed import assert_resumed_equals_whole
from support.set_ups import setup_of

N, T = 3, 8


def config(**changes):
    chosen = {"randomization": "support.randomized.masses", "auto_reset": "fresh", "pool_size": 16, **changes}
    return EnvConfig("own", ScenarioConfig("sliding"), _target_="support.randomized.sliding", **chosen)


@pytest.fixture(scope="module")
def two_rollouts():
    def play(**changes):
        env = make(config(**changes))

        @jax.jit
        def run(key):
            reset_key, *keys = jax.random.split(key, 3)
            state, first = env.reset(jax.random.split(reset_key, N))

            def step(state, keys):
                state, timestep = env.step(keys, state, jnp.zeros((N, 1)))
                return state, (timestep.observation.agent_view, timestep.terminated)

            def roll(state, key):
                state = env.start_rollout(key, state)
                return jax.lax.scan(step, state, jax.random.split(key, (T, N)))

            _, (views, ends) = jax.lax.scan(roll, state, jnp.stack(keys))
            return first.observation.agent_view, views, ends

        return jax.tree.map(np.asarray, run(jax.random.key(0)))

    return play


def distinct(masses):
    return len(np.unique(masses))


@pytest.mark.parametrize("mode", AUTO_RESETS["reset"])
def test_every_episode_has_parameters_of_its_own(two_rollouts, mode):
    first, views, ends = two_rollouts(auto_reset=mode)
    at_start, now = views[..., 0], views[..., 1]
    # Each episode continues with the mass that it starts with.
    np.testing.assert_array_equal(at_start, now)
    assert distinct(first[:, 1]) == N
    # Episodes end after three steps: 5 more start in each environment; of `optimistic`, all three of them are one.
    assert ends.sum() == 5 * N
    assert distinct(at_start[ends]) == (5 if mode == "optimistic" else 5 * N)
    assert np.all((now >= 1.0) & (now < 2.0))


@pytest.mark.parametrize("changes", [{"auto_reset": "cached"}, {"auto_reset": "fresh", "random_start_steps": 1}])
def test_an_environment_keeps_its_parameters_for_the_run(two_rollouts, changes):
    first, views, ends = two_rollouts(randomize_every="run", **changes)
    masses = np.broadcast_to(first[:, 1], views.shape[:-1])
    np.testing.assert_array_equal(views[..., 1], masses)
    np.testing.assert_array_equal(views[..., 0], masses)
    assert distinct(masses) == N
    assert ends.any()


def test_every_rollout_has_parameters_of_its_own(two_rollouts):
    _, views, ends = two_rollouts(randomize_every="rollout")
    masses = views[:, 0, :, 1]
    assert distinct(masses) == 2 * N
    np.testing.assert_array_equal(views[..., 1], np.broadcast_to(masses[:, None], ends.shape))
    np.testing.assert_array_equal(views[..., 0][ends], views[..., 1][ends])


def test_only_leaves_with_an_axis_are_stored_and_start_states_stay_the_same():
    keys = jax.random.split(jax.random.key(1), N)
    env, plain = make(config()), make(config(randomization=None))
    state, first = env.reset(keys)
    assert isinstance(state, AutoResetState)
    (mass,) = state.env_state.env_state.parameters
    assert mass.shape == (N,)
    np.testing.assert_array_equal(first.observation.agent_view[:, 2], plain.reset(keys)[1].observation.agent_view[:, 2])
    (drawn,) = make(config(randomization="support.randomized.friction")).reset(keys)[0].env_state.env_state.parameters
    assert drawn.shape == (N, 2)


def test_ranges_scale_each_row_of_a_field():
    model = Model(jnp.asarray(2.0), jnp.asarray([[1.0, 10.0], [3.0, 0.0]]), jnp.ones(5), jnp.zeros(0))
    draw = scaling(model, {"friction": (0.5, 1.5), "mass": (3.0, 3.0)})
    drawn, axes = draw(model, jax.random.key_data(jax.random.split(jax.random.key(0), 1000)))
    assert axes == Model(0, 0, None, None)
    nominal, drawn = jax.tree.map(np.asarray, (model, drawn))
    np.testing.assert_array_equal(drawn.mass, 6.0)
    factors = drawn.friction[:, :, 0] / nominal.friction[:, 0]
    # A row has one factor, and zeros stay.
    np.testing.assert_allclose(drawn.friction, factors[..., None] * nominal.friction, rtol=1e-6)
    # Five standard errors of a uniform mean, 1 / sqrt(12 * 1000), are 0.046; those of a correlation, 0.16.
    np.testing.assert_allclose(factors.mean(0), 1.0, atol=0.046)
    assert factors.min() >= 0.5
    assert factors.max() < 1.5
    assert abs(np.corrcoef(factors.T)[0, 1]) < 0.16


def test_an_environment_of_a_user_has_a_model_to_vary():
    _, first = make(config(randomization={"mass": (1.0, 2.0)}), Own).reset(jax.random.split(jax.random.key(1), N))
    assert distinct(first.observation.agent_view) == N


def test_evaluation_randomises_on_request_alone():
    keys = jax.random.split(jax.random.key(1), N)
    for randomized_too, number in ((False, 1), (True, N)):
        env = make_eval(config(randomize_evaluation=randomized_too, randomize_every="run", auto_reset="cached"))
        assert distinct(env.reset(keys)[1].observation.agent_view[:, 1]) == number


def test_a_search_plans_with_the_nominal_model_where_evaluations_play_it():
    keys, action = jax.random.split(jax.random.key(1), N), jnp.ones((N, 1))
    model, env = make_model(make(config())), make_eval(config())
    state, _ = env.reset(keys)
    planned, played = run(model.step, keys, model.state_of(state), action), run(env.step, keys, state, action)
    np.testing.assert_array_equal(planned[1].observation.agent_view, played[1].observation.agent_view)
    assert jax.tree.structure(planned[0]) == jax.tree.structure(model.state_of(state))


class Own(Environment):
    action_space, observation_space = Discrete(2), Box(0.0, 9.0, (1,))

    def __init__(self):
        self.model = {"mass": jnp.ones(1)}
        self.physics = physics_of(self, "model")

    def reset(self, key):
        return (), restart(Observation(self.model["mass"]))

    def step(self, key, state, action):
        return (), transition(Observation(self.model["mass"]), 0.0, False, False)


class OwnStarts(Wrapper):
    def reset(self, keys):
        return super().reset(keys)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"randomization": "registered"},
            "registered: no randomisation is registered for own/sliding: use ranges of fields, .* or the import",
        ),
        ({"randomization": "support.randomized.mases"}, "env.randomization=support.randomized.mases cannot be"),
        ({"randomization": "support.randomized.model_alone"}, r"model_alone returns a Model: .* -> \(model, axes\)"),
        ({"randomization": "support.randomized.nothing"}, "support.randomized.nothing varies nothing: set the axes"),
        ({"randomization": "support.randomized.of_another_shape"}, r"shape \(3,\) with axis None for .* has \(\)"),
        ({"randomization": {"mas": (1.0, 2.0)}}, "env.randomization.mas is not a numeric field .*mean 'mass'?"),
        ({"randomization": {"empty": (1.0, 2.0)}}, "env.randomization.empty is not a numeric field"),
        ({"randomization": {"mass": (2.0, 1.0)}}, r"env.randomization.mass=\[2, 1\] is empty: write the smaller"),
        ({"auto_reset": "cached"}, "randomize_every=reset does not fit .*use env.auto_reset=fresh or pool or opt"),
        ({"auto_reset": "pool", "randomize_every": "run"}, "use env.auto_reset=fresh or cached, or .*every=reset"),
        ({"auto_reset": "cached", "randomize_every": "rollout"}, "use env.auto_reset=fresh, or .*every=run"),
        ({"randomization": None, "randomize_every": "run"}, "env.randomize_every=run has no effect"),
        ({"randomization": None, "randomize_evaluation": True}, "env.randomize_evaluation=True has no effect"),
        (
            {"randomize_every": "run", "wrappers": ({"_target_": f"{__name__}.OwnStarts"},)},
            "without calling OwnStarts.reset: override on_start",
        ),
    ],
)
def test_what_cannot_be_randomised_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make(config(**changes))


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize(("every", "mode"), [("reset", "pool"), ("rollout", "fresh"), ("run", "cached")])
def test_a_resumed_run_is_bit_identical(tmp_path, every, mode):
    budget = ["arch.total_num_envs=4", "arch.total_timesteps=256", "arch.num_evaluation=4", "arch.num_eval_episodes=2"]
    env = ["env=own", "env._target_=support.randomized.sliding", "env.randomization=support.randomized.masses"]
    env += [f"env.randomize_every={every}", f"env.auto_reset={mode}", "env.randomize_evaluation=true"]
    system = ["system=ppo/ff_ppo", "network=mlp_continuous", "system.rollout_length=8", "arch.compile_cache=false"]

    def training_loop(writer):
        setup = setup_of(*system, *env, *budget)
        return TrainingLoop(setup, MultiLogger([]), writer)

    whole = assert_resumed_equals_whole(training_loop, tmp_path)
    recorded = whole.state.shards.rollout_state.env_state.env_state
    assert distinct(recorded.env_state.parameters[0]) > 1


@pytest.mark.slow
def test_a_trained_run_is_evaluated_with_and_without(tmp_path):
    words = ["arch.total_num_envs=4", "arch.total_timesteps=64", "arch.num_evaluation=1", "arch.num_eval_episodes=2"]
    words += ["env._target_=support.randomized.sliding", "network=mlp_continuous", "system.rollout_length=8"]
    friction = "env.randomization=support.randomized.friction"
    run_dir = train("ppo/ff_ppo", [*words, "logger=silent", friction], run_dir=tmp_path).run_dir
    # An episode earns the sum of two coefficients in each of three steps, and both are 1 in the model as it is.
    assert evaluate(run_dir, 3)["episode_returns"] == [6.0, 6.0, 6.0]
    record = evaluate(run_dir, 3, randomize=True)
    assert record["randomized"]
    assert distinct(record["episode_returns"]) == 3
    plain = train("ppo/ff_ppo", [*words, "logger=silent"], run_dir=tmp_path / "plain").run_dir
    with pytest.raises(ConfigError, match="env.randomize_evaluation=True has no effect"):
        evaluate(plain, 3, randomize=True)
