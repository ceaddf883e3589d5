"""Trained policies as functions, and their files; what loads them from runs is in `inference`."""
