import jax
import pytest

from stoix_like.errors import ConfigError
from stoix_like.loggers import MultiLogger
from stoix_like.run.set_up import memory_estimate
from stoix_like.run.training_loop import TrainingLoop
from support.set_ups import loop_of, setup_of
from support.toy_runs import TOY_RUN
from support.trained_runs import TINY

SMALL = [*TINY, "arch.compile_cache=false"]


@pytest.mark.slow
def test_a_population_that_does_not_fit_into_memory_is_refused(monkeypatch):
    # More than the arrays of the estimate, less than the program.
    monkeypatch.setattr(memory_estimate, "memory_of", lambda device: 65_000)
    with pytest.raises(ConfigError, match=r"arch.population.size=40 needs \d.* \(40 member\(s\) × .*use at most 3\d$"):
        loop_of(*TOY_RUN, "arch.population.size=40")


@pytest.mark.slow
def test_the_best_parameters_are_kept_beside_the_last_ones(monkeypatch):
    resident = []
    monkeypatch.setattr(memory_estimate, "check", lambda *args, **_: resident.append(args[4]))
    for absolute_metric in ("true", "false"):
        loop = loop_of(*SMALL, "checkpoint.keep_best=false", f"arch.absolute_metric={absolute_metric}")
    training_with, evaluation_with, training, evaluation = resident
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(loop.state.shared))
    assert (training_with - training, evaluation_with - evaluation, training) == (size, size, 0)


@pytest.mark.slow
def test_rollouts_that_wait_for_the_learner_are_counted(monkeypatch):
    """Each of 16 in the queue has 32 steps of 4 environments: at least the 4 floats of two observations of each."""
    resident = []
    monkeypatch.setattr(memory_estimate, "check", lambda *args, **_: resident.append(args[4]))
    for size in (0, 1, 16):
        loop_of(*SMALL, "arch=sebulba", "env=gymnasium/cartpole", f"arch.pipeline_queue_size={size}")
    none, one, all_ = resident[::2]
    assert all_ - none == 16 * (one - none)
    assert one - none >= 32 * 4 * 2 * 4 * 4


@pytest.mark.slow
def test_a_run_that_does_not_fit_into_memory_is_refused_with_the_keys_to_reduce():
    # More than the arrays of the estimate, less than the program.
    setup = setup_of(*SMALL)._replace(device_memory=3_000)
    with pytest.raises(ConfigError, match="the run needs .* MiB per device, .*: use a smaller arch.total_num_envs"):
        TrainingLoop(setup, MultiLogger([]))
