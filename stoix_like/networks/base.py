"""Whole networks, under the import path of Stoix; see `networks.feed_forward` and `networks.recurrent`."""

from stoix_like.networks.feed_forward import (
    CompositeNetwork,
    FeedForwardActor,
    FeedForwardActorCritic,
    FeedForwardCritic,
    MultiNetwork,
)
from stoix_like.networks.from_config.modules import chained_torsos
from stoix_like.networks.recurrent.layer import ScannedRNN
from stoix_like.networks.recurrent.networks import (
    RecurrentActor,
    RecurrentActorCritic,
    RecurrentCritic,
    StatelessCritic,
)

__all__ = [
    "CompositeNetwork",
    "FeedForwardActor",
    "FeedForwardActorCritic",
    "FeedForwardCritic",
    "MultiNetwork",
    "RecurrentActor",
    "RecurrentActorCritic",
    "RecurrentCritic",
    "ScannedRNN",
    "StatelessCritic",
    "chained_torsos",
]
