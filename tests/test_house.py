"""The house: rooms import from floors below only, and no room or function outgrows its purpose."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import floatscope

ROOT = Path(floatscope.__file__).parent
FLOORS = {
    "errors": 0, "paths": 0, "compiled": 0, "files": 0.5, "tables": 0.7,
    "formats": 1, "rounding": 2, "spectrum": 3, "recipes": 4, "memory": 5, "doctor": 5,
    "lab": 6, "report": 7, "integrations": 8, "cli": 8,
}  # fmt: skip


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (n.split(".")[1] for n in names if n.startswith("floatscope."))


def test_rooms_import_only_from_floors_below() -> None:
    seen = 0
    for path, tree in modules():
        room = room_of(path)
        if room == "__init__":
            continue
        for other in imported_rooms(tree):
            seen += 1
            allowed = other == room or FLOORS[other] < FLOORS[room]
            assert allowed, f"{path.relative_to(ROOT)} imports {other}, which is not below {room}"
    assert seen > 30


def test_relative_imports_are_not_used() -> None:
    for path, tree in modules():
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


def test_modules_and_functions_stay_small() -> None:
    for path, tree in modules():
        lines = len(path.read_text().splitlines())
        assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                start = node.body[0].lineno
                if ast.get_docstring(node) and len(node.body) > 1:
                    start = node.body[1].lineno
                length = (node.end_lineno or start) - start + 1
                assert length <= 45, f"{path.relative_to(ROOT)}: {node.name} has {length} lines"
