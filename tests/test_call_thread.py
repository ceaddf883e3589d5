import threading

import pytest

from stoix_like import call_thread
from stoix_like.call_thread import CallThread, NoAnswerError


def test_a_call_returns_or_raises_in_the_caller():
    thread = CallThread()
    assert thread.call(threading.current_thread, 10.0) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0, 10.0)
    thread.close()


@pytest.mark.slow
def test_a_call_that_hangs_is_left_and_later_ones_wait_for_it(monkeypatch):
    monkeypatch.setattr(call_thread, "_SECONDS_BETWEEN_CHECKS", 0.05)
    thread, gate, waited = CallThread(), threading.Event(), []
    with pytest.raises(NoAnswerError, match="no answer within 1 seconds"):
        thread.call(gate.wait, 1.0, waited.append)
    assert waited
    assert 0.04 < waited[0] <= waited[-1] < 1.0
    with pytest.raises(NoAnswerError):
        thread.call(lambda: 1, 0.01)
    gate.set()
    assert thread.call(lambda: 2, 10.0) == 2
    thread.close()
