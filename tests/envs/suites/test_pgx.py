import jax
import jax.numpy as jnp
import numpy as np
import pgx
import pytest

from stoix_like.envs import EnvConfig, ScenarioConfig, make, make_eval
from stoix_like.envs.suites.pgx import _legal_actions, scenarios
from stoix_like.errors import ConfigError
from support import custom_envs
from support.conformance import check, env_config, rollout

pytestmark = pytest.mark.slow


def first_legal(key, game):
    return jnp.argmax(game.legal_action_mask)


@pytest.mark.parametrize("name", scenarios())
def test_protocol(name):
    # Tic-tac-toe is the cheapest.
    _, actions, steps = check("pgx", name, **({} if name == "tic_tac_toe" else {"num_steps": 60}))
    # Illegal moves lose at once; random legal ones never do on the first move.
    legal = np.take_along_axis(steps.observation.action_mask[:-1], actions[1:, :, None], -1)
    assert legal.all()


@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four", "backgammon", "leduc_holdem"])
def test_games_equal_those_of_the_bare_suite(name):
    """The agent plays its last legal action, the opponent its first; the dice come from the keys of the adapter."""
    env, bare = make_eval(env_config("pgx", name, kwargs={"opponent": first_legal})), pgx.make(name)
    bare_step, env_step, starters, several_moves = jax.jit(bare.step), jax.jit(env.step), set(), False
    for seed in range(8, 14):
        keys = jax.random.split(jax.random.key(seed), 1)
        state, timestep = env.reset(keys)
        game, reward, num_moves = play_opponent(bare_step, first := bare.init(keys[0]), keys[0])
        starters.add(int(first.current_player))
        for t in range(12):
            observation = timestep.next_observation
            np.testing.assert_array_equal(observation.agent_view[0], bare._observe(game, 0))
            np.testing.assert_array_equal(observation.action_mask[0], game.legal_action_mask)
            np.testing.assert_allclose(timestep.reward[0], reward)
            assert timestep.terminated[0] == game.terminated
            assert not timestep.truncated[0]
            if game.terminated:
                break
            assert game.current_player == 0
            action = int(np.flatnonzero(game.legal_action_mask)[-1])
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), t), 1)
            state, timestep = env_step(keys, state, jnp.asarray([action]))
            game = bare_step(game, action, jax.random.fold_in(keys[0], 0xD1CE))
            reward = float(game.rewards[0])
            game, more, num_moves = play_opponent(bare_step, game, keys[0])
            several_moves |= num_moves > 1
            reward += more
    assert starters == {0, 1}
    assert several_moves or name != "backgammon"


def play_opponent(step, game, key):
    reward, num_moves = 0.0, 0
    while game.current_player != 0 and not game.terminated:
        key = jax.random.fold_in(key, 0x0FF0)
        game = step(game, first_legal(None, game), jax.random.fold_in(key, 0xD1CE))
        reward, num_moves = reward + float(game.rewards[0]), num_moves + 1
    return game, reward, num_moves


IN_TURN = ["animal_shogi", "chess", "connect_four", "gardner_chess", "go_9x9", "hex", "kuhn_poker", "othello"]


@pytest.mark.parametrize("name", ["tic_tac_toe", *IN_TURN])
@jax.numpy_rank_promotion("allow")
def test_self_play_moves_for_the_player_to_move(name):
    """Random games equal those of pgx, seen from the player to move; their two players are always different ones."""
    env, bare = make(env_config("pgx", name, kwargs={"opponent": "self"})), pgx.make(name)
    bare_step, env_step, reset = jax.jit(bare.step), jax.jit(env.step), jax.jit(env.reset)
    rng, starters = np.random.default_rng(0), set()
    for seed in range(6):
        keys = jax.random.split(jax.random.key(seed), 1)
        (state, timestep), game = reset(keys), bare.init(keys[0])
        first = int(game.current_player)
        starters.add(first)
        for _ in range(60):
            observation, mover = timestep.next_observation, int(game.current_player)
            np.testing.assert_allclose(observation.agent_view[0], bare._observe(game, mover), atol=1e-6)
            np.testing.assert_array_equal(observation.action_mask[0], game.legal_action_mask)
            action = rng.choice(np.flatnonzero(game.legal_action_mask))
            state, timestep = env_step(keys, state, jnp.asarray([action]))
            game = bare_step(game, action)
            np.testing.assert_allclose(timestep.reward[0], game.rewards[mover])
            np.testing.assert_allclose(game.rewards.sum(), 0.0)
            assert timestep.terminated[0] == game.terminated
            if game.terminated:
                np.testing.assert_allclose(timestep.episode.episode_return[0], game.rewards[first])
                break
            assert game.current_player == 1 - mover
    assert starters == {0, 1}


def test_self_play_does_not_change_the_state():
    env, against = (make(env_config("pgx", "hex", kwargs={"opponent": each})) for each in ("self", "random"))
    assert (env.num_players, against.num_players) == (2, 1)
    keys = jax.random.split(jax.random.key(0), 2)
    assert jax.eval_shape(env.reset, keys) == jax.eval_shape(against.reset, keys)


