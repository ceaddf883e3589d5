"""Proximal policy optimisation with environments on the accelerator."""
