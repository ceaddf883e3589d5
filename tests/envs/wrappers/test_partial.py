import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import Vectorize, auto_reset, make, wrappers
from stoix_like.envs.legends import Feature, Legend, find_legend
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from support import nested
from support.compiled import run
from support.countable_envs import KEY, ZERO, Counter, play, ramp
from support.masked import MaskedPair
from support.set_ups import config_of


def views(timesteps):
    return [t.observation.agent_view.tolist() for t in timesteps]


def build(*overrides):
    return make(config_of(*overrides).env)


class Named(Counter):
    def legend(self):
        return Legend((Feature("clock", (0,)), Feature("angular_velocity", (1,))))


def test_masked_entries_are_left_out_by_index_and_by_name():
    assert views(play(wrappers.mask_entries(Vectorize(Counter()), ("0",)), [4])) == [[0], [4]]
    legend = find_legend("CartPole-v1")
    assert [legend.places_of(name) for name in ("velocities", "pole_angle")] == [(1, 3), (2,)]
    # A selection takes the legend along.
    env = wrappers.mask_entries(wrappers.SelectEntries(Vectorize(Named()), (1, 0)), ("velocities",))
    assert views(play(env, [4, 4])) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("speed", r"env.observation_mask=\[speed\]: .* unknown: use .*"),
        ("2", r"must leave some of the entries 0 to 1"),
        ("0,1", r"must leave some of the entries 0 to 1"),
    ],
)
def test_a_mask_of_unknown_or_of_all_entries_is_refused(mask, message):
    with pytest.raises(ConfigError, match=message):
        wrappers.mask_entries(Vectorize(Counter()), mask.split(","))
    with pytest.raises(ConfigError, match="needs observations that are vectors"):
        wrappers.mask_entries(ramp(), ("0",))


def test_simulations_know_their_velocities_by_the_shape_of_observations():
    def velocities(name, size):
        return find_legend(name, Box(-1.0, 1.0, (size,))).places_of("velocities")

    assert velocities("HalfCheetah-v5", 17) == velocities("halfcheetah", 17) == tuple(range(8, 17))
    assert velocities("inverted_double_pendulum", 8) == (5, 6, 7)
    assert velocities("halfcheetah", 20) == velocities("humanoid", 244) == ()


def test_observations_are_delayed_and_the_first_one_fills_the_gap():
    """The true successor of the last step is as late; the next episode starts anew. Rewards and masks are in time."""
    env = wrappers.DelayObservation(Vectorize(Counter(masked=True)), 2)
    timesteps = play(env, [5, 6, 7, 8])
    assert views(timesteps) == [[0, 0], [0, 0], [0, 0], [1, 5], [2, 6]]
    assert [int(t.reward) for t in timesteps[1:]] == [5, 6, 7, 8]
    assert [int(t.observation.action_mask.sum()) for t in timesteps] == [9, 8, 7, 6, 5]
    # Episodes end after four steps.
    timesteps = play(auto_reset.FreshReset(wrappers.DelayObservation(Vectorize(Counter(4)), 2)), [5, 6, 7, 8, 9])
    assert timesteps[4].next_observation.agent_view.tolist() == [2, 6]
    assert views(timesteps)[4:] == [[0, 0], [0, 0]]


@pytest.mark.slow
def test_flicker_hides_the_whole_view_of_an_environment_at_times():
    env = wrappers.FlickerObservation(nested.make("discrete", {}, {}), 0.3)
    state, first = env.reset(jax.random.split(KEY, 1000))
    _, after = env.step(jax.random.split(jax.random.key(1), 1000), state, jnp.zeros(1000, jnp.int32))
    for timestep in (first, after):
        # Features are -1 or 1, and zero only if hidden; the image is then dark.
        view = timestep.observation.agent_view
        hidden = np.asarray(view["inner"]["features"] == 0).all(-1)
        assert hidden.mean() == pytest.approx(0.3, abs=0.05)
        assert view["pixels"][hidden].sum() == 0
        assert view["pixels"].dtype == jnp.uint8
        jax.tree.map(np.testing.assert_array_equal, view, timestep.next_observation.agent_view)
    assert (
        first.observation.agent_view["inner"]["features"] != after.observation.agent_view["inner"]["features"]
    ).any()


