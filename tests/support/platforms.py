"""Programs in the form that they have on accelerators, run on a CPU."""

import sys

from stoix_like.utils.accelerate import platform


def take_accelerator_forms(monkeypatch, gpu=True):
    """Let every function of the package that has forms of its own for platforms take those for GPUs, or TPUs."""
    answers = {"on_cpu": (platform.on_cpu, lambda: False), "on_gpu": (platform.on_gpu, lambda: gpu)}
    for name, module in list(sys.modules.items()):
        for asked, (function, answer) in answers.items():
            if name.startswith("stoix_like") and getattr(module, asked, None) is function:
                monkeypatch.setattr(module, asked, answer)
