import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from stoix_like.envs import make, make_eval
from stoix_like.envs.factory import make_drawn
from stoix_like.envs.scenes.base import RecordedEpisode
from support.conformance import check_carry, check_games, env_config
from support.lazily import Lazy
from support.recordings import still

pytestmark = pytest.mark.slow

jaxmarl = Lazy("stoix_like.envs.suites.jaxmarl")

MPE = ["spread_v3", "tag_v3", "world_comm_v3", "crypto_v3", "speaker_listener_v4", "push_v3", "adversary_v3"]
MPE += ["reference_v3", "v3"]
# Names, arguments that make programs small, and the steps of an episode that nothing but the limit ends.
LIMITED = [
    *((f"MPE_simple_{name}", {"max_steps": 4}, 5) for name in MPE),
    *((name, {"max_steps": 5}, 5) for name in ("overcooked", "overcooked_v2")),
    *((name, {"num_inner_steps": 5}, 5) for name in ("coin_game", "storm", "storm_2p", "storm_np")),
    ("HeuristicEnemySMAX", {"max_steps": 3}, 4),
    ("jaxnav", {"max_steps": 3, "lidar_num_beams": 8}, 3),
]


rollout = partial(check_games, "jaxmarl")


@pytest.mark.parametrize(("name", "kwargs", "length"), LIMITED)
def test_a_limit_truncates_after_as_many_steps_as_in_the_bare_suite(name, kwargs, length):
    env, _, steps = rollout(name, 2 * length, kwargs=kwargs)
    assert env.truncates_after == length
    assert not steps.terminated.any()
    ends = np.flatnonzero(steps.truncated.any((1, 2)))
    np.testing.assert_array_equal(ends, [length - 1, 2 * length - 1])
    check_carry(make_eval(env_config("jaxmarl", name, kwargs=kwargs)))


def test_every_scenario_is_tested():
    tested = {name for name, _, _ in LIMITED} | {"hanabi", "switch_riddle"}
    assert set(jaxmarl.scenarios()) == tested


@pytest.mark.parametrize("name", ["MPE_simple_spread_v3", "MPE_simple_tag_v3", "HeuristicEnemySMAX"])
def test_games_equal_those_of_the_bare_suite(name):
    """The rows of a game are its agents in order: rewards, observations and flags are at the step of their action."""
    env = make_eval(env_config("jaxmarl", name))
    num_steps, agents = 28, env.num_agents
    keys = jax.random.split(jax.random.key(3), agents)
    actions = jax.random.randint(jax.random.key(4), (num_steps, agents), 0, 5)

    @jax.jit
    def ours():
        state, first = env.reset(keys)
        return first, jax.lax.scan(lambda state, action: env.step(keys, state, action), state, actions)[1]

    first, steps = ours()
    with jax.numpy_rank_promotion("allow"):
        bare = getattr(
            jaxmarl.suite, {"H": "HeuristicEnemySMAX"}.get(name[0]) or jaxmarl._SCENARIOS[name].classes[0].__name__
        )
        bare = bare(scenario=jaxmarl.MAP_NAME_TO_SCENARIO["3m"]) if name[0] == "H" else bare()
        observed, state = bare.reset(keys[0])
        for number, agent in enumerate(bare.agents):
            found = first.observation.agent_view[number]
            np.testing.assert_allclose(found[: len(observed[agent])], observed[agent], rtol=1e-5)
        for t in range(num_steps):
            action = {agent: actions[t, number] for number, agent in enumerate(bare.agents)}
            observed, state, reward, done, _ = bare.step_env(keys[0], state, action)
            for number, agent in enumerate(bare.agents):
                found = steps.next_observation.agent_view[t, number]
                np.testing.assert_allclose(found[: len(observed[agent])], observed[agent], rtol=1e-3, atol=1e-4)
                assert not found[len(observed[agent]) :].any()
                np.testing.assert_allclose(steps.reward[t, number], reward[agent], rtol=1e-3, atol=1e-4)
            assert bool((steps.terminated | steps.truncated)[t, 0]) == bool(done["__all__"])
            if done["__all__"]:
                break
    # Two steps after the last one of 25 that its name promises, a game of MPE has not gone on.
    assert name[0] == "H" or t == 25


