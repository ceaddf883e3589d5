"""Programs in the form that they have on accelerators, run on a CPU."""

from __future__ import annotations

import sys

import pytest

from stoix_like.utils.accelerate import platform


def take_accelerator_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every function of the package that has a form of its own for CPUs take the other one."""
    on_cpu = platform.on_cpu
    for name, module in list(sys.modules.items()):
        if name.startswith("stoix_like") and getattr(module, "on_cpu", None) is on_cpu:
            monkeypatch.setattr(module, "on_cpu", lambda: False)
