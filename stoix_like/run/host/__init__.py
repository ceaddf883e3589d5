"""Processes, devices, sizes and the saved state of a run."""
