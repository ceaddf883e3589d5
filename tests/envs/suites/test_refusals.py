import jax.numpy as jnp
import pytest

from stoix_like.envs import make, make_eval
from stoix_like.errors import ConfigError
from support.conformance import env_config

NAN = float("nan")
CRAFTAX, KINETIX, NAVIX = "Craftax-Classic-Symbolic-v1", "s_h4_thrust_aim", "Navix-Empty-5x5-v0"
SCRIPTED = "support.scripted:Scripted-v0"
MINIGRID, PLAYGROUND, POPGYM = "MiniGrid-Empty-5x5", "PendulumSwingup", "CartPoleEasy"


def kwargs(**values):
    return {"kwargs": values}


def params(**values):
    return {"params": values}


SELF = kwargs(opponent="self")
# One row for each kind of mistake; those in all types of arguments are in `test_arguments.py`.
REFUSED = {
    "brax": [
        ("ant", kwargs(ctrl_cost_weight=NAN), "env.kwargs.ctrl_cost_weight=nan is invalid for ant"),
        ("inverted_pendulum", kwargs(backend="mujoco"), "env.kwargs=.*mujoco.* is invalid .*'generalized'"),
        ("ant", kwargs(use_contact_forces=True), "env.kwargs=.*for ant: NotImplementedError: use_contact_forces"),
        ("inverted_pendulum", {"randomization": "registered"}, "no randomisation is registered for brax/inverted_pend"),
        ("fast", {"randomization": "support.randomized.gravities"}, "brax/fast has none"),
    ],
    "craftax": [
        (CRAFTAX, params(always_diamond=2), "env.params.always_diamond=2 is invalid"),
        (CRAFTAX, params(fractal_noise_angles=[1, 1, 1, 1]), "fractal_noise_angles=.* is not a parameter"),
    ],
    "envpool": [
        ("CartPole-v1", kwargs(seed=3), "env.kwargs.seed=3 is not a parameter of CartPole-v1"),
        ("Pong-v5", kwargs(stack_num="many"), "env.kwargs.stack_num='many' is invalid for Pong-v5"),
        ("Pong-v5", kwargs(noop_max=0), "env.kwargs.noop_max=0 must be at least 1"),
        ("Pong-v5", kwargs(task="breakout"), "env.kwargs.task='breakout' is not a parameter of Pong-v5"),
        ("Pong-v5", kwargs(episodic_life="no"), "env.kwargs={'episodic_life': 'no'} is invalid for Pong-v5"),
        ("CVRP-v1", {}, "use env=jumanji"),
        ("Cig-v1", {}, "name=.Cig-v1. has several players"),
    ],
    "gymnasium": [
        ("ALE/Pong-v5", params(frame_skip=1.5), "env.params.frame_skip=1.5 is invalid for ALE/Pong-v5"),
        ("ale_py:ALE/Pong-v5", params(frame_skip=1.5), "is invalid for ale_py:ALE/Pong-v5"),
        ("ALE/Pong-v5", params(terminal_on_life_loss="maybe"), "env.params.terminal_on_life_loss='maybe'"),
        ("ALE/Pong-v5", kwargs(mode=77), "env.kwargs={'mode': 77} is invalid for ALE/Pong-v5: Invalid game"),
        ("PongNoFrameskip-v4", {"vectorization": "envpool"}, "envpool: .* use env=envpool/_atari .*name=Pong-v5, or"),
        ("ALE/Backgammon-v5", {}, "name='ALE/Backgammon-v5' has several players: only"),
        (SCRIPTED, {"auto_reset": "pool"}, "env.auto_reset='pool'.*use fresh"),
        (SCRIPTED, kwargs(size=3), "env.kwargs={'size': 3} is invalid for support"),
        (SCRIPTED, params(noop_max=3), "env.params.noop_max=3 is not a parameter of supp"),
        ("CartPol-v1", {}, "env.scenario.name='CartPol-v1'.*CartPole-v1"),
        ("no_such_module:Env-v0", {}, "env.scenario.name='no_such_module:Env-v0'"),
        ("", {}, "env.scenario.name=''.*CartPole-v1"),
        ("Hopper-v5", kwargs(xml_file="none.xml"), "'none.xml'} is invalid for Hopper-v5: .*does not exist"),
    ],
    "gymnax": [
        ("MNISTBandit-bsuite", {}, "MNISTBandit-bsuite.*download"),
        ("CartPole-v1", params(masscart=5.0, total_mass=2.0), "masscart=5.0: CartPole-v1 does not read it"),
        ("Asterix-MinAtar", params(shot_cool_down=3), "shot_cool_down=3: Asterix-MinAtar does not read it"),
        ("FrozenLake-misc", kwargs(map_name="5x5"), "env.kwargs=.*FrozenLake-misc: map_name must be"),
        ("DiscountingChain-bsuite", params(reward_timestep=[1, 2]), "env.params.reward_timestep"),
    ],
    "jaxmarl": [
        ("SMAX", {}, "'SMAX' is not supported: both of its teams would learn: use HeuristicEnemySMAX"),
        ("HeuristicEnemySMAX", kwargs(map_name="3n"), "env.kwargs.map_name='3n' is not one of .*'3m'"),
        ("MPE_simple_spread_v3", kwargs(num_agents=0), "env.kwargs.num_agents=0 must be at least 1"),
        ("coin_game", kwargs(num_outer_steps=2), "num_outer_steps=2 is not a parameter of coin_game"),
        ("HeuristicEnemySMAX", kwargs(scenario="3s5z"), "env.kwargs.scenario='3s5z' is not a parameter"),
        ("HeuristicEnemySMAX", kwargs(num_allies=8), "env.kwargs.num_allies=8 is not a parameter"),
        ("overcooked_v2", kwargs(observation_type="default"), "observation_type='default' is not a parameter"),
        ("switch_riddle", kwargs(num_agents=2), "env.kwargs=.*'num_agents': 2.* minimum number of agents"),
    ],
    "jaxtari": [
        ("pong", kwargs(observation="pixel"), "env.kwargs.observation='pixel' .*'pixels'"),
        ("pong", kwargs(observation="pixels"), "env.kwargs.observation=pixels needs the sprites of pong"),
        ("asterix", {}, "name=asterix needs the sprites of asterix, .*python -m jaxtari.install_sprites"),
        ("pong", params(screen_size=42), "env.params.screen_size=42 has no effect on .*observation=objects"),
    ],
    "jumanji": [
        ("Sokoban-v0", {}, "Sokoban-v0.*download"),
        ("Connector-v3", kwargs(by_agent=False), "env.kwargs.by_agent=false does not fit Connector-v3: leave"),
        ("Cleaner-v0", kwargs(world=True), "by_agent=false does not fit Cleaner-v0 with world"),
        ("RobotWarehouse-v0", kwargs(request_queue_size=1000), "env.kwargs=.*request_queue_size.* is invalid for"),
        ("LevelBasedForaging-v0", kwargs(grid_size=2), "is invalid for LevelBasedForaging-v0"),
        ("Snake-v1", kwargs(time_limit="long"), "env.kwargs.time_limit='long' is invalid for Snake-v1: .* 4000"),
        ("Maze-v0", kwargs(generator="mine"), "env.kwargs.generator='mine' is not a parameter of Maze-v0"),
        ("Cleaner-v0", kwargs(penalty_per_timestep=True), "penalty_per_timestep=True .* such as 0.5"),
    ],
    "goals": [
        ("bit_flip", kwargs(bits=0), "bits=0 must be an integer from 1"),
        ("point_maze", kwargs(maze="v"), "maze=v: choose from open, spiral, u"),
        ("point_maze", kwargs(speed=2.0), r"speed=2.0 must be in \(0, 1\], in cells"),
    ],
    "kinetix": [(KINETIX, kwargs(observation="pixel"), "env.kwargs.observation='pixel' .*'pixels'")],
    "memory": [
        ("t_maze", kwargs(length=0), "length=0 must be an integer from 1"),
        ("t_maze", kwargs(length=2.5), "length=2.5 must be an integer from 1"),
        ("t_maze", kwargs(penalty=-1.0), "penalty=-1.0 must be at least 0"),
        ("repeat_previous", kwargs(delay=4, length=4), "length=4 must be an integer from 5"),
        ("autoencode", kwargs(num_symbols=1), "num_symbols=1 must be an integer from 2"),
    ],
    "mjx": [
        (
            "HalfCheeta-v5",
            {},
            "env.scenario.name='HalfCheeta-v5' is not a scenario of mjx: did you mean 'HalfCheetah-v5'",
        ),
        ("Hopper-v5", kwargs(render_mode="human"), "env.kwargs.render_mode='human' is not a parameter of Hopper-v5"),
        ("Hopper-v5", kwargs(xml_file="none.xml"), "'none.xml'} is invalid for Hopper-v5: .*does not exist"),
    ],
    "navix": [(NAVIX, kwargs(observation_fn="rbg"), "env.kwargs.observation_fn='rbg' is not one of .*'rgb'")],
    "octax": [
        ("brix", kwargs(frame_skip=0), "env.kwargs.frame_skip=0 must be at least 1"),
        ("brix", kwargs(instruction_frequency=30), "instruction_frequency=30 is less than one .*fps=60"),
    ],
    "pgx": [
        ("bridge_bidding", {}, "bridge_bidding.*download"),
        ("sparrow_mahjong", {}, "sparrow_mahjong.*three players"),
        ("hex", kwargs(size=5), r"env.kwargs={'size': 5} is invalid for hex \(TypeError: cannot reshape"),
        ("go_9x9", kwargs(komi=NAN), "env.kwargs.komi=nan is invalid for go_9x9"),
        ("go_9x9", kwargs(opponent="go_9x9_v0"), "env.kwargs.opponent=go_9x9_v0.*download"),
        ("hex", kwargs(opponent="nobody"), "opponent=nobody is not an import path.*must be random, self, or"),
        ("hex", kwargs(opponent=lambda key, game: jnp.ones(2)), r"returns float32\[2\]: it must .* a scalar integer"),
        (
            "hex",
            {**SELF, "eval_opponent": "nobody"},
            "env.eval_opponent=nobody is not an import path.*must be random or",
        ),
        ("backgammon", SELF, "env.kwargs.opponent=self does not fit backgammon.*chess, co"),
        ("2048", SELF, "env.kwargs.opponent='self' has no effect: 2048 is single"),
        ("hex", {**SELF, "frame_stack": 2}, "env.frame_stack=2 mixes the two players of hex"),
    ],
    "playground": [
        (PLAYGROUND, params(ctrl_dt=NAN), "env.params.ctrl_dt=nan is invalid .*0.02"),
        (PLAYGROUND, params(ctrl_dt=0.001), "env.params.ctrl_dt=0.001 is shorter .*env.params.sim_dt=0.01"),
        (PLAYGROUND, params(impl="warp"), "env.params.impl='warp' is not a parameter"),
    ],
    "popgym_arcade": [
        (POPGYM, kwargs(obs_size=64), "env.kwargs.obs_size=64 is invalid .*use 128 or 256"),
        (POPGYM, kwargs(partial_obs=1), "env.kwargs.partial_obs=1 is invalid .* such as False"),
    ],
    "probe": [
        ("value", {"randomization": "support.randomized.masses"}, "probe/value has none: use an .* env=playground")
    ],
    "xminigrid": [
        ("XLand-MiniGrid-R1-9x9", {}, "name='XLand-MiniGrid-R1-9x9' is not supported: .*download"),
        (MINIGRID, params(view_size=4), "env.params.view_size=4 must be odd and at least 3"),
    ],
}
QUICK = ("goals", "gymnasium", "gymnax", "memory", "probe")


