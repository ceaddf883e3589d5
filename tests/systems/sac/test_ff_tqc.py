"""Tests of TQC; `test_time_limits` tests the values that it learns."""

import pytest

from stoix_like.errors import ConfigError
from support.off_policy_runs import set_up_small


def test_dropping_all_quantiles_raises():
    with pytest.raises(
        ConfigError, match=r"num_dropped_quantiles=4 must be less than system.num_quantiles=4: use at most 3"
    ):
        set_up_small("sac/ff_tqc", "system.num_quantiles=4", "system.num_dropped_quantiles=4")
