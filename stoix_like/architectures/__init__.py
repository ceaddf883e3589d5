"""Compiled programs for training and evaluation on a device mesh, without any file access."""
