"""Rendering of episodes to animated gifs; needs matplotlib."""
