from stoix_like.loggers.formats import format_timing
from stoix_like.run.summary import ENVIRONMENT, LEARNING, LOGGING_MEANWHILE


def test_the_timing_names_the_longest_phases_first():
    timing = {"startup": 3.14, "training": 12.0, "logging": 0.01, LOGGING_MEANWHILE: 5.0, "total": 15.2}
    assert format_timing(timing) == "15.2 s: training 12.0, startup 3.1"
    estimated = {**timing, ENVIRONMENT: 4.0, LEARNING: 8.0}
    assert format_timing(estimated) == "15.2 s: training 12.0 (environment 4.0, learning 8.0), startup 3.1"
