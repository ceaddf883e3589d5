import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.callbacks import AddMetrics, Callback, EvaluatePolicy, StopAtReturn
from stoix_like.errors import CallbackError
from stoix_like.loggers import Logger
from stoix_like.processes import ALONE
from stoix_like.run.callbacks import Callbacks
from stoix_like.run.population.members import Population
from stoix_like.run.records.recording import Progress
from support import toys
from support.comparisons import recorded
from support.trained_runs import BUDGET, PENDULUM, SMALL
from support.untrained import untrained

RUN = [*PENDULUM, "arch.total_timesteps=256", "arch.num_evaluation=4"]


class Recorder(Callback):
    def __init__(self):
        self.calls, self.evaluations = [], 0

    def on_start(self, info):
        self.calls.append(("start", info.system))

    def on_evaluation(self, record, policy):
        self.evaluations += 1
        self.calls.append(("evaluation", record["env_steps"], policy.env_steps))

    def on_checkpoint(self, env_steps, run_dir):
        self.calls.append(("checkpoint", env_steps, (run_dir / "checkpoints" / str(env_steps)).is_dir()))

    def on_end(self, summary):
        self.calls.append(("end", summary["env_steps"]))

    def state(self):
        return {"evaluations": self.evaluations}

    def restore(self, state):
        self.evaluations = state["evaluations"]


class Failing(Callback):
    def __init__(self, at):
        self.at = at

    def on_evaluation(self, record, policy):
        if record["env_steps"] == self.at:
            raise KeyError("lost")


@pytest.fixture(scope="module")
def agent():
    return untrained("system=ppo/ff_ppo", *SMALL, "env=gymnax/pendulum")


def called(agent, *callbacks, population=None):
    population = population or Population((0,), {}, (0,))
    setup = SimpleNamespace(callbacks=callbacks, parts=agent[0], processes=ALONE, population=population)
    return Callbacks(setup)


def train(run_dir, *overrides, callbacks=()):
    return stoix_like.train("ppo/ff_ppo", [*RUN, *overrides], run_dir=run_dir, callbacks=callbacks)


@pytest.mark.slow
def test_callbacks_receive_the_policy_of_a_recurrent_run(tmp_path):
    state = EvaluatePolicy(lambda policy: {"own": float(policy(np.zeros(1), policy.initial_state())[1])})
    toy = [*SMALL[4:], *toys.overrides(rollout_length=4), "env=probe/value", "arch.total_timesteps=64"]
    assert stoix_like.train("ppo/ff_ppo", toy, run_dir=tmp_path, callbacks=[state]).history[-1]["own"] == 1.0


def test_callbacks_are_called_in_order(tmp_path):
    recorder, seen = Recorder(), []
    seldom = EvaluatePolicy(lambda policy: seen.append(policy.env_steps) or {"mine/number": len(seen)}, every_evals=2)
    result = stoix_like.train("ppo/ff_ppo", [*PENDULUM, *BUDGET], run_dir=tmp_path, callbacks=[recorder, seldom])
    assert not any(name.startswith("absolute/") for name in result.summary)
    assert [call for call in recorder.calls if call[0] != "checkpoint"] == [
        ("start", "ppo/ff_ppo"),
        *(("evaluation", steps, steps) for steps in (0, 64, 128)),
        ("end", 128),
    ]
    # A checkpoint is written while training continues: of a fast run, only the last one is complete in time.
    assert recorder.calls[-2] == ("checkpoint", 128, True)
    assert seen == [0, 128]
    assert [record.get("mine/number") for record in recorded(tmp_path)] == [1, None, 2]


def test_the_callbacks_of_an_evaluation_share_one_copy_of_the_state(agent):
    seen, shared = [], jax.tree.map(jnp.copy, agent[1])
    evaluate = EvaluatePolicy(lambda policy: seen.append(policy) or {})
    callbacks, population = called(agent, evaluate, evaluate), Population((0,), {}, (0,))
    for steps in (0, 64):
        callbacks.evaluated(Progress(history=[{"env_steps": steps}]), shared, population)
    for one, other in (seen[:2], seen[2:]):
        leaves = zip(*(jax.tree.leaves(vars(policy)) for policy in (one, other)), strict=True)
        assert one is not other
        assert all(a is b for a, b in leaves if isinstance(a, jax.Array))
    assert [policy.env_steps for policy in seen] == [0, 0, 64, 64]
    # As training does, which donates the state.
    jax.tree.map(lambda leaf: leaf.delete(), shared)
    actions = [np.asarray(policy(np.zeros(3, np.float32))) for policy in (seen[0], seen[2])]
    np.testing.assert_array_equal(*actions)


def test_answers_before_a_callback_that_fails_count(agent):
    progress = Progress(history=[{"env_steps": 128, "eval/episode_return_mean": 0.0}])
    double = AddMetrics(lambda record: {"mine/double": 2 * record["env_steps"]})
    callbacks = called(agent, StopAtReturn(-1.0), double, Failing(at=128), AddMetrics(lambda record: {"after": 1}))
    with pytest.raises(CallbackError, match="Failing: KeyError: 'lost'") as failure:
        callbacks.evaluated(progress, agent[1], Population((0,), {}, (0,)))
    assert isinstance(failure.value.__cause__, KeyError)
    assert progress.stopped_by == "StopAtReturn"
    assert progress.history == [{"env_steps": 128, "eval/episode_return_mean": 0.0, "mine/double": 256}]


