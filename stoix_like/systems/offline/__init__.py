"""Learning from recorded data: imitation, and values of the actions of the data."""
