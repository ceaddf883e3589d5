"""Files of a run: its directory, configuration and checkpoints, and the check that they can be trusted."""
