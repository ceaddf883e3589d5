"""Deterministic policy gradients with environments on the accelerator."""
