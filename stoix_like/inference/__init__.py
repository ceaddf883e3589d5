"""Trained runs: their policies, evaluation and rendering."""