def test_noise_has_the_deviation_of_each_entry():
    env = wrappers.NoisyObservation(Vectorize(Counter()), (0.0, 0.5))
    assert (env.observation_space.low.tolist(), env.observation_space.high.tolist()) == ([-100, -np.inf], [100, np.inf])
    view = run(env.reset, jax.random.split(KEY, 4000))[1].observation.agent_view
    assert not view[:, 0].any()
    assert float(view[:, 1].std()) == pytest.approx(0.5, abs=0.02)
    assert float(view[:, 1].mean()) == pytest.approx(0.0, abs=0.03)
    with pytest.raises(ConfigError, match=r"observation_noise=\[1.0\] has 1 entries, but .* \[2\]: use one number"):
        wrappers.NoisyObservation(Vectorize(Counter()), (1.0,))
    with pytest.raises(ConfigError, match=r"observation_noise=0.1 needs observations that are arrays of floats"):
        wrappers.NoisyObservation(nested.make("discrete", {}, {}), 0.1)


def test_noise_of_an_end_and_of_the_next_start_is_independent():
    """Environments that reset themselves, like others, draw two numbers where an episode ends."""
    timesteps = play(auto_reset.HostReset(wrappers.NoisyObservation(Vectorize(Counter(1)), 1.0)), [0])
    end, start = timesteps[1].next_observation.agent_view, timesteps[1].observation.agent_view
    assert float(end[1]) != pytest.approx(float(start[1]))


@pytest.mark.slow
def test_the_order_of_wrappers_and_the_randomness_of_others():
    """Noise is clipped and stacked with the rest; the environment draws the same start states with and without it."""
    plain = build("env=gymnax/pendulum")
    env = build(
        *("env=gymnax/pendulum", "env.observation_mask=[0]", "env.observation_noise=[0.0,0.3]", "env.frame_stack=2"),
        *("env.observation_delay=1", "env.observation_flicker=0.1", "env.observation_clip=2.0"),
    )
    assert env.observation_space.shape == (4,)
    assert env.observation_space.high.tolist() == [1.0, 2.0] * 2
    keys = jax.random.split(KEY, 64)
    wanted, found = (e.reset(keys)[1].observation.agent_view for e in (plain, env))
    seen = np.asarray(found[:, 0] != 0)
    assert 0.7 < seen.mean() < 1.0
    np.testing.assert_array_equal(found[seen, 0], wanted[seen, 1])


def test_last_actions_and_rewards_are_appended_to_vectors():
    """One-hot actions of ten; zeros at the start of each episode; the true successor holds what led to it."""
    env = wrappers.ObserveLastStep(Vectorize(Counter(2)), True, True)
    assert env.observation_space.shape == (13,)
    env = auto_reset.FreshReset(wrappers.ScaleReward(env, 0.5))
    timesteps = play(env, [3, 7])
    np.testing.assert_array_equal(timesteps[0].observation.agent_view, np.zeros(13))
    np.testing.assert_array_equal(timesteps[1].observation.agent_view, [1, 3, *np.eye(10)[3], 3])
    np.testing.assert_array_equal(timesteps[2].next_observation.agent_view, [2, 7, *np.eye(10)[7], 7])
    np.testing.assert_array_equal(timesteps[2].observation.agent_view, np.zeros(13))
    assert float(timesteps[2].reward) == 3.5


def test_last_actions_and_rewards_join_other_views_in_a_dictionary():
    env = wrappers.ObserveLastStep(ramp(), True, False)
    assert {name: space.shape for name, space in env.observation_space.spaces.items()} == {
        "observation": (2, 2),
        "last_action": (2,),
    }
    timesteps = play(env, [ZERO + 0.5])
    assert timesteps[0].observation.agent_view["last_action"].tolist() == [0.0, 0.0]
    assert timesteps[1].observation.agent_view["last_action"].tolist() == [0.5, 0.5]
    assert timesteps[1].observation.agent_view["observation"].tolist() == [[1, 1], [1, 1]]
    env = wrappers.ObserveLastStep(nested.make("discrete", {}, {}), False, True)
    assert sorted(env.observation_space.spaces) == ["inner", "last_reward", "pixels"]
    with pytest.raises(ConfigError, match="env.observe_last_reward=True adds an entry that the observation has"):
        wrappers.ObserveLastStep(env, False, True)


def test_last_actions_of_several_choices_are_one_hot_each():
    timesteps = play(wrappers.ObserveLastStep(Vectorize(MaskedPair()), True, False), [[1, 2]])
    assert timesteps[0].observation.agent_view.tolist() == [0.0] * 7
    assert timesteps[1].observation.agent_view[2:].tolist() == [0, 1, 0, 0, 1]