def slow_unless_quick(suite, *row):
    return pytest.param(suite, *row, marks=() if suite in QUICK else pytest.mark.slow)


# A scenario of each suite, and the key of its time limit.
EXAMPLES = [
    ("brax", "inverted_pendulum", "params.episode_length"),
    ("craftax", CRAFTAX, "params.max_timesteps"),
    ("envpool", "Pong-v5", "kwargs.max_episode_steps"),
    ("goals", "point_maze", "kwargs.limit"),
    ("gymnax", "CartPole-v1", "params.max_steps_in_episode"),
    ("jaxmarl", "MPE_simple_tag_v3", "kwargs.max_steps"),
    ("jaxtari", "pong", "params.max_frames_per_episode"),
    ("jumanji", "Snake-v1", "kwargs.time_limit"),
    ("kinetix", KINETIX, "params.max_timesteps"),
    ("memory", "t_maze", "kwargs.length"),
    ("navix", NAVIX, "params.max_steps"),
    ("octax", "brix", "params.max_steps_in_episode"),
    ("pgx", "tic_tac_toe", ""),
    ("playground", PLAYGROUND, "params.episode_length"),
    ("popgym_arcade", POPGYM, "params.max_steps_in_episode"),
    ("probe", "time_limit", "kwargs.limit"),
    ("xminigrid", MINIGRID, "params.max_steps"),
]


