"""The lecture's records on the page: figures, sentences, tables, in both languages, no scripts."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from floatscope.lab.lecture import keep
from floatscope.lab.lecture.telling.words import Words
from floatscope.lab.run.environment import environment
from floatscope.report.assemble import assembled, sections_of
from floatscope.report.evidence import gather
from floatscope.report.shell import Page
from tests.made_study import made_study
from tests.test_lecture_telling import FAILING, GOOD, MODULES

pytest.importorskip("vl_convert")


def kept(folder: Path, records: dict[int, Any]) -> Path:
    study = made_study(folder, finished=1).path
    for number, record in records.items():
        file = keep.DemoFile(
            demonstration=number,
            environment=environment("emulated"),
            seconds=1.0,
            record=record,
        )
        keep.write(study, file)
    return study


def page_of(study: Path) -> str:
    evidence = gather(study)
    return unescape(assembled(evidence, sections_of(evidence), Page(is_static=True)))


def both(words: Words) -> str:
    if words.en == words.zh:
        return words.en
    return (
        f'<span class="en" lang="en">{words.en}</span><span class="zh" lang="zh">{words.zh}</span>'
    )


def test_everything_of_the_lecture_is_on_the_page(tmp_path: Path) -> None:
    page = page_of(kept(tmp_path / "study", GOOD))
    for number, record in GOOD.items():
        module = MODULES[number]
        told = module.TOLD
        assert f'id="lecture-{number}"' in page
        said = [s.words for s in (*module.observations(record), *told.history)]
        for words in (told.title, told.why, told.patch, told.caption, *said):
            assert both(words) in page
        for table in module.tables(record):
            assert both(table.title) in page
            assert all(f'<th scope="col">{both(cell)}</th>' in page for cell in table.header[:-1])
            numbers = {cell for row in table.rows for cell in row[1:] if isinstance(cell, str)}
            cells = set(re.findall(r"<td>([^<]*)</td>", page))
            assert numbers <= cells
    assert "Not as in the document" not in page


def test_a_premise_that_fails_is_marked(tmp_path: Path) -> None:
    number, index, record = next(case for case in FAILING if case[0] == 4)
    page = page_of(kept(tmp_path / "study", {number: record}))
    words = [*MODULES[number].observations(record)][index].words
    before, _, _ = page.partition(both(words))
    assert before.rstrip().endswith("</strong>")
    assert page.count("Not as in the document") == 1