@pytest.mark.slow
def test_an_exception_saves_and_names_the_callback(tmp_path):
    place = rf"{re.escape(__file__)}:{Failing.on_evaluation.__code__.co_firstlineno + 2}"
    message = rf"Failing: KeyError: 'lost' \({place}\); stopped after 128 env steps, saved; continue"
    with pytest.raises(CallbackError, match=message):
        train(tmp_path / "failing", callbacks=[Failing(at=128)])
    assert "Failing" in (tmp_path / "failing/failure.txt").read_text()
    stoix_like.resume(tmp_path / "failing")
    train(tmp_path / "whole")
    assert recorded(tmp_path / "failing") == recorded(tmp_path / "whole")
    assert not (tmp_path / "failing/failure.txt").exists()


@pytest.mark.slow
def test_states_are_saved_in_json_or_refused_before_training_and_not_lost_where_one_fails_later(tmp_path):
    class Broken(Recorder):
        def state(self):
            return {"evaluations": {3} if self.evaluations == 3 else np.float32(self.evaluations)}

    broken = Broken()
    with pytest.raises(CallbackError, match=r"Broken.state returned .*JSON values; stopped after 128 env steps, saved"):
        train(tmp_path / "later", callbacks=[broken])
    assert broken.calls[-1] == ("checkpoint", 128, True)
    again = Broken()
    again.restore = lambda state: broken.calls.append(("restored", state))
    stoix_like.resume(tmp_path / "later", callbacks=[again])
    assert broken.calls[-1] == ("restored", {"evaluations": 2})
    wrong = Recorder()
    wrong.evaluations = object()
    with pytest.raises(CallbackError, match=r"Recorder.state returned .*object.* is not JSON .*return JSON values"):
        train(tmp_path / "before", callbacks=[wrong])
    assert len(recorded(tmp_path / "before")) == 0


@pytest.mark.slow
def test_a_run_goes_on_with_other_callbacks_than_the_one_that_stopped_it(tmp_path):
    stopped = train(tmp_path, callbacks=[StopAtReturn(-1e9)])
    assert stopped.summary["env_steps"] == 0
    assert stoix_like.resume(tmp_path, callbacks=[StopAtReturn(-1e9)]).summary["env_steps"] == 0
    assert stoix_like.resume(tmp_path).summary["env_steps"] == 0
    assert stoix_like.resume(tmp_path, callbacks=[Recorder()]).summary["env_steps"] == 256


@pytest.mark.parametrize(
    ("members", "answer", "fault"),
    [
        (1, {"env_steps": 1}, "env_steps, which the record has already"),
        (1, {"mine": "high"}, "mine='high': return numbers"),
        (1, {"mine": [1.0]}, r"mine=\[1.0\]: return a number"),
        (1, 3.0, "returned 3.0: return False, metrics by name, or None"),
        (2, {"mine": [1.0, None]}, None),
        (2, {"mine": 1.0}, None),
        (2, {"mine": np.ones(3)}, "mine=.*: return a number, or a list of 2, one per member$"),
        (1, {"mine": np.ones(1)}, "mine=.*: return a number$"),
    ],
)
def test_metrics_that_cannot_be_recorded_are_refused(members, answer, fault):
    setup = SimpleNamespace(callbacks=(), population=Population(tuple(range(members)), {}, tuple(range(members))))
    callbacks, record = Callbacks(setup), {"env_steps": 0}
    if fault is None:
        assert callbacks._checked(Failing(0), answer, record) == answer
        return
    with pytest.raises(CallbackError, match=f"^Failing.on_evaluation .*{fault}"):
        callbacks._checked(Failing(0), answer, record)


@pytest.mark.slow
def test_loggers_have_the_results_of_a_run_whose_callback_fails_at_its_end(tmp_path):
    class FailsAtTheEnd(Callback):
        def on_end(self, summary):
            raise KeyError("lost")

    class Finished(Logger):
        def finish(self, summary):
            finished.append(summary["env_steps"])

    finished = []
    with pytest.raises(CallbackError, match="FailsAtTheEnd: KeyError: 'lost'"):
        stoix_like.train("ppo/ff_ppo", RUN, run_dir=tmp_path, callbacks=[FailsAtTheEnd()], loggers=[Finished()])
    assert finished == [256]


@pytest.mark.slow
def test_a_population_shows_its_best_member(tmp_path):
    observations, seen = np.linspace(-3.0, 3.0, 27, dtype=np.float32).reshape(9, 3), []
    own = EvaluatePolicy(lambda policy: seen.append((policy.member, np.asarray(policy(observations)))) or {})
    double = AddMetrics(lambda record: {"mine/double": 2 * record["env_steps"]})
    result = train(tmp_path, "arch.population.size=3", callbacks=[own, double])
    assert seen[-1][0] == result.history[-1]["population/best_member"]
    last = stoix_like.load_policy(tmp_path, which="last", member=seen[-1][0])
    np.testing.assert_array_equal(seen[-1][1], last(observations))
    assert result.history[-1]["mine/double"] == 512
