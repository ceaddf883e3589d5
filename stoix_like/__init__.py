"""Reinforcement learning in JAX with whole training runs compiled into one program.

```python
import stoix_like

result = stoix_like.train("ppo/ff_ppo", ["env=gymnax/cartpole", "arch.seed=1"])
result.eval_return, result.run_dir
```
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stoix_like.errors import ConfigError, MissingExtraError, TrainingError

if TYPE_CHECKING:
    from stoix_like.inference.policy import Policy
    from stoix_like.run.experiment import Result

__all__ = ["ConfigError", "MissingExtraError", "TrainingError", "load_policy", "resume", "train"]


def train(
    system: str,
    overrides: Sequence[str] = (),
    *,
    run_dir: str | Path | None = None,
    config_dir: str | Path | None = None,
) -> Result:
    """Train a system from Python, as the command line would.

    Args:
        system: as in `stoix-like list systems`, `"ppo/ff_ppo"`.
        overrides: hydra overrides, `["env=gymnax/cartpole", "arch.seed=1"]`.
        run_dir: the directory to write to; by default `runs/<system>/<environment>/<time>-seed<seed>`.
        config_dir: a directory of yaml files of your own, laid out like the package's `configs`.

    Returns:
        What the run came to: `eval_return`, `run_dir`, `summary`, `history`, `members`.

    Raises:
        ConfigError: the configuration cannot be run; a `ValueError` that names the key, the value and what would do.
        TrainingError: a metric or a parameter was no finite number any more.
    """
    # Imported here, so that using one loss function does not import hydra and every environment.
    from stoix_like.config import compose_config, parse_config
    from stoix_like.run import experiment
    from stoix_like.run.setup import set_up

    extra = [] if config_dir is None else [config_dir]
    composed = compose_config([f"system={system}", *overrides], extra, return_hydra_config=True)
    directory = Path(composed.hydra.run.dir if run_dir is None else run_dir)
    return experiment.run(set_up(parse_config(composed)), directory)


def resume(run_dir: str | Path, overrides: Sequence[str] = (), *, trust: bool = False) -> Result:
    """Go on with a run that was stopped or killed, or that has a larger budget now, in its own directory.

    Args:
        run_dir: the directory of the run.
        overrides: of what may change: the budget (`["arch.total_timesteps=1e6"]`), logging, checkpoints.
        trust: execute what the files of the run name, wherever it comes from.

    Returns:
        What the run came to, as if it had never been stopped.

    Raises:
        ConfigError: there is no such run, another process is at it, or its configuration was changed.
        TrainingError: a metric or a parameter was no finite number any more.
    """
    from stoix_like.run import experiment

    return experiment.resume(Path(run_dir), overrides, trust)


def load_policy(
    run_dir: str | Path,
    which: str = "best",
    member: int | Literal["best"] | None = None,
    greedy: bool | None = None,
    trust: bool = False,
) -> Policy:
    """Load what a run has trained: `policy(observation)` is an action in the units of the environment.

    Args:
        run_dir: the directory of the run.
        which: `best`, the parameters that evaluated best; `last`; or the steps of a checkpoint that is kept.
        member: of a population; by default the best one.
        greedy: act by the mode of the policy; by default as the run's `arch.evaluation_greedy` says.
        trust: execute what the files of the run name, wherever it comes from.

    Returns:
        The policy, which can also be exported.

    Raises:
        ConfigError: there is no such run, checkpoint or member, or it cannot be used as a policy.
    """
    from stoix_like.inference import policy

    return policy.load_policy(run_dir, which, member, greedy, trust)
