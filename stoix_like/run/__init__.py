"""The host's side of a run: everything between a configuration and its result."""
