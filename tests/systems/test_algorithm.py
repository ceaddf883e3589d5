import pickle
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from stoix_like.base_types import Observation, SystemConfig, Trajectory
from stoix_like.config import schema_of
from stoix_like.systems import algorithm
from stoix_like.systems.algorithm import Algorithm, entry_points, make_system
from stoix_like.systems.ppo.anakin import ff_ppo


class Plain(Algorithm):
    """Only what every algorithm has; `act` returns whether it is greedy as the action."""

    def init(self, key, timestep):
        return "agent"

    def act(self, shared, state, key, greedy=False):
        return (), greedy, ()

    def update(self, agent, trajectory, key):
        return agent, {"loss": 0.0}

    def inspect(self, shared, observation):
        return "outputs"


def make_algorithm(config: ff_ppo.Config, spec: SimpleNamespace) -> Algorithm:
    return Plain()


@pytest.mark.parametrize("greedy", [False, True])
def test_evaluation_is_greedy_where_the_spec_says_so_and_training_never(greedy):
    system = make_system(Plain(), SimpleNamespace(evaluation_greedy=greedy))
    assert (system.act(None, None, None)[1], system.eval_act(None, None, None)[1]) == (False, greedy)


def test_a_plain_algorithm_stores_nothing_searches_nothing_and_learns_from_its_rollout():
    system = make_system(Plain(), SimpleNamespace(evaluation_greedy=True))
    agent = object()
    assert system.observe(agent, None) is agent
    assert (system.init_carry(3), system.search, system.dream) == ((), None, None)
    steps = SimpleNamespace(observation=Observation(jnp.arange(24.0).reshape(2, 3, 4)))
    batch = system.observations(agent, Trajectory(steps, ()), None).agent_view
    assert batch.tolist() == jnp.arange(24.0).reshape(6, 4).tolist()


def test_what_an_algorithm_has_beyond_that_is_part_of_the_system():
    class Searching(Plain):
        dream = "dream"

        def evaluation_search(self, greedy):
            return f"search, greedy: {greedy}"

    system = make_system(Searching(), SimpleNamespace(evaluation_greedy=True))
    assert (system.search, system.dream) == ("search, greedy: True", "dream")


def test_build_has_the_hyperparameters_of_its_module_and_can_be_sent_to_another_process():
    assert schema_of(ff_ppo.build) is ff_ppo.Config
    assert (ff_ppo.build.__module__, ff_ppo.build.__qualname__) == (ff_ppo.__name__, "build")
    assert pickle.loads(pickle.dumps(ff_ppo.build)) is ff_ppo.build
    build = entry_points("mine/plain", make_algorithm).build
    spec = SimpleNamespace(evaluation_greedy=True, action_space=None)
    assert build(SystemConfig(rollout_length=1), spec).init(0, 0) == "agent"


def test_entry_points_train_by_the_runner_and_by_the_command_line(monkeypatch):
    """Both are imported when they are called: systems stand below them."""
    monkeypatch.setattr(algorithm, "RUNNER", (__name__, "noted"))
    monkeypatch.setattr(algorithm, "COMMAND_LINE", (__name__, "noted"))
    NOTED.clear()
    points = entry_points("mine/plain", make_algorithm)
    assert points.run_experiment("composed") == 2.0
    points.hydra_entry_point()
    expected = [("composed", points.build), ("mine/plain",)]
    assert expected == NOTED


NOTED = []


def noted(*arguments):
    NOTED.append(arguments)
    return 2.0
