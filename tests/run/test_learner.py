from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.axes import POPULATION_AXIS
from stoix_like.architectures.types import LearnerState, Shard
from stoix_like.errors import HostEnvironmentError
from stoix_like.run import learner
from stoix_like.run.population.members import Population
from stoix_like.run.programs.functions import make_keys
from stoix_like.run.records.clock import Clock
from stoix_like.run.set_up.setup import RunSetup

STATE = jax.device_put(
    LearnerState(
        {"actor": np.zeros(2), "critic": np.ones(2)}, Shard(np.ones(3), np.ones(1), (), ()), np.array(True), ()
    )
)
FIVE = Population((3, 4, 5, 6, 7), {"lr": (0.1, 0.2, 0.3, 0.4, 0.5)}, (0, 1, 2, 3, 4))


class Programs:
    def __init__(self, setup):
        self.keys, self.state, self.calls = make_keys(setup), STATE, []

    def init(self, *arguments):
        self.calls.append(("init", *arguments))
        return STATE

    def init_given(self, given, warm_up):
        self.calls.append(("init_given", given, warm_up))
        return self.init

    def train(self, *arguments):
        self.calls.append(("train", *arguments))
        return STATE._replace(healthy=jnp.asarray(False)), "metrics"

    def evaluate(self, *arguments):
        self.calls.append(("evaluate", *arguments))
        return {"episodes": np.zeros(2)}


@pytest.fixture
def start(monkeypatch):
    """Build a learner; options are those of the system, and whether checkpoints hold the replay buffer."""
    monkeypatch.setattr(learner, "compile_run", Programs)

    def build(population=FIVE, env=None, replay=False, **system):
        system = SimpleNamespace(**{"warmup_steps": 0, "has_replay": False, **system})
        config = SimpleNamespace(system=system, checkpoint=SimpleNamespace(replay=replay))
        env = env or SimpleNamespace(on_host=False)
        mesh, plan = SimpleNamespace(shape={POPULATION_AXIS: 1}), SimpleNamespace(num_shards=1)
        return learner.Learner(RunSetup(config, population, mesh, plan, env, env, None, False), Clock())

    return build


def called(built):
    return [call[0] for call in built.programs.calls]


@pytest.mark.parametrize(("warmup_steps", "programs"), [(0, ["init"]), (8, ["init_given", "init"])])
def test_a_warm_start_replaces_leaves_and_lets_the_warm_up_play_with_them(start, warmup_steps, programs):
    built = start(warmup_steps=warmup_steps)
    given = {"actor": jnp.full(2, 7.0)}
    built.start_from(given)
    assert {name: leaf.tolist() for name, leaf in built.state.shared.items()} == {"actor": [7, 7], "critic": [1, 1]}
    assert called(built) == programs
    # One that resumes only starts episodes.
    resumed = start(warmup_steps=warmup_steps)
    resumed.start(warm_up=False)
    assert called(resumed) == programs


def test_training_replaces_the_state_and_evaluations_read_it_or_others(start):
    built = start()
    assert built.state is built.start() is STATE
    built.train(3, new_interval=True)
    assert not built.state.healthy
    built.play(4)
    _, shared, hyperparams, key, number = built.programs.calls[-1]
    assert (shared is built.state.shared, key is built.programs.keys.evaluation, number) == (True, True, 4)
    assert hyperparams == built.hyperparams
    built.play(5, "best", {"lr": 1.0})
    assert built.programs.calls[-1][1:3] == ("best", {"lr": 1.0})
    assert called(built) == ["init", "train", "evaluate", "evaluate"]


@pytest.mark.parametrize(("has_replay", "replay"), [(False, False), (True, False), (True, True)])
def test_a_replay_buffer_is_not_copied_and_saved_only_on_request(start, has_replay, replay):
    built = start(has_replay=has_replay, replay=replay)
    copy = built.copy_without_replay()
    assert copy.shared["critic"].tolist() == [1, 1]
    assert copy.shared["critic"] is not STATE.shared["critic"]
    assert bool(jax.tree.leaves(copy.shards.local)) != has_replay
    items = built.items()
    assert bool(jax.tree.leaves(items["local"])) == (replay or not has_replay)
    assert items["best"] is None
    # A checkpoint of a run that saved more is restored as it is.
    assert built.targets()["local"] is STATE.shards.local


def test_members_have_new_keys_with_new_starts_alone(start):
    def drawn(built):
        built.start()
        return [jax.random.key_data(key).tolist() for key in built.programs.calls[-1][2:4]]

    built, changed, resumed = start(), start(), start()
    changed.set_population(FIVE.with_hyperparams({"lr": [1.0] * 5}))
    resumed.take_new_starts(updates=2)
    agent, shards = drawn(built)
    assert drawn(changed) == [agent, shards]
    assert changed.programs.calls[-1][1]["lr"].tolist() == [1.0] * 5
    found = drawn(resumed)
    assert found[0] == agent
    assert found[1] != shards


def test_a_failure_of_an_environment_on_the_host_ends_every_call(start):
    built = start(env=SimpleNamespace(on_host=True, check=Mock(side_effect=HostEnvironmentError("lost"))))
    for call in (built.start, lambda: built.wait({}), lambda: built.play(0, "best")):
        with pytest.raises(HostEnvironmentError, match="lost"):
            call()
