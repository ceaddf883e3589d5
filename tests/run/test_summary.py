from types import SimpleNamespace

from stoix_like import config
from stoix_like.architectures.axes import make_mesh
from stoix_like.devices import find_devices
from stoix_like.run.host.plan import make_plan
from stoix_like.run.population.members import make_population
from stoix_like.run.records.recording import Progress
from stoix_like.run.summary import ENVIRONMENT, LEARNING, LOGGING_MEANWHILE, summarise, timing
from support.set_ups import config_of


def summary_of(overrides, absolute=None, **progress):
    run = config_of(*overrides)
    setup = SimpleNamespace(config=run, plan=make_plan(run, 1), mesh=make_mesh(find_devices(1)))
    compiled = SimpleNamespace(seconds=1.0, program_seconds={})
    progress = Progress(**progress)
    return summarise(setup, ["noted"], make_population(run), progress, compiled, absolute or {}, None, 9.0)


SIZES = ["system.rollout_length=8", "arch.total_num_envs=4", "arch.total_timesteps=320"]
LAST = {"env_steps": 96, "eval/episode_return_mean": 5.0, "train/entropy": 0.1}


def test_a_summary_counts_steps_and_has_the_last_evaluation():
    """Three updates of 4 x 8 steps within two seconds."""
    absolute = {"absolute/episode_return_mean": 6.0}
    found = summary_of(SIZES, absolute=absolute, updates=3, history=[LAST], train_seconds=2.0, stopped_by="Mine")
    expected = {"env_steps": 96, "updates": 3, "steps_per_second": 48.0, "stopped_by": "Mine", "wall_seconds": 9.0}
    expected |= {"eval/episode_return_mean": 5.0, **absolute, "notes": ["noted"], "compile_seconds": 1.0}
    assert expected.items() <= found.items()
    assert not {"train/entropy", "population/size"} & found.keys()
    # A run that stopped before its first update has no speed.
    assert summary_of(SIZES, history=[LAST])["steps_per_second"] is None


def test_a_population_has_a_record_per_member_and_counts_the_steps_of_all():
    """Two of the first discount have a mean of 2.5, two of the second one of 2.25: member 2 counts as the lowest."""
    grid = ["arch.population.mode=grid", "arch.population.seeds=2", "arch.population.hyperparams={gamma: [0.9, 0.5]}"]
    last = {"eval/episode_return_mean": [1.0, 4.0, 2.0, 3.5], "population/best_member": 1, "population/failed": [2]}
    progress = {"updates": 3, "train_seconds": 2.0, "failures": {0: "recovered", 2: "a loss became non-finite"}}
    found = summary_of([*SIZES, *grid], history=[last], **progress)
    assert found["steps_per_second"] == 4 * 48.0
    assert [member["failure"] for member in found["population/members"]] == [None, None, progress["failures"][2], None]
    assert (found["population/best"]["member"], found["population/best"]["gamma"]) == (1, 0.9)
    assert found["population/best_point"]["members"] == [0, 1]
    # The absolute metric decides, where there is one, of members that did not diverge.
    absolute = {"absolute/episode_return_mean": [2.0, 3.0, 9.0, 4.0]}
    found = summary_of([*SIZES, *grid], absolute=absolute, history=[last], **progress)
    assert found["population/best"]["member"] == found["population/best_member"] == 3
    assert (found["population/size"], found["population/varied"]) == (4, ["gamma"])


def test_a_summary_has_the_precision_of_networks_and_that_of_environments(monkeypatch):
    """Physics computes in float32 beside networks of jax's default."""
    monkeypatch.setattr(config, "PHYSICS_SUITES", ("probe",))
    summary = summary_of([*SIZES, "env=probe/discount"], history=[LAST])
    assert (summary["matmul_precision"], summary["environment_matmul_precision"]) == ("default", "highest")


def test_phases_add_up_to_the_time_since_the_start():
    """2 s of startup and 8 s since: 5 s are those of training, in which 1 s of logging took place."""
    seconds = {"startup": 2.0, "training": 5.0, LOGGING_MEANWHILE: 1.0}
    assert timing(seconds, 8.0, 4, None) == {**seconds, "other": 3.0, "total": 10.0}
    # Environments take what rollouts alone do, at most all of training.
    for updates, environment in ((4, 2.0), (100, 5.0)):
        found = timing(seconds, 8.0, updates, SimpleNamespace(rollout_seconds=0.5))
        assert (found[ENVIRONMENT], found[LEARNING], found["other"]) == (environment, 5.0 - environment, 3.0)
