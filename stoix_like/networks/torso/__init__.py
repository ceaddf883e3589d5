"""Torsos: maps from the output of an input layer to an embedding."""

from stoix_like.networks.torso.images import CNNTorso, GridTorso, VisualResNetTorso, as_images
from stoix_like.networks.torso.perceptrons import BatchRenormMLPTorso, MLPTorso, NoisyMLPTorso, SimNormTorso, XQCTorso
from stoix_like.networks.torso.residual import BroTorso, DeepResNetTorso, ResNetTorso, SimBaTorso, SimBaV2Torso

__all__ = [
    "BatchRenormMLPTorso",
    "BroTorso",
    "CNNTorso",
    "DeepResNetTorso",
    "GridTorso",
    "MLPTorso",
    "NoisyMLPTorso",
    "ResNetTorso",
    "SimBaTorso",
    "SimBaV2Torso",
    "SimNormTorso",
    "VisualResNetTorso",
    "XQCTorso",
    "as_images",
]
