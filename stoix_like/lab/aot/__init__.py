"""Compilation for accelerators that are not in the machine: what a run needs there, without running it."""
