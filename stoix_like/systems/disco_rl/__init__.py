"""Discovered reinforcement learning: update rules that are networks."""