def test_self_play_is_evaluated_against_an_opponent():
    play = {"kwargs": {"opponent": "self"}, "eval_opponent": first_legal}
    env, same = make_eval(env_config("pgx", "connect_four", **play)), {"opponent": first_legal}
    bare = make_eval(env_config("pgx", "connect_four", kwargs=same))
    _, actions, steps = rollout(env, 12, num_envs=6)
    _, same_actions, same_steps = rollout(bare, 12, num_envs=6)
    np.testing.assert_array_equal(actions, same_actions)
    jax.tree.map(np.testing.assert_array_equal, steps, same_steps)


@pytest.mark.parametrize("moves", [254, 255])
def test_move_limit_without_a_result_truncates(moves):
    """Animal shogi ends after 256 moves by both players; after the last of 256, the opponent would move."""
    env = make_eval(env_config("pgx", "animal_shogi"))
    keys = jax.random.split(jax.random.key(0), 4)
    state, timestep = jax.jit(env.reset)(keys)
    game = state.env_state.replace(_step_count=jnp.full((4,), moves, jnp.int32))
    state = state._replace(env_state=game)
    _, timestep = jax.jit(env.step)(keys, state, jnp.argmax(timestep.observation.action_mask, -1))
    assert timestep.truncated.all()
    assert not timestep.terminated.any()
    assert (timestep.reward == 0.0).all()
    # The legal actions of the opponent are none of the agent's.
    np.testing.assert_array_equal(timestep.observation.action_mask.all(-1), moves == 255)


@pytest.mark.parametrize("name", ["animal_shogi", "gardner_chess", "chess", "shogi"])
def test_the_legal_actions_of_games_with_a_limit_are_those_of_pgx(name):
    env = pgx.make(name)
    step, legal = jax.jit(env.step), jax.jit(_legal_actions)
    with jax.numpy_rank_promotion("allow"):
        game = jax.jit(env.init)(jax.random.key(0))
        for _ in range(3):
            assert not game.terminated
            np.testing.assert_array_equal(legal(game), game.legal_action_mask)
            game = step(game, jnp.argmax(game.legal_action_mask))


def test_the_time_of_freeway_is_a_limit():
    env = make_eval(env_config("pgx", "minatar-freeway"))
    keys = jax.random.split(jax.random.key(0), 2)
    state, _ = jax.jit(env.reset)(keys)
    state = state._replace(env_state=state.env_state.replace(_terminate_timer=jnp.zeros(2, jnp.int32)))
    _, timestep = jax.jit(env.step)(keys, state, jnp.zeros(2, jnp.int32))
    assert timestep.truncated.all()
    assert not timestep.terminated.any()


def test_shogi_is_not_drawn():
    assert make_eval(env_config("pgx", "shogi")).scene() is None
    assert make_eval(env_config("pgx", "tic_tac_toe")).scene() is not None


def test_constructor_arguments_and_import_paths():
    opponent = "stoix_like.envs.suites.pgx.random_opponent"
    env = make(env_config("pgx", "go_9x9", kwargs={"size": 5, "opponent": opponent}))
    assert env.observation_space.shape == (5, 5, 17)
    assert make(env_config("pgx", "go_9x9", kwargs={"komi": 5.5})).observation_space.shape == (9, 9, 17)


class Duel(pgx.make("tic_tac_toe").__class__):
    id = "duel"

    def __init__(self, players=2):
        super().__init__()
        self.players = players

    @property
    def num_players(self):
        return self.players


@pytest.mark.parametrize("given", [Duel(), Duel])
def test_a_game_with_the_interface_of_pgx_is_taken(given):
    config = EnvConfig("own", ScenarioConfig("Duel"), kwargs={"opponent": "self"})
    env, against = make(config, given), make_eval(config, given)
    assert (env.num_players, against.num_players) == (2, 1)
    keys = jax.random.split(jax.random.key(3), 4)
    state, timestep = env.reset(keys)
    assert timestep.observation.agent_view.shape == (4, 3, 3, 2)
    assert jax.tree.structure(state.env_state) == jax.tree.structure(env.reset(keys)[0].env_state)
    # Against a random player by default, and against a function.
    for opponent in ({}, {"opponent": first_legal}):
        env = make(EnvConfig("own", ScenarioConfig("Duel"), kwargs=opponent), given)
        state, timestep = jax.jit(env.step)(keys, env.reset(keys)[0], jnp.full(4, 8))
        assert env.num_players == 1
        assert (timestep.observation.action_mask.sum(-1) >= 5).all()


class Match(Duel):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)


class Arena(custom_envs.Corridor):
    def __init__(self, **kwargs):
        self.opponent = kwargs.pop("opponent")
        super().__init__(**kwargs)


def test_constructors_with_any_arguments_get_the_opponent_unless_they_build_a_game_of_pgx():
    config = EnvConfig("own", ScenarioConfig("Any"), kwargs={"opponent": "self"})
    assert make(config, Match).num_players == 2
    assert make(config, Arena).unwrapped.env.opponent == "self"


@pytest.mark.parametrize(
    ("game", "kwargs", "words"),
    [
        (pgx.make("backgammon"), {"opponent": "self"}, "opponent=self does not fit Backgammon, where players do not"),
        (Duel, {"players": 3}, "Duel has 3 players, and at most two are supported"),
    ],
)
def test_what_is_no_game_for_two_has_no_opponent(game, kwargs, words):
    with pytest.raises(ConfigError, match=words):
        make(EnvConfig("own", ScenarioConfig("Own"), kwargs=kwargs), game)
