import re
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.run.host.actors import Pipeline, Timing
from support.keeper import ENVS, KEEPER, LENGTH, RUN, UPDATES


class Asked:
    device = jax.devices()[0]

    def __init__(self):
        self.policies, self.taken, self.stopped = [], 0, False

    waiting = property(lambda self: len(self.policies) - self.taken)

    def start(self, key, name):
        assert not self.policies

    def ask(self, policy):
        self.policies.append(policy)

    def take(self):
        policy = self.policies[self.taken]
        self.taken += 1
        return float(policy.shared), Timing(policy.updates, 0.0, 1.0)

    def stop(self):
        self.stopped = True

    def join(self, timeout):
        assert self.stopped


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_the_policy_lag_bounds_the_rollouts_under_way(lag):
    actors, most, limit = [Asked(), Asked()], [], 7

    def learn(state, hyperparams, rollouts, new_interval):
        most.append(max(actor.waiting for actor in actors))
        return SimpleNamespace(shared=state.shared + 1, shards=state.shards), rollouts

    pipeline = Pipeline(lambda: actors, learn, lambda shared: shared, lag, steps_per_update=10)
    state = SimpleNamespace(shared=jnp.zeros(()), shards=SimpleNamespace(key=jax.random.split(jax.random.key(0), 1)))
    with pipeline.running(limit):
        for _ in range(limit):
            before = int(state.shared)
            state, rollouts = pipeline.train(state, {}, np.int32(1), np.bool_(True))
            # The policy after `before - lag` updates, whenever the actors had time to act.
            assert rollouts == (max(before - lag, 0),) * 2
            metrics = pipeline.metrics()
            assert metrics["sebulba/policy_lag"] == metrics["sebulba/policy_lag_max"] == min(before, lag)
            # All rollouts are ready at once, up to the last ones of the run.
            assert metrics["sebulba/rollouts_waiting"] == min(lag + 1, limit - before)
            assert metrics["sebulba/actor_steps_per_second"] == 10
    # While the learner updates, one rollout less; in all, those that the run learns from.
    assert max(most) == lag
    assert [len(actor.policies) for actor in actors] == [limit, limit]
    assert all(actor.stopped for actor in actors)


@pytest.mark.slow
def test_sigterm_saves_and_the_run_resumes_with_new_episodes(tmp_path, monkeypatch, capfd):
    train, calls = Pipeline.train, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)
        return train(*args)

    monkeypatch.setattr(Pipeline, "train", interrupted)
    with pytest.raises(SystemExit) as exit_:
        stoix_like.train("ppo/ff_ppo", [*RUN, *KEEPER], run_dir=tmp_path / "run")
    assert exit_.value.code == 143
    saved = int(re.search(r"stopped after (\d+) env steps, saved", capfd.readouterr().err)[1])
    assert 0 < saved < UPDATES * LENGTH * ENVS
    result = stoix_like.resume(tmp_path / "run", ["logger=default"], trust=True)
    assert "without the episodes of its environments" in capfd.readouterr().out
    assert result.summary["updates"] == UPDATES
