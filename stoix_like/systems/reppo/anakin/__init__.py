"""Relative entropy pathwise policy optimisation with environments on the accelerator."""
