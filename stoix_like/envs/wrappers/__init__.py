"""Wrappers of vector environments."""

from stoix_like.envs.wrappers.actions import (
    ClipActions,
    RandomStarts,
    RepeatActions,
    RescaleActions,
    StickyActions,
    join_actions,
)
from stoix_like.envs.wrappers.agents import AgentRows
from stoix_like.envs.wrappers.base import (
    CountingWrapper,
    ObservationWrapper,
    RewardWrapper,
    StatefulWrapper,
    Wrapper,
    layers,
)
from stoix_like.envs.wrappers.episodes import ClipReward, RecordEpisode, ScaleReward, TimeLimit
from stoix_like.envs.wrappers.goals import ReachEntries
from stoix_like.envs.wrappers.last_step import ObserveLastStep
from stoix_like.envs.wrappers.observations import (
    AddTime,
    ClipObservation,
    CountSteps,
    FlattenObservation,
    SelectEntries,
    StackFrames,
    as_declared,
)
from stoix_like.envs.wrappers.partial import DelayObservation, FlickerObservation, NoisyObservation, mask_entries
from stoix_like.envs.wrappers.precision import MatmulPrecision

__all__ = [
    "AddTime",
    "AgentRows",
    "ClipActions",
    "ClipObservation",
    "ClipReward",
    "CountSteps",
    "CountingWrapper",
    "DelayObservation",
    "FlattenObservation",
    "FlickerObservation",
    "MatmulPrecision",
    "NoisyObservation",
    "ObservationWrapper",
    "ObserveLastStep",
    "RandomStarts",
    "ReachEntries",
    "RecordEpisode",
    "RepeatActions",
    "RescaleActions",
    "RewardWrapper",
    "ScaleReward",
    "SelectEntries",
    "StackFrames",
    "StatefulWrapper",
    "StickyActions",
    "TimeLimit",
    "Wrapper",
    "as_declared",
    "join_actions",
    "layers",
    "mask_entries",
]
