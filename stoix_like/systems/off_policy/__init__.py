"""Algorithms that learn from a replay buffer."""
