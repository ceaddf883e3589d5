"""Hyperparameter optimisation: sweeps, and tuning within a budget; needs the extra `tune`.

```python
import stoix_like

result = stoix_like.sweep("ppo/ff_ppo", ["env=gymnax/acrobot"], {"actor_lr": {"log_uniform": [1e-5, 1e-2]}}, trials=64)
result.best_params
```
"""

from __future__ import annotations

from typing import NoReturn

from stoix_like.errors import MissingExtraError

try:
    from stoix_like.lab.tuning.results import SweepResult, describe
    from stoix_like.lab.tuning.sweep import SweepConfig, from_command_line, sweep
    from stoix_like.lab.tuning.tune import TuneResult, describe_tuned, tune
except ModuleNotFoundError as error:
    _missing = MissingExtraError("tuning", str(error.name), "tune")

    def __getattr__(name: str) -> NoReturn:
        """Refuse what needs the extra; `progress`, which a run of `tune` names, needs none to resume."""
        raise _missing


__all__ = [
    "SweepConfig", "SweepResult", "TuneResult", "describe", "describe_tuned", "from_command_line", "sweep", "tune",
]  # fmt: skip
