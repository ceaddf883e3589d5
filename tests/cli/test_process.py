import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from stoix_like.cli import process
from stoix_like.errors import ConfigError

TINY = ["arch.total_timesteps=2048", "arch.num_evaluation=1", "arch.num_eval_episodes=2", "arch.total_num_envs=4"]


def test_text_from_elsewhere_does_not_control_the_terminal(capsys):
    process.show("a\x1b[31m\tb\n\u202ec\x9b")
    with pytest.raises(SystemExit), process.one_line_errors():
        raise ConfigError("d\x07")
    printed = capsys.readouterr()
    assert printed.out == "a\\x1b[31m\tb\n\\u202ec\\x9b\n"
    assert printed.err == "stoix-like: d\\x07\n"


def test_a_device_without_memory_is_told_in_one_line(capsys):
    with pytest.raises(SystemExit) as exit_info, process.one_line_errors():
        jax.jit(lambda: jnp.ones(2**46))()
    assert exit_info.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"stoix-like: RESOURCE_EXHAUSTED: Out of memory .*; end other programs on the device, .*", line)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # As the compiler of a GPU that could run no kernel to choose one.
        (
            "NOT_FOUND: All configs failed during profiling.\nFailures (2):\n"
            "EXECUTION FAILED: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 76.00MiB",
            "EXECUTION FAILED: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 76.00MiB; end other ",
        ),
        ("RESOURCE_EXHAUSTED: a kernel needs 300 KiB of shared memory", None),
        ("INTERNAL: RESOURCE_EXHAUSTED: ", None),
    ],
)
def test_only_missing_memory_of_a_device_is_told_in_one_line(text, said, capsys):
    with pytest.raises(SystemExit if said else jax.errors.JaxRuntimeError), process.one_line_errors():
        raise jax.errors.JaxRuntimeError(text)
    assert capsys.readouterr().err.startswith(f"stoix-like: {said}" if said else "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["list systems", "list networks", "--help", "--version"])
def test_closed_output_is_no_error(command):
    module = [sys.executable, "-m", "stoix_like", *command.split()]
    started = subprocess.Popen(module, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    started.stdout.close()
    assert started.stderr.read() == b""
    started.stderr.close()
    assert started.wait() == 0


@pytest.mark.slow
def test_output_that_cannot_be_written_is_reported_in_one_line():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "stoix_like", "list", "systems"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "stoix-like: cannot write to standard output: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("size", [300, 838])
def test_a_disk_too_full_for_the_configuration_is_one_line(size, tmp_path):
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}));"
    command = [sys.executable, "-c", f"{limit} from stoix_like.cli import main; main()", "train", *TINY]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    options = [f"hydra.run.dir={tmp_path}/run", "logger=silent"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, env=environment)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("stoix-like: cannot write the run: ")
    assert done.stderr.count("\n") == 1
