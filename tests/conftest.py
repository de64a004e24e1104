"""Strict numerics for every test: one thread, deterministic algorithms, nothing left changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

# No deadline: a busy machine is no bug.
hypothesis.settings.register_profile("floatscope", deadline=None, print_blob=True)
hypothesis.settings.load_profile("floatscope")


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["FLOATSCOPE_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    assert torch.get_default_dtype() is torch.float32
    assert not _get_current_dispatch_mode_stack(), "a dispatch mode was left on"
    assert not torch.is_autocast_enabled("cpu"), "autocast was left on"


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """A small text, long enough for a tiny study."""
    from floatscope.lab.text.world import build_world

    path = tmp_path / "text.txt"
    path.write_text(build_world().val_text()[:60_000])
    return path
