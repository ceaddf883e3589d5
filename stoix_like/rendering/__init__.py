"""Rendering of episodes to animated gifs and mp4 files; needs matplotlib.

`VectorEnvironment.scene()` is all that rendering asks of an environment: a `Scene` draws the entries of a
`RecordedEpisode` on matplotlib axes, by default the images of the observation. Environments on the host have no state
to draw later: `envs.factory.make_drawn` builds them with pictures and without automatic reset, and the recorder takes a
picture after every step, in the thread that called it, because OpenGL belongs to a thread.
"""
