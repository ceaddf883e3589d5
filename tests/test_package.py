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


@pytest.mark.slow
def test_help_on_the_package_needs_no_extra():
    code = (
        "import sys, pydoc; sys.modules['optuna'] = None; import stoix_like; print(len(pydoc.render_doc(stoix_like)))"
    )
    assert int(_printed(code)) > 0


def test_modules_of_the_package_are_imported_when_they_are_read():
    assert _printed("import stoix_like; print(stoix_like.utils.__name__)") == "stoix_like.utils\n"
    assert {"analysis", "loggers", "tune"} <= {*dir(stoix_like)}
    assert "Any" not in dir(stoix_like)


def test_importing_the_package_does_not_read_its_version():
    code = "import sys, stoix_like; assert 'importlib.metadata' not in sys.modules"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=Path(stoix_like.__file__).parent.parent, check=True)


def _printed(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_functions_of_the_package_are_those_of_their_modules_and_imported_on_first_use():
    code = (
        "import sys, stoix_like; before = {'jax', 'hydra', 'numpy'} & set(sys.modules);"
        "from stoix_like.inference import evaluation, load;"
        "same = stoix_like.evaluate is evaluation.evaluate and stoix_like.load_policy is load.load_policy;"
        "print(before, same, {'evaluate', 'load_policy'} <= set(stoix_like.__all__))"
    )
    assert _printed(code) == "set() True True\n"


@pytest.mark.slow
def test_packages_that_only_tracing_or_saving_needs_are_imported_on_first_use():
    code = (
        "import sys, stoix_like.run.experiment, stoix_like.systems.ppo.anakin.ff_ppo, stoix_like.networks.base;"
        "from stoix_like.networks import heads, distributions;"
        "print({'distrax', 'flashbax', 'gymnax', 'matplotlib', 'orbax', 'scipy'} & set(sys.modules));"
        "print(distributions.Categorical.__module__)"
    )
    assert _printed(code) == "set()\nstoix_like.networks.distributions.discrete\n"


@pytest.mark.slow
def test_all_names_are_imported_without_the_extra_tune():
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "from stoix_like import *\n"
        "import stoix_like; print(train is stoix_like.train, 'sweep' in globals())\n"
        "try: stoix_like.sweep\n"
        "except MissingExtraError as error: print('[tune]' in str(error))"
    )
    assert _printed(code) == "True False\nTrue\n"
