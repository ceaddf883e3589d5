import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TINY = ["arch.total_timesteps=2048", "arch.num_evaluation=1", "arch.num_eval_episodes=2"]


def succeed(command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    succeed([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT])
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The programs of a fresh environment, after the steps of the Dockerfile without its extras."""
    steps = [line.partition(" ") for line in (ROOT / "Dockerfile").read_text().splitlines()]
    files, path = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("environment")
    for *sources, target in (rest.split() for step, _, rest in steps if step == "COPY"):
        for source in (ROOT / name for name in sources):
            (shutil.copytree if source.is_dir() else shutil.copy)(source, files / target)
    venv.create(path, with_pip=True)
    (install,) = (rest for step, _, rest in steps if step == "RUN" and rest.startswith("pip install"))
    variables = {**os.environ, "PATH": f"{path / 'bin'}{os.pathsep}{os.environ['PATH']}", "EXTRAS": ""}
    succeed(["bash", "-c", install], cwd=files, env=variables)
    return path / "bin"


@pytest.mark.slow
def test_the_wheel_contains_the_launcher_for_ray(wheel):
    assert "hydra_plugins/stoix_like_ray/__init__.py" in zipfile.ZipFile(wheel).namelist()


def test_the_wheel_contains_every_yaml_file(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".yaml")}
    expected = {
        f"stoix_like/configs/{path.relative_to(ROOT / 'configs')}" for path in (ROOT / "configs").rglob("*.yaml")
    }
    assert packed == expected | {"stoix_like/foreign_keys.yaml"}


@pytest.mark.slow
def test_the_installed_wheel_launches_from_any_directory(environment, tmp_path):
    # No variables of this checkout or its environment.
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {"JAX_PLATFORMS": "cpu"}
    succeed([environment / "stoix-like", "train", *TINY, "arch.seed=5"], cwd=tmp_path, env=bare)
    (run_dir,) = (tmp_path / "runs/ppo/ff_ppo/CartPole-v1").iterdir()
    assert json.loads((run_dir / "summary.json").read_text())["seed"] == 5

    code = "import stoix_like, sys; print(stoix_like.train('ppo/ff_ppo', sys.argv[1:], run_dir='here').eval_return)"
    command = [environment / "python", "-c", code, *TINY, "logger=silent"]
    assert float(succeed(command, cwd=tmp_path, env=bare)) > 0

    # The core has no optional loggers; the refusal names the extra of where it was installed from.
    refused = subprocess.run(
        [environment / "stoix-like", "train", "logger=wandb"], cwd=tmp_path, env=bare, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "logger.wandb needs the package 'wandb': pip install '" in refused.stderr
    assert refused.stderr.endswith("[loggers]'\n")
