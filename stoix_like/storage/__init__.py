"""Files of a run: its directory, checkpoints, configuration, and what may be trusted in them."""
