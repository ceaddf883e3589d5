"""Names of the observation channels of MinAtar in gymnax, in order."""

from __future__ import annotations

_SPEEDS = tuple(f"trail, speed {speed}" for speed in range(1, 6))
# The aliens would hide the two channels of their direction.
CHANNELS: dict[str, tuple[str | None, ...]] = {
    "Asterix-MinAtar": ("player", "enemy", "trail", "gold"),
    "Breakout-MinAtar": ("paddle", "ball", "trail", "brick"),
    "Freeway-MinAtar": ("chicken", "car", *_SPEEDS),
    "Seaquest-MinAtar": (
        *("submarine", "its stern", "bullet", "trail", "enemy bullet"),
        *("fish", "enemy submarine", "oxygen", "divers aboard", "diver"),
    ),
    "SpaceInvaders-MinAtar": ("cannon", "alien", None, None, "bullet", "enemy bullet"),
}
