"""Replay buffers: single steps, n-step windows, sequences, each with or without priorities."""

from stoix_like.utils.replay.buffers import end_episodes
from stoix_like.utils.replay.config import PrioritisedReplayConfig, ReplayConfig
from stoix_like.utils.replay.sequences import (
    BlockReplayConfig,
    Remembered,
    SequenceBatch,
    SequenceConfig,
    SequenceReplay,
    SequenceReplayConfig,
    make_sequence_replay,
)
from stoix_like.utils.replay.types import Batch, Replay, Step
from stoix_like.utils.replay.windows import make_replay

__all__ = [
    "Batch",
    "BlockReplayConfig",
    "PrioritisedReplayConfig",
    "Remembered",
    "Replay",
    "ReplayConfig",
    "SequenceBatch",
    "SequenceConfig",
    "SequenceReplay",
    "SequenceReplayConfig",
    "Step",
    "end_episodes",
    "make_replay",
    "make_sequence_replay",
]
