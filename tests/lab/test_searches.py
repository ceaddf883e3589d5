import numpy as np
import pytest

from stoix_like.cli import main
from stoix_like.errors import ConfigError
from stoix_like.inference.evaluation import evaluate
from stoix_like.lab.searches import search_episode, with_simulations
from stoix_like.policies.load import load_policy
from support.set_ups import config_of

SMALL = [
    *("arch.total_num_envs=4", "arch.num_devices=1", "arch.num_eval_episodes=4", "arch.total_timesteps=256"),
    *("arch.num_evaluation=1", "arch.absolute_metric=false", "system.num_simulations=4", "system.rollout_length=8"),
    *("system.evaluation_simulations=4", "system.sequence_length=8", "system.warmup_steps=8", "system.epochs=1"),
    *("system.total_buffer_size=256", "system.total_batch_size=4", "logger=silent"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[8]" for name in ("actor", "critic")),
]


def test_the_number_of_simulations_is_that_of_evaluations(tmp_path):
    config = config_of("system=search/ff_az")
    assert with_simulations(config, None) is config
    assert with_simulations(config, 3).system.search.evaluation_simulations == 3
    with pytest.raises(ConfigError, match="simulations=-1 is negative"):
        with_simulations(config, -1)
    with pytest.raises(ConfigError, match="simulations=3 has no effect: system=ppo/ff_ppo does not search"):
        with_simulations(config_of(), 3)
    with pytest.raises(ConfigError, match="seed=-1 is out of range"):
        search_episode(tmp_path, seed=-1)


@pytest.mark.slow
def test_a_trained_run_is_searched_evaluated_and_exported(tmp_path):
    """Without simulations, episodes are those of the exported policy, which never searches."""
    run = tmp_path / "run"
    overrides = ["system=search/ff_az", "env=gymnax/cartpole", *SMALL, f"hydra.run.dir={run}"]
    main(["train", *overrides])
    episode = search_episode(run, simulations=6)
    np.testing.assert_array_equal(episode.found.visits.sum(-1), 6)
    np.testing.assert_allclose(episode.found.weights.sum(-1), 1.0, rtol=1e-5)
    assert episode.reward.sum() == len(episode.reward)
    with pytest.raises(ConfigError, match="evaluations of this run do not search"):
        search_episode(run, simulations=0)
    raw = evaluate(run, 8, simulations=0)
    assert raw["simulations"] == 0
    visits = load_policy(run).play(8)
    assert len(visits.returns) == 8
    main(["plot", "--kind", "search", str(run), "--out", str(tmp_path / "search.png"), "--step", "1"])
    assert (tmp_path / "search.png").stat().st_size > 1000
    main(["export", str(run), "--out", str(tmp_path / "policy.npz")])
