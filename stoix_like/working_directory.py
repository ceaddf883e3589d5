"""The working directory as a place of the user's own modules."""

from __future__ import annotations

import os
import sys


def make_importable() -> None:
    """Append the working directory to the import path, for the user's own modules."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
