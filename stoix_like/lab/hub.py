"""Trained runs for the Hugging Face Hub: `stoix-like push`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from stoix_like.arch_config import ARCHITECTURES, ArchConfig, step_unit
from stoix_like.errors import ConfigError, require, resume_command
from stoix_like.loggers.formats import MIN_IQM, center_name
from stoix_like.policies.hub import FILES, ITEMS, NAME, SCHEME
from stoix_like.storage import checkpoint, remote
from stoix_like.storage.config_file import plain_config
from stoix_like.storage.contents import in_one_line, reading
from stoix_like.storage.run_files import SUMMARY, check_is_run, read_summary

CARD = "README.md"


def push(run_dir: str | Path, repo: str, *, private: bool = False) -> str:
    """Upload what inference needs of a run, and a model card, to a repository of the Hub.

    Uploaded are the configuration, the metrics, the summary, and the trained parameters of the newest checkpoint,
    without replay buffers. The token comes from `hf auth login` or the variable HF_TOKEN.
    """
    directory = remote.local_copy(run_dir, items=("best", "shared"))
    check_is_run(directory)
    if not NAME.fullmatch(repo):
        raise ConfigError(f"repo={repo} is not the name of a repository: use owner/name")
    summary, steps = read_summary(directory), checkpoint.steps(directory)
    if not steps:
        raise ConfigError(f"run_dir={directory} holds no checkpoint: push a run that saved one")
    text, message = _written_of(summary, repo, directory)
    if steps[-1] != (end := summary["env_steps"]):
        raise ConfigError(
            f"run_dir={directory}: its newest checkpoint is of {steps[-1]:,} steps, its results are of {end:,}: write"
            f" one with {resume_command(directory)}"
        )
    hub: Any = require("huggingface_hub", SCHEME, "hub")
    newest = f"{checkpoint.DIRECTORY}/{steps[-1]}"
    # The client would upload what links point to.
    paths = [directory / newest, *(directory / newest).rglob("*"), *(directory / name for name in FILES)]
    if links := [path.relative_to(directory) for path in paths if path.is_symlink()]:
        raise ConfigError(f"run_dir={directory}: {links[0]} is a symbolic link: replace it by a file")
    try:
        api = hub.HfApi(library_name="stoix_like")
        api.create_repo(repo, private=private, exist_ok=True)
        api.upload_file(path_or_fileobj=text.encode(), path_in_repo=CARD, repo_id=repo)
        info = api.upload_folder(
            repo_id=repo,
            folder_path=directory,
            allow_patterns=[*FILES, *(f"{newest}/{item}" for item in ITEMS)],
            # The client deletes none of those that it uploads.
            delete_patterns=[f"{checkpoint.DIRECTORY}/**", *FILES],
            commit_message=message,
        )
    except Exception as error:  # Errors of the transport belong to packages that the client may change.
        raise ConfigError(f"repo={repo}: the upload failed: {in_one_line(error)}") from error
    return str(info.repo_url)


def card(summary: Mapping[str, Any], repo: str, unit: str = "env steps", kept: str = "best") -> str:
    """Return the model card of a run: metadata that the Hub reads, the results, and how to use the policy."""
    system, environment = summary["system"], summary["environment"]
    mean, what = _return(summary, kept)
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    metric = {"type": "mean_reward", "value": mean, "name": what, "verified": False}
    result = {"task": task, "dataset": {"name": environment, "type": environment}, "metrics": [metric]}
    tags = ["reinforcement-learning", "jax", "stoix_like", system, environment]
    model = {"name": repo, "results": [result]}
    metadata = {"library_name": "stoix_like", "tags": tags, "model-index": [model]}
    versions = ", ".join(f"{name} {version}" for name, version in summary.get("versions", {}).items() if version)
    return f"""---
{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---

# {system} on {environment}

- return: {mean} ({what})
- {unit}: {summary["env_steps"]:,}
- versions: {versions}

```python
import stoix_like

policy = stoix_like.load_policy("{SCHEME}{repo}")
```

```sh
stoix-like evaluate {SCHEME}{repo}
```
"""


def _written_of(summary: Mapping[str, Any], repo: str, directory: Path) -> tuple[str, str]:
    """Return the model card of a run and the message of its upload, before anything is created on the Hub."""
    config = plain_config(directory)
    name = config.get("arch", {}).get("architecture_name")
    kept = "last" if ARCHITECTURES.get(name, ArchConfig).keeps_last else "best"
    with reading(f"run_dir={directory}: {SUMMARY}", "push a run that is complete"):
        return card(summary, repo, step_unit(config), kept), f"{summary['system']} on {summary['environment']}"


def _return(summary: Mapping[str, Any], kept: str) -> tuple[str, str]:
    """Return the final return with its interval or deviation, and what these are."""
    prefix = "absolute" if "absolute/episode_return_mean" in summary else "eval"
    which = f"{kept} parameters" if prefix == "absolute" else "last evaluation"

    def value(name: str) -> str:
        found = summary[f"{prefix}/episode_return_{name}"]
        return "nan" if found is None else f"{found:.2f}"

    if f"{prefix}/episode_return_iqm" in summary:
        interval = f"{value('iqm')} [{value('ci_low')}, {value('ci_high')}]"
        center = center_name(summary.get("population/size", MIN_IQM))
        return interval, f"{center} over a population, with its 95 % interval, {which}"
    return f"{value('mean')} +/- {value('std')}", f"mean and standard deviation over episodes, {which}"
