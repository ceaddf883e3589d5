"""Discovered update rules with environments on the accelerator."""
