"""`floatscope lecture` as a student meets it: list, both languages, records, figures, mistakes."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from floatscope.cli.lecture import language_of
from floatscope.errors import StudyError
from floatscope.lab.lecture import keep
from floatscope.lab.lecture.demo1_formats import formats
from floatscope.lab.lecture.figures import figure
from floatscope.lab.run.environment import environment
from tests.test_lecture_telling import GOOD

VL = "v6.1"


def lecture(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "floatscope.cli.main", "lecture", *args],
        capture_output=True, text=True, check=False, cwd=cwd, timeout=300,
        env={**os.environ, "LC_ALL": "C.UTF-8", **env},
    )  # fmt: skip


def test_without_a_number_the_five_are_listed() -> None:
    english, chinese = lecture(), lecture("--lang", "zh")
    for done in (english, chinese):
        assert (done.returncode, done.stderr) == (0, "")
        assert [line[0] for line in done.stdout.splitlines()[:5]] == list("12345")
    assert "fp32 主参数" in chinese.stdout
    listed = json.loads(lecture("--json").stdout)
    assert [row["demonstration"] for row in listed] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("asked", "locale", "language"),
    [(None, {"LANG": "zh_CN.UTF-8"}, "zh"), (None, {"LANG": "de_DE.UTF-8"}, "en"),
     (None, {"LC_ALL": "en_US.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"), (None, {}, "en"),
     ("zh", {"LANG": "en_US.UTF-8"}, "zh"), ("en", {"LANG": "zh_TW"}, "en")],
)  # fmt: skip
def test_language(asked: str | None, locale: dict[str, str], language: str) -> None:
    assert language_of(asked, locale) == language


@pytest.mark.parametrize("language", ["en", "zh"])
def test_columns_are_aligned(language: str) -> None:
    lines = lecture("1", "--lang", language).stdout.splitlines()
    assert all(cell_len(line) <= 80 for line in lines)
    rows = [line for line in lines if re.match(r"(fp32|fp16|bf16) +1\+", line)]
    ends = [cell_len(row[: re.search(r"2\^-\d+", row).end()]) for row in rows]  # type: ignore[union-attr]
    assert len(rows) == 3
    assert len(set(ends)) == 1


def test_records_with_their_schema(tmp_path: Path) -> None:
    done = lecture("1", "--formats", "fp16,e4m3fn", "--out", str(tmp_path))
    assert done.returncode == 0
    assert "record in" in done.stderr
    file = keep.read(tmp_path, 1)
    assert file.record == formats(["fp16", "e4m3fn"])
    assert json.loads((tmp_path / "lecture" / "demo-1.schema.json").read_text()) == keep.schema(1)
    printed = json.loads(lecture("1", "--json").stdout)
    assert [row["name"] for row in printed[0]["record"]["rows"]] == ["fp32", "fp16", "bf16"]
    assert not [*tmp_path.rglob("*.tmp")]


@pytest.mark.parametrize("number", GOOD)
def test_every_record_comes_back_as_it_was(tmp_path: Path, number: int) -> None:
    file = keep.DemoFile(
        demonstration=number, environment=environment("native"), seconds=1.5, record=GOOD[number]
    )
    keep.write(tmp_path, file)
    assert repr(keep.read(tmp_path, number)) == repr(file)  # NaN is not equal to itself


def _newer(text: str) -> str:
    return text.replace('"schema": 1', '"schema": 9')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(lambda text: text[:-20], "is damaged. Make it again with: floatscope lecture 1"),
     (lambda text: text.replace('"emax": 127', '"emax": "big"'), "is damaged at 'record.rows"),
     (_newer, "has schema 9; this floatscope reads up to 1")],
)  # fmt: skip
def test_spoiled_records(tmp_path: Path, spoil: Callable[[str], str], message: str) -> None:
    file = keep.DemoFile(
        demonstration=1, environment=environment("native"), seconds=0.1, record=formats()
    )
    path = keep.write(tmp_path, file)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(StudyError, match=re.escape(message)):
        keep.read(tmp_path, 1)


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [(["6"], 2, "'6' is not one of '1', '2', '3', '4', '5', 'all'"),
     (["1", "--more"], 2, "--more is for demonstration 5"),
     (["2", "--formats", "fp16"], 2, "--formats is for demonstration 1"),
     (["1", "--formats", "fp17"], 1, "unknown format 'fp17'. Did you mean 'fp16'?"),
     (["1", "--formats", "fp8"], 1, "'fp8' means several things"),
     (["1", "--formats", "nvfp4"], 1, "nvfp4 is none"),
     (["1", "--lang", "fr"], 2, "'fr' is not one of 'zh', 'en'"),
     (["1", "--out", "{file}/x"], 1, "could not be written"),
     (["2", "--figures", "{file}"], 1, "could not be written")],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_mistakes(tmp_path: Path, args: list[str], status: int, message: str) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = lecture(*(arg.format(file=blocked) for arg in args))
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# Figures


def rendered(number: int) -> str:
    vl_convert = pytest.importorskip("vl_convert")
    return vl_convert.vegalite_to_svg(figure(number, GOOD[number]), vl_version=VL)


@pytest.mark.parametrize("number", GOOD)
def test_figures_hold_numbers_units_and_names_only(number: int) -> None:
    svg = rendered(number)
    assert "Infinity" not in svg
    assert "NaN" not in re.sub(r"<[^>]*>", "", svg)
    names = {"fp32", "fp16", "bf16", "v", "sr", "kahan"}
    for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg):
        words = re.findall(r"[a-zA-Z]+\d*", re.sub(r"[\d.]+e\d+", "", text))
        assert all(word.lower() in names for word in words), text


def test_a_figure_shows_the_records_numbers() -> None:
    spec: dict[str, Any] = figure(3, GOOD[3])
    left, right = spec["hconcat"]
    errors = left["layer"][0]["data"]["values"]
    assert [(row["k"], row["error"]) for row in errors if row["batch"] == "32"] == [
        (r.exponent, 100 * r.median_error)
        for r in GOOD[3].batches[0].scales
        if math.isfinite(r.median_error)
    ]
    last = right["layer"][0]["data"]["values"][-1]
    assert (last["real"], last["predicted"]) == (pytest.approx(41), pytest.approx(9))
    labels = figure(2, GOOD[2])["layer"][1]["data"]["values"]
    assert [row["text"] for row in labels] == ["fp32 1.0001", "fp16 0.25", "bf16 0.03125"]


@pytest.mark.parametrize(
    ("language", "title"),
    [("en", "Formats: what fp32"), ("zh", "三种格式")],
)
def test_figures_on_disk(tmp_path: Path, language: str, title: str) -> None:
    pytest.importorskip("vl_convert")
    done = lecture("1", "--lang", language, "--figures", str(tmp_path))
    assert done.returncode == 0, done.stderr
    svg = (tmp_path / "demo-1.svg").read_text(encoding="utf-8")
    assert title in svg
    assert "var(" not in svg
    assert "currentColor" not in svg
    assert ">2^-24<" in svg
    assert ">65504<" in svg
    assert (tmp_path / "demo-1.png").read_bytes().startswith(b"\x89PNG")


def test_figures_of_a_gradient_that_is_nowhere_finite() -> None:
    """A student's scale may be too large for everything."""
    row = replace(GOOD[3].batches[0].scales[0], median_error=math.inf)
    record = replace(GOOD[3], batches=(replace(GOOD[3].batches[0], scales=(row,)),))
    left, _ = figure(3, record)["hconcat"]
    assert [layer["data"]["values"] for layer in left["layer"]] == [[], []]
