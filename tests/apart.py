"""A test module run in a process of its own, which Triton's settings need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WHY = "Triton is an optional extra, for CUDA"


def run(module: str, what: str, cache: Path, interpret: str) -> str:
    """What `python -m module what` prints, with Triton interpreted ("1") or compiled ("0")."""
    pytest.importorskip("triton", reason=WHY)
    settings = {"TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-m", module, what],
        cwd=Path(__file__).parent.parent,
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
