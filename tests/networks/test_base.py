import subprocess
import sys

import pytest


@pytest.mark.slow
def test_networks_import_neither_hydra_nor_orbax_nor_omegaconf():
    modules = "import sys, stoix_like.networks.heads, stoix_like.networks.base; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", modules], capture_output=True, text=True, check=True).stdout
    assert not {"hydra", "orbax", "omegaconf"} & set(imported.split())
