"""The export: everything that there is, null for what there is not, and a schema beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic import TypeAdapter

from floatscope.cli.main import app
from floatscope.errors import StudyError
from floatscope.report.export import SCHEMA_NAME, Export, fill_memory, schema
from tests.made_study import made_study

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made_study(tmp_path_factory.mktemp("made") / "study", diverged=["bf16-mixed"]).path
    out = folder.parent / "c09-precision.json"
    result = CliRunner().invoke(app, ["export", str(folder), "-o", str(out)])
    assert result.exit_code == 0, result.output
    return out


def test_it_is_what_its_schema_says(file: Path) -> None:
    values = json.loads(file.read_text())
    read = TypeAdapter(Export).validate_python(values)
    assert len(read.runs) == 13
    assert json.loads(file.with_name("c09-precision.schema.json").read_text()) == schema()
    assert schema()["required"] == [
        "study", "plan", "data_sha256", "summary", "runs", "probes", "memory", "comparisons",
        "lecture", "decision",
    ]  # fmt: skip


def test_curves_and_events_are_there_and_the_unmeasured_is_null(file: Path) -> None:
    values = json.loads(file.read_text())
    run = next(r for r in values["runs"] if r["label"] == "fp16-mixed-s1")
    assert len(run["steps"]["loss"]) == len(run["steps"]["zero_fraction"]) == 12
    assert run["evaluations"]["step"] == [0, 4, 8, 12]
    assert run["events"] == [{"step": 3, "event": "skipped", "detail": "5 elements not finite"}]
    assert run["environments"][0]["packages"]["torch"]
    assert {values[k] for k in ("probes", "memory", "comparisons", "lecture", "decision")} == {None}
    lost = next(r for r in values["runs"] if r["label"] == "bf16-mixed-s1")
    assert lost["exit_reason"] == "diverged"
    assert lost["steps"]["loss"][-1] == "NaN"


def test_a_measurement_fills_its_field_later(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy.json"
    out.write_bytes(file.read_bytes())
    fill_memory(out, {"schema": 1, "arms": []})
    values, before = json.loads(out.read_text()), json.loads(file.read_text())
    assert values == {**before, "memory": [{"schema": 1, "arms": []}]}
    for content in ("{", '{"schema": 1}'):
        out.write_text(content)
        with pytest.raises(StudyError, match="no file of `floatscope export`"):
            fill_memory(out, {})
    with pytest.raises(StudyError, match="no file of"):
        fill_memory(tmp_path / "absent.json", {})


def test_the_published_schema_is_current() -> None:
    """If this fails after an intended change: python -m floatscope.report.export docs/schemas."""
    assert json.loads((ROOT / "docs" / "schemas" / SCHEMA_NAME).read_text()) == schema()
