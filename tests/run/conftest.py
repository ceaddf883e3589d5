import pytest

from support.commands import variables


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return variables of processes that compile as users' runs do, for tests that compare bits."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return variables(JAX_COMPILATION_CACHE_DIR=cache, JAX_DISABLE_MOST_OPTIMIZATIONS="0")
