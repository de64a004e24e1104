"""Verbs that need no tensors do not load Torch."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after running `code`."""
    program = f"import sys\n{code}\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("code", ["import floatscope", "import floatscope.cli.main"])
def test_starting_needs_neither_torch_nor_numpy(code: str) -> None:
    assert not loaded(code) & {"torch", "numpy", "pydantic", "duckdb", "scipy", "psutil"}


@pytest.mark.parametrize(
    "code",
    [
        "import floatscope.lab.study.summary, floatscope.cli.study_table",
        "import floatscope.lab.study.execute",
        "from floatscope.lab.study.choose import choose; choose('quick')",
    ],
)
def test_a_study_itself_needs_no_torch(code: str) -> None:
    assert "torch" not in loaded(code)


def test_public_names() -> None:
    import floatscope as fs

    assert fs.recipe("fp32").name == "fp32"
    for name in dir(fs):
        assert getattr(fs, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fs.nothing
