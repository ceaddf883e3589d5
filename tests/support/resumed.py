"""Runs that stop and continue."""

from stoix_like.storage import checkpoint
from support.comparisons import assert_same_state, without_times


def assert_resumed_equals_whole(training_loop, tmp_path, check=lambda resumed: None):
    """Train a run whole, and a second one from its second checkpoint on; both end bit-identical; return the first loop.

    `training_loop` builds a loop with a writer, and `check` receives the second loop after it was restored.
    """
    whole = training_loop(checkpoint.Writer(tmp_path, 9))
    whole.train()
    whole.writer.close()
    resumed = training_loop(checkpoint.Writer(tmp_path / "other", 9))
    resumed.restore(checkpoint.read(tmp_path, checkpoint.steps(tmp_path)[1], resumed.targets()))
    check(resumed)
    resumed.train()
    resumed.writer.close()
    assert without_times(resumed.history) == without_times(whole.history)
    assert_same_state(resumed.state, whole.state)
    return whole
