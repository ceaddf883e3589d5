"""Deterministic policy gradients."""