def test_a_battle_terminates_where_a_team_is_dead_and_the_dead_have_one_legal_action():
    env, _, steps = rollout("HeuristicEnemySMAX", 60)
    ended = steps.terminated[..., 0]
    assert ended.any()
    assert not steps.truncated.any()
    assert (steps.episode.episode_length[..., 0][ended] < 100).all()
    # The enemy shoots, and random allies do not survive.
    health = steps.next_observation.agent_view[..., -10]
    assert (health[ended] == 0).all() or steps.episode.measures["win_rate"][..., 0][ended].any()
    alive = steps.next_observation.agent_view[..., -10] > 0
    mask = steps.next_observation.action_mask
    assert (mask[~alive].sum(-1) == 1).all()
    assert (mask[alive].sum(-1) >= 5).all()
    assert (~alive & alive.any(-1, keepdims=True)).any()
    assert env.team_reward


def test_winning_is_measured():
    kwargs = {"enemy_shoots": False, "map_name": "3m"}
    env = make_eval(env_config("jaxmarl", "HeuristicEnemySMAX", kwargs=kwargs))
    keys = jax.random.split(jax.random.key(0), 3)

    def step(carry, _):
        state, timestep = carry
        mask = timestep.observation.action_mask
        # Shoot if anyone is in reach; otherwise walk to the right.
        shoot = mask[:, 5:].any(-1)
        action = jnp.where(shoot, 5 + jnp.argmax(mask[:, 5:], -1), 1)
        state, timestep = env.step(keys, state, action)
        return (state, timestep), timestep

    steps = jax.jit(lambda: jax.lax.scan(step, env.reset(keys), length=60)[1])()
    ended = np.asarray(steps.terminated[:, 0])
    assert ended.any()
    assert steps.episode.measures["win_rate"][np.argmax(ended)].all()
    assert not steps.episode.measures["win_rate"][: np.argmax(ended)].any()


def test_an_answer_to_the_riddle_terminates_also_at_the_limit():
    env = make_eval(env_config("jaxmarl", "switch_riddle"))
    keys = jax.random.split(jax.random.key(0), 3)
    assert env.truncates_after == 6

    def ends(tell_at):
        def step(state, t):
            state, timestep = env.step(keys, state, jnp.where(t == tell_at, 2, 0) * jnp.ones(3, jnp.int32))
            return state, timestep

        return jax.lax.scan(step, env.reset(keys)[0], jnp.arange(6))[1]

    steps = jax.tree.map(np.asarray, jax.jit(jax.vmap(ends))(jnp.asarray([2, 5, 9])))
    np.testing.assert_array_equal(steps.terminated[:, :, 0].argmax(1), [2, 5, 0])
    np.testing.assert_array_equal(steps.terminated[:, -1, 0], [False, True, False])
    np.testing.assert_array_equal(steps.truncated[:, -1, 0], [True, False, True])
    assert (np.abs(steps.reward[[0, 1], [2, 5]]) == 1).all()


def test_players_of_hanabi_wait_their_turn():
    kwargs = {"num_colors": 2, "hand_size": 2, "max_info_tokens": 3, "max_life_tokens": 1}
    _, _, steps = rollout("hanabi", 20, kwargs=kwargs)
    mask = steps.next_observation.action_mask
    waits = mask[..., -1]
    assert (waits.sum(-1) == 1).all()
    assert (mask[waits].sum(-1) == 1).all()
    assert steps.terminated.any()
    assert not steps.truncated.any()
    assert steps.reward.any()


def drawn(name, *changes):
    env = make_drawn(env_config("jaxmarl", name))
    state = jax.device_get(jax.jit(env.unwrapped.env.reset)(jax.random.key(0))[0])
    states = [state, *(change(state) for change in changes)]
    axes = Figure().add_subplot()
    recording = RecordedEpisode(
        np.arange(len(states)), jax.tree.map(lambda *each: np.stack(each), *states), *[None] * 3
    )
    return states, axes, env.scene().draw(axes, recording)


def test_particles_are_drawn_where_they_are_with_agents_on_top():
    states, axes, update = drawn("MPE_simple_spread_v3", lambda state: state.replace(p_pos=state.p_pos + 1))
    shapes = axes.patches
    assert [round(shape.radius, 3) for shape in shapes] == [0.15] * 3 + [0.05] * 3
    assert min(shape.zorder for shape in shapes[:3]) > max(shape.zorder for shape in shapes[3:])
    for entry, state in enumerate(states):
        update(entry)
        np.testing.assert_allclose([shape.center for shape in shapes], state.p_pos)


