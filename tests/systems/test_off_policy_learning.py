import pytest

from support import disco
from support.set_ups import trained

pytestmark = pytest.mark.optimized
MINIMUM_RETURNS = {
    ("pendulum", -180.0): "sac tqc crossq xqc flow td_mpc2 reppo fast_td3 fast_sac td3 ddpg d4pg",
    ("pendulum", -200.0): "pqn",
    ("pendulum", -220.0): "sampled_az spo",
    ("cartpole", 475.0): "reppo sac_discrete mz sampled_mz az spo",
    ("mountain_car_continuous", 90.0): "sac td3",
}


@pytest.mark.learn
def test_disco103_learns_catch_with_the_published_weights():
    """Within 400 updates."""
    if not disco.PUBLISHED.exists():
        pytest.skip("the published weights are not here")
    train("disco103_catch", 0.99, f"system.weights={disco.PUBLISHED}")


@pytest.mark.learn
@pytest.mark.parametrize(
    ("experiment", "minimum_return"),
    [(f"{system}_{env}", least) for (env, least), systems in MINIMUM_RETURNS.items() for system in systems.split()],
)
def test_experiment_reaches_the_minimum_return(experiment, minimum_return):
    train(experiment, minimum_return)


@pytest.mark.learn
@pytest.mark.parametrize(
    ("system", "env", "steps", "minimum_return"),
    [
        ("ppo/ff_ppo", "pendulum", 500_000, -250.0),
        ("ppo/ff_ppo_penalty", "pendulum", 500_000, -250.0),
        ("search/ff_sampled_az", "pendulum", 50_000, -400.0),
    ],
)
def test_defaults_learn_without_knowing_the_scale_of_rewards(system, env, steps, minimum_return):
    """Returns are about -1,200 at first, and the best -140; see also `scripts/defaults.py`."""
    train(None, minimum_return, f"system={system}", f"env=gymnax/{env}", f"arch.total_timesteps={steps}")


@pytest.mark.learn
def test_dqn_learns_from_hindsight_to_reach_goals_that_chance_does_not():
    """The best return is -6.5 on average: seven and a half of 15 bits are to be flipped, and the last flip is free."""
    bits = ("env=goals/bit_flip", "env.kwargs.bits=15", "system.relabel=future", "arch.total_timesteps=2e5")
    train(None, -7.0, "system=q_learning/ff_dqn", *bits)


@pytest.mark.learn
def test_contrastive_rl_learns_the_way_to_places_of_a_maze():
    """Random actions return about -95, and SAC with hindsight reaches about -12."""
    widths = [f"network.{name}_network.pre_torso.layer_sizes=[64,64]" for name in ("actor", "q", "goal")]
    maze = ("env=goals/point_maze", "system.epochs=4", "arch.total_timesteps=2e4", "arch.num_evaluation=4")
    train(None, -40.0, "system=goals/ff_crl", *maze, *widths)


def train(experiment, minimum_return, *more):
    overrides = ["arch.seed=0", "arch.compile_cache=false", "arch.num_devices=1", *more]
    overrides += [f"+experiment={experiment}"] if experiment else []
    summary = trained(*overrides).summary()
    assert summary.get("absolute/episode_return_mean", summary["eval/episode_return_mean"]) >= minimum_return
