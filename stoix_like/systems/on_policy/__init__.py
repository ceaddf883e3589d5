"""Algorithms that learn from their last rollout."""
