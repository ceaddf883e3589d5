"""Statistics over runs, plots and reports; needs the extra `analysis`.

```python
from stoix_like import analysis

frame = analysis.load("runs")  # a tidy table of all evaluations
print(analysis.compare(["runs/ppo", "runs/dqn"]))
analysis.learning_curves(analysis.read("runs"))  # matplotlib axes
```
"""

from __future__ import annotations

from stoix_like.errors import MissingExtraError

try:
    from stoix_like.analysis.comparison import Comparison, Settings, compare
    from stoix_like.analysis.frame import load
    from stoix_like.analysis.groups import Algorithm, read
    from stoix_like.analysis.plots import (
        heat_map,
        hyperparameter_slices,
        learning_curves,
        lineage,
        performance_profiles,
        sample_efficiency,
    )
except ModuleNotFoundError as error:
    raise MissingExtraError("stoix_like.analysis", str(error.name), "analysis") from error

__all__ = [
    "Algorithm",
    "Comparison",
    "Settings",
    "compare",
    "heat_map",
    "hyperparameter_slices",
    "learning_curves",
    "lineage",
    "load",
    "performance_profiles",
    "read",
    "sample_efficiency",
]
