import pytest

from stoix_like import cli


@pytest.fixture
def refused(capfd):
    """Return a function that runs a command which exits with code 2, and returns what it says."""

    def run(*words):
        with pytest.raises(SystemExit) as stopped:
            cli.main([*map(str, words)])
        out, err = capfd.readouterr()
        assert (stopped.value.code, out) == (2, "")
        return err

    return run
