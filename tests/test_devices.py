import os
import subprocess
import sys
from unittest.mock import Mock

import jax
import pytest

from stoix_like import devices
from stoix_like.errors import ConfigError


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "nonsense"])
def test_a_platform_that_jax_cannot_use_is_refused(platform, tmp_path):
    code = "from stoix_like import devices\ntry: devices.find_devices(None)\nexcept ValueError as e: print(e)"
    environment = {**os.environ, "JAX_PLATFORMS": platform}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith(f"JAX_PLATFORMS={platform} cannot be used")
    assert "JAX_PLATFORMS=cpu" in done.stdout


def test_environments_on_the_host_need_a_cpu_device(monkeypatch):
    """As where `JAX_PLATFORMS=cuda` has a GPU: jax then refuses to name devices of the CPU."""
    devices.check_host_calls("gymnasium/CartPole-v1")
    monkeypatch.setattr(jax, "local_devices", Mock(side_effect=RuntimeError("Unknown backend cpu")))
    with pytest.raises(ConfigError, match=r"JAX_PLATFORMS=.* leaves out the CPU, .*CartPole-v1 on the host: .*,cpu"):
        devices.check_host_calls("gymnasium/CartPole-v1")


RESERVES = """
import jax
from stoix_like.devices import reserve
jax.config.update("jax_num_cpu_devices", 3)
reserve(1)
print(jax.config.values["jax_num_cpu_devices"], len(jax.devices()))
"""


@pytest.mark.slow
def test_devices_that_the_program_has_asked_for_stay():
    unset = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")}
    done = subprocess.run([sys.executable, "-c", RESERVES], capture_output=True, text=True, env=unset)
    assert done.stdout == "3 3\n", done.stderr
