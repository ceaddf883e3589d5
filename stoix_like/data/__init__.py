"""Data sets of recorded episodes: their layout, their files, and their checks."""
