"""Soft actor-critic with environments on the accelerator."""
