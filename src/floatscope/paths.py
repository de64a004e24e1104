"""Where floatscope keeps what can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder for floatscope; `FLOATSCOPE_CACHE` overrides it."""
    if chosen := os.environ.get("FLOATSCOPE_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "floatscope"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "floatscope"
