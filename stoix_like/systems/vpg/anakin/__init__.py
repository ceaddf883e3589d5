"""Vanilla policy gradients with environments on the accelerator."""
