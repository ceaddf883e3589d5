"""Statistics over runs, plots and reports; tables (`load`) need the extra `analysis`.

```python
from stoix_like import analysis

frame = analysis.load("runs")  # a tidy table of all evaluations
print(analysis.compare(["runs/ppo", "runs/dqn"]))
analysis.learning_curves(analysis.read("runs"))  # matplotlib axes
```
"""

from __future__ import annotations

from stoix_like.lab.analysis.comparison import Comparison, Settings, compare, compare_all
from stoix_like.lab.analysis.dreams import draw_dream
from stoix_like.lab.analysis.frame import load
from stoix_like.lab.analysis.groups import AlgorithmRuns, read
from stoix_like.lab.analysis.learned import (
    critic_slice,
    draw_critic,
    draw_policy,
    draw_trajectory,
    histogram,
    policy_slice,
    trajectories,
)
from stoix_like.lab.analysis.memory_plot import draw_memory
from stoix_like.lab.analysis.plots import learning_curves, performance_profiles, sample_efficiency
from stoix_like.lab.analysis.population_plots import heat_map, hyperparameter_slices, lineage
from stoix_like.lab.analysis.slices import Slice, take_slice

__all__ = [
    "AlgorithmRuns", "Comparison", "Settings", "Slice", "compare", "compare_all", "critic_slice", "draw_critic",
    "draw_dream", "draw_memory", "draw_policy", "draw_trajectory", "heat_map", "histogram", "hyperparameter_slices",
    "learning_curves", "lineage", "load", "performance_profiles", "policy_slice", "read", "sample_efficiency",
    "take_slice", "trajectories",
]  # fmt: skip
