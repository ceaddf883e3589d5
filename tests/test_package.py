import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import stoix_like
from stoix_like.networks import distributions


def test_the_package_has_the_version_it_was_installed_with():
    assert stoix_like.__version__ == importlib.metadata.version("stoix_like")
    assert "__version__" in stoix_like.__all__
    with pytest.raises(AttributeError, match="module 'stoix_like' has no attribute '__versoin__'"):
        stoix_like.__versoin__  # noqa: B018


def test_the_names_of_the_package_are_listed_before_their_first_use():
    assert {*stoix_like.__all__} <= {*dir(stoix_like)}
    assert {*distributions.__all__} <= {*dir(distributions)}


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        # Parsing the command line imports neither hydra nor jax.
        ("import sys, stoix_like.cli; print({'hydra', 'jax', 'numpy'} & set(sys.modules))", "set()\n"),
        ("import stoix_like; print(stoix_like.utils.__name__)", "stoix_like.utils\n"),
        ("import sys, stoix_like; print('importlib.metadata' in sys.modules)", "False\n"),
        pytest.param(
            "import sys; sys.modules['optuna'] = None; import pydoc, stoix_like;"
            "print(len(pydoc.render_doc(stoix_like)) > 0)",
            "True\n",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import sys, stoix_like; before = {'jax', 'hydra', 'numpy'} & set(sys.modules);"
            "from stoix_like.inference import evaluation; from stoix_like.policies import load;"
            "print(before, stoix_like.evaluate is evaluation.evaluate, stoix_like.load_policy is load.load_policy)",
            "set() True True\n",
            marks=pytest.mark.slow,
        ),
        # Only tracing, saving or drawing needs these.
        pytest.param(
            "import sys, stoix_like.run.experiment, stoix_like.systems.ppo.anakin.ff_ppo, stoix_like.networks.base;"
            "import stoix_like.envs.suites.gymnax; from stoix_like.networks import heads, distributions;"
            "print({'distrax', 'flashbax', 'matplotlib', 'orbax', 'pandas', 'scipy', 'wandb'} & set(sys.modules));"
            "print(distributions.Categorical.__module__)",
            "set()\nstoix_like.networks.distributions.discrete\n",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import sys; sys.modules['optuna'] = None\n"
            "from stoix_like import *\n"
            "import stoix_like; print(train is stoix_like.train, 'sweep' in globals())\n"
            "try: stoix_like.sweep\n"
            "except MissingExtraError as error: print('[tune]' in str(error))\n"
            # What resumes a run of `tune` builds from its configuration.
            "from stoix_like.lab.tuning.progress import TuningProgress; print(TuningProgress.__name__)",
            "True False\nTrue\nTuningProgress\n",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_modules_are_imported_on_first_use(code, printed):
    root = Path(stoix_like.__file__).parent.parent
    site = ["-S"] if "importlib.metadata" in code else []
    done = subprocess.run([sys.executable, *site, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == printed
