"""Replay buffers: single steps, n-step windows, sequences, each with or without priorities, and streams of entries."""

from stoix_like.utils.replay.buffers import end_episodes
from stoix_like.utils.replay.config import BufferConfig, PrioritisedReplayConfig, ReplayConfig, WholeWindowsConfig
from stoix_like.utils.replay.data import Data, DataFile, count_from, with_clipped_rewards
from stoix_like.utils.replay.sequences import (
    BlockReplayConfig,
    PrioritisedBlockConfig,
    SequenceBatch,
    SequenceConfig,
    SequenceReplay,
    SequenceReplayConfig,
    StepSequenceConfig,
    Stored,
    make_sequence_replay,
)
from stoix_like.utils.replay.streams import Stream, StreamBatch, StreamReplay, StreamReplayConfig, make_stream_replay
from stoix_like.utils.replay.types import Batch, Replay, Step
from stoix_like.utils.replay.windows import make_replay

__all__ = [
    "Batch",
    "BlockReplayConfig",
    "BufferConfig",
    "Data",
    "DataFile",
    "PrioritisedBlockConfig",
    "PrioritisedReplayConfig",
    "Replay",
    "ReplayConfig",
    "SequenceBatch",
    "SequenceConfig",
    "SequenceReplay",
    "SequenceReplayConfig",
    "Step",
    "StepSequenceConfig",
    "Stored",
    "Stream",
    "StreamBatch",
    "StreamReplay",
    "StreamReplayConfig",
    "WholeWindowsConfig",
    "count_from",
    "end_episodes",
    "make_replay",
    "make_sequence_replay",
    "make_stream_replay",
    "with_clipped_rewards",
]
