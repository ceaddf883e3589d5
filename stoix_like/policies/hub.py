"""Runs on the Hugging Face Hub: `load_policy("hf://owner/name")`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from stoix_like.errors import ConfigError, require
from stoix_like.storage import checkpoint, remote
from stoix_like.storage.contents import in_one_line
from stoix_like.storage.files import user_cache
from stoix_like.storage.run_files import CONFIG, ENVIRONMENT, METRICS, SUMMARY

SCHEME = "hf://"
NAME = re.compile(r"[\w.-]+/[\w.-]+")
_ADDRESS = re.compile(rf"hf://?({NAME.pattern})(?:@([\w./-]+))?")
# Inference reads no other items; a replay buffer can be larger than all of them.
FILES = (CONFIG, ENVIRONMENT, METRICS, SUMMARY)
ITEMS = ("_CHECKPOINT_METADATA", "commit_success.txt", "best/**", "shared/**", f"{checkpoint.HOST_STATE}/**")


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
        patterns = [*FILES, *(f"{checkpoint.DIRECTORY}/*/{item}" for item in ITEMS)]
        hub.snapshot_download(repo, revision=commit, local_dir=directory, allow_patterns=patterns)
    except Exception as error:  # Of packages that the client may change.
        raise ConfigError(f"run_dir={SCHEME}{repo}: the download failed: {in_one_line(error)}") from error
    return directory
