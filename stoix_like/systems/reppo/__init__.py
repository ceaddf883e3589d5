"""Relative entropy pathwise policy optimisation."""
