"""Subnormal numbers of the processor, while somebody has switched them off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_TINY = 5e-324
_ONE = 1.0


def are_flushed() -> bool:
    """Whether this thread's processor treats subnormal inputs as zero."""
    return _TINY * _ONE == 0.0


@contextmanager
def kept() -> Iterator[None]:
    """Compute by IEEE 754 in this thread, whatever `torch.set_flush_denormal` said."""
    if not are_flushed():
        yield
        return
    import torch

    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(True)