@pytest.mark.parametrize("name", MPE)
def test_all_particles_are_drawn_in_visible_colours(name):
    """Landmarks of simple_crypto have transparent colours, and those of simple_push six numbers for two of them."""
    env, rules = jaxmarl._SCENARIOS[f"MPE_simple_{name}"].build()
    axes = Figure().add_subplot()
    rules.scene().draw(axes, still(SimpleNamespace(p_pos=np.zeros((1, env.num_entities, 2)))))(0)
    assert len(axes.patches) == env.num_entities
    assert {shape.get_facecolor()[3] for shape in axes.patches} == {1.0}


def test_units_fade_with_their_health():
    """A marine has 45; ally 0 has a third of it in the second picture, and enemy 2 none."""

    def hurt(state):
        units = state.state
        return state.replace(state=units.replace(unit_health=np.array([15, 45, 45, 45, 45, 0], np.float32)))

    states, axes, update = drawn("HeuristicEnemySMAX", hurt)
    update(1)
    np.testing.assert_allclose([shape.get_alpha() for shape in axes.patches], [1 / 3, 1, 1, 1, 1, 0], rtol=1e-6)
    np.testing.assert_allclose([shape.center for shape in axes.patches], states[0].state.unit_positions)
    colours = [shape.get_facecolor()[:3] for shape in axes.patches]
    assert colours == [colours[0]] * 3 + [colours[3]] * 3
    assert colours[0] != colours[3]


def test_a_kitchen_is_drawn_by_pictures_of_the_suite():
    """The first agent is red and the second one blue; a tile has 32 pixels, and walls surround 4 x 5 of them."""
    (state,), axes, update = drawn("overcooked")
    update(0)
    picture = np.asarray(axes.images[0].get_array())
    assert picture.shape == ((4 + 2) * 32, (5 + 2) * 32, 3)
    colours = [picture[y * 32 + 16, x * 32 + 16].tolist() for x, y in state.state.agent_pos + 1]
    assert colours == [[255, 0, 0], [0, 0, 255]]


@pytest.mark.parametrize(("name", "size"), [("HeuristicEnemySMAX", 72), ("jaxnav", 303)])
def test_the_world_of_a_suite_is_its_own(name, size):
    env = make(env_config("jaxmarl", name, kwargs={"world": True}))
    assert env.observation_space.spaces["world"].shape == (size,)


def test_agents_outside_the_room_of_the_riddle_have_one_legal_action():
    _, _, steps = rollout("switch_riddle", 4)
    inside = steps.observation.agent_view[..., 0] == 1
    np.testing.assert_array_equal(steps.observation.action_mask.sum(axis=-1), np.where(inside, 3, 1))
    assert steps.observation.action_mask[..., 0].all()


def test_robots_that_have_collided_have_one_legal_action():
    kwargs = {"act_type": "Discrete", "min_v": 0.0, "num_agents": 3, "lidar_num_beams": 8}
    _, _, steps = rollout("jaxnav", 60, kwargs=kwargs)
    legal = steps.observation.action_mask.sum(axis=-1)
    assert set(np.unique(legal)) == {1, 15}
    goes_on = ~(steps.terminated | steps.truncated)[1:]
    assert (legal[1:][goes_on & (legal[:-1] == 1)] == 1).all()


def test_matrix_games_pay_at_their_last_step():
    """JaxMARL starts the next game in the same step and pays nothing for it."""
    kwargs = {"num_inner_steps": 2, "shared_rewards": True}
    env, _, steps = rollout("coin_game", 200, kwargs=kwargs)
    last = steps.truncated[..., 0]
    assert steps.reward[..., 0][last].any()
    assert env.team_reward


def test_shaped_rewards_come_on_top_of_deliveries():
    kwargs = {"max_steps": 200, "random_reset": True}
    plain = rollout("overcooked", 200, kwargs=kwargs)
    shaped = rollout("overcooked", 200, kwargs={**kwargs, "shaped_rewards": True})
    assert (plain[0].team_reward, shaped[0].team_reward) == (True, False)
    np.testing.assert_array_equal(plain[1], shaped[1])
    np.testing.assert_array_equal(plain[2].episode.measures["delivered"], plain[2].episode.episode_return)
    np.testing.assert_array_equal(plain[2].episode.measures["delivered"], shaped[2].episode.measures["delivered"])
    extra = shaped[2].reward - plain[2].reward
    assert set(np.unique(extra)) <= {0.0, 3.0, 5.0}
    assert (extra[..., 0] != extra[..., 1]).any()


def test_importing_is_quiet_and_leaves_brax_alone():
    code = "import sys, stoix_like.envs.suites.jaxmarl; print({'brax', 'matplotlib.pyplot'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
