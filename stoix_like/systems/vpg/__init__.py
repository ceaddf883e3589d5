"""Vanilla policy gradients."""
