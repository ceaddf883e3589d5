"""Runs on the Hugging Face Hub: `stoix-like push`, and `load_policy("hf://owner/name")`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from stoix_like.arch_config import ARCHITECTURES, ArchConfig, step_unit
from stoix_like.errors import ConfigError, DamagedError, require, resume_command
from stoix_like.loggers.formats import MIN_IQM, center_name
from stoix_like.storage import checkpoint, remote
from stoix_like.storage.config_file import plain_config
from stoix_like.storage.contents import read_json, reading
from stoix_like.storage.files import user_cache
from stoix_like.storage.run_files import CONFIG, ENVIRONMENT, METRICS, SUMMARY, check_is_run
from stoix_like.storage.store import reason

SCHEME = "hf://"
CARD = "README.md"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_ADDRESS = re.compile(rf"hf://?({_NAME.pattern})(?:@([\w./-]+))?")
_MAX_SUMMARY_BYTES = 2**28
# Inference reads no other items; a replay buffer can be larger than all of them.
_FILES = (CONFIG, ENVIRONMENT, METRICS, SUMMARY)
_ITEMS = ("_CHECKPOINT_METADATA", "commit_success.txt", "best/**", "shared/**", f"{checkpoint.HOST_STATE}/**")


def push(run_dir: str | Path, repo: str, *, private: bool = False) -> str:
    """Upload what inference needs of a run, and a model card, to a repository of the Hub.

    Uploaded are the configuration, the metrics, the summary, and the trained parameters of the newest checkpoint,
    without replay buffers. The token comes from `hf auth login` or the variable HF_TOKEN.
    """
    directory = remote.local_copy(run_dir, items=("best", "shared"))
    check_is_run(directory)
    if not _NAME.fullmatch(repo):
        raise ConfigError(f"repo={repo} is not the name of a repository: use owner/name")
    summary, steps = _summary(directory), checkpoint.steps(directory)
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
    try:
        checkpoint.check_files(directory, steps[-1])
    except DamagedError as error:
        raise ConfigError(f"run_dir={directory}: {error}") from error
    if links := [name for name in _FILES if (directory / name).is_symlink()]:
        raise ConfigError(f"run_dir={directory}: {links[0]} is a symbolic link: replace it by a file")
    try:
        api = hub.HfApi(library_name="stoix_like")
        api.create_repo(repo, private=private, exist_ok=True)
        api.upload_file(path_or_fileobj=text.encode(), path_in_repo=CARD, repo_id=repo)
        info = api.upload_folder(
            repo_id=repo,
            folder_path=directory,
            allow_patterns=[*_FILES, *(f"{newest}/{item}" for item in _ITEMS)],
            # The client deletes none of those that it uploads.
            delete_patterns=[f"{checkpoint.DIRECTORY}/**", *_FILES],
            commit_message=message,
        )
    except Exception as error:  # Errors of the transport belong to packages that the client may change.
        raise ConfigError(f"repo={repo}: the upload failed: {reason(error)}") from error
    return str(info.repo_url)


def local_run(run_dir: str | Path) -> Path:
    """Return the local directory of a run, after downloading it if it is one of the Hub or of an object store.

    The address of a run of the Hub is `hf://owner/name` or `hf://owner/name@revision`. Downloaded are only the files
    that `push` uploads. What they may do is checked as for any other run directory.
    """
    text = str(run_dir)
    if not text.startswith("hf:/") or Path(text).exists():
        return remote.local_copy(run_dir, items=("best", "shared")).absolute()
    address = _ADDRESS.fullmatch(text)
    if address is None:
        raise ConfigError(f"run_dir={text} is not an address of a run: use hf://owner/name or hf://owner/name@revision")
    repo, revision = address.groups()
    hub: Any = require("huggingface_hub", SCHEME, "hub")
    cache = user_cache() / "hub"
    try:
        commit = str(hub.HfApi(library_name="stoix_like").model_info(repo, revision=revision).sha)
        # The shared cache of the Hub consists of links, which runs may not contain.
        directory = cache / repo.replace("/", "--") / commit
        patterns = [*_FILES, *(f"{checkpoint.DIRECTORY}/*/{item}" for item in _ITEMS)]
        hub.snapshot_download(repo, revision=commit, local_dir=directory, allow_patterns=patterns)
    except Exception as error:  # See `push`.
        raise ConfigError(f"run_dir={SCHEME}{repo}: the download failed: {reason(error)}") from error
    return directory


def card(summary: Mapping[str, Any], repo: str, unit: str = "env steps", kept: str = "best") -> str:
    """Return the model card of a run: metadata that the Hub reads, the results, and how to use the policy."""
    system, environment = summary["system"], summary["environment"]
    mean, what = _return(summary, kept)
    metadata = {
        "library_name": "stoix_like",
        "tags": ["reinforcement-learning", "jax", "stoix_like", system, environment],
        "model-index": [
            {
                "name": repo,
                "results": [
                    {
                        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
                        "dataset": {"name": environment, "type": environment},
                        "metrics": [{"type": "mean_reward", "value": mean, "name": what, "verified": False}],
                    }
                ],
            }
        ],
    }
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


def _summary(directory: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = read_json(directory / SUMMARY, _MAX_SUMMARY_BYTES, {})
    except (OSError, ValueError) as error:
        raise ConfigError(f"run_dir={directory}: {SUMMARY} cannot be read: push a run that is complete") from error
    return summary
