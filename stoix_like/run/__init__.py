"""The host side of a run, from its configuration to its result."""
