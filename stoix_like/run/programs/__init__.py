"""The jitted and compiled programs of a run."""
