"""Residual torsos, under the import path of Stoix; see `networks.torso`."""

from stoix_like.networks.torso import ResNetTorso, VisualResNetTorso

__all__ = ["ResNetTorso", "VisualResNetTorso"]