@pytest.mark.parametrize(("suite", "name", "limit"), [slow_unless_quick(*row) for row in EXAMPLES])
def test_unknown_names_and_limits_of_no_step_are_refused(suite, name, limit):
    rows = [
        (f"{name}z", {}, f"name='{name}z' is not a scenario of {suite}: .*'{name}'"),
        (name, kwargs(size_of=3), f"env.kwargs.size_of=3 is not a parameter of {name}: "),
        (name, params(size_of=3), f"env.params.size_of=3 is not a parameter of {name}: "),
    ]
    if limit:
        block, _, key = limit.partition(".")
        rows.append((name, {block: {key: 0}}, rf"{key}=0.* (at least|from) 1"))
    for name, changes, words in rows:
        with pytest.raises(ConfigError, match=words):
            make_eval(env_config(suite, name, **changes))


@pytest.mark.parametrize(
    ("suite", "name", "changes", "words"),
    [slow_unless_quick(suite, *row) for suite, rows in REFUSED.items() for row in rows],
)
def test_what_a_suite_does_not_have_is_refused(suite, name, changes, words, tmp_path, monkeypatch):
    # No sprites, whatever the machine has.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    config = env_config(suite, name, **changes)
    with pytest.raises(ConfigError, match=words) as refused:
        make_eval(config), make(config)
    assert "\n" not in str(refused.value)
