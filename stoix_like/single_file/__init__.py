"""Algorithms in one file each, which import nothing of this package: to read, to copy and to change.

`stoix-like eject SYSTEM` writes one of them with the settings of a configuration or of a run. The tests find the same
parameters as those of the systems of this package, update by update.
"""
