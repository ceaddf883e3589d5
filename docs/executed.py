"""The commands of a page with what they print and draw, for pages that are executed when the documentation is built."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"--(?:out|render) (\S+\.(?:png|gif))")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_TIMEOUT = 600  # seconds of a block, on a machine that is busy


def with_outputs(text: str, directory: Path, name: str) -> tuple[str, dict[str, bytes]]:
    """Execute the blocks of shell commands and of Python of a page.

    Args:
        text: the page.
        directory: an empty directory to execute them in.
        name: name of the page, with which the names of its pictures start.

    Returns:
        The page with the output behind each block, and its pictures by file name.

    Raises:
        RuntimeError: a command failed.
    """
    pictures: dict[str, bytes] = {}

    def shown(block: re.Match[str]) -> str:
        language, code = block.groups()
        parts = [block[0].rstrip("\n"), f"```text\n{_output(language, code, directory)}\n```"]
        for file in _PICTURE.findall(code):
            pictures[f"{name}-{file}"] = (directory / file).read_bytes()
            parts.append(f"![{file}](../images/{name}-{file})")
        return "\n\n".join(parts) + "\n"

    return _BLOCK.sub(shown, text), pictures


def _output(language: str, code: str, directory: Path) -> str:
    """Return what a block prints, without the path of the directory."""
    command = ["sh", "-ec", code] if language == "sh" else [sys.executable, "-c", code]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the block\n{code}ended with {done.returncode}:\n{done.stdout}")
    return _ESCAPES.sub("", done.stdout).replace(f"{directory}/", "").rstrip()
