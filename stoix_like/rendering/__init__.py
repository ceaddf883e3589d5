"""Rendering of episodes to animated gifs and mp4 files; needs matplotlib."""
