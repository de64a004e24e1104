"""The report: what it makes of whole, partial, damaged and strange records, without a browser."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from floatscope.cli.main import app
from floatscope.errors import StudyError
from floatscope.files import DiskError
from floatscope.lab.memory import record as memory_of_the_laboratory
from floatscope.report import memory_record
from floatscope.report.assemble import assembled, sections_of
from floatscope.report.evidence import Evidence, gather
from floatscope.report.papers import standing_alone, write_figures
from floatscope.report.scripts import digest
from floatscope.report.sections import loss, zeros
from floatscope.report.sections.map import section as map_section
from floatscope.report.shell import Page
from floatscope.report.svg import compact
from floatscope.report.thin import BUDGET, stretches, thinned
from floatscope.report.watch import state
from floatscope.spectrum.spectrum import Spectrum
from tests.made_study import finish, made_study, rows

ROOT = Path(__file__).parent.parent
NOVEL = ROOT / "results" / "novel"
PENDING = "Project experiment data pending"


def page_of(folder: Path, *, is_static: bool = True) -> str:
    evidence = gather(folder)
    return assembled(evidence, sections_of(evidence), Page(is_static=is_static))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_study(tmp_path_factory.mktemp("made") / "study").path


@pytest.fixture(scope="module")
def made_page(made: Path) -> str:
    return page_of(made)


@pytest.fixture(scope="module")
def novel() -> Evidence:
    return gather(NOVEL)


def test_the_novel_study_fits(novel: Evidence) -> None:
    sections = sections_of(novel)
    whole = assembled(novel, sections, Page())
    static = assembled(novel, sections, Page(is_static=True))
    assert len(whole.encode()) <= 2.5e6
    assert len(static.encode()) <= 700e3
    assert "<script" not in static
    assert "script-src &#39;none&#39;" in static


def test_the_policy_names_the_scripts(made: Path) -> None:
    page = page_of(made, is_static=False)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert digest(script).replace("'", "&#39;") in policy[1]
    assert "default-src &#39;none&#39;" in policy[1]


def test_both_languages_are_everywhere(made_page: str) -> None:
    page = made_page
    assert page.count('class="en"') == page.count('class="zh"') > 100
    assert "||" not in page


def test_one_finished_run_gives_honest_placeholders(tmp_path: Path) -> None:
    folder = made_study(tmp_path / "one", finished=1).path
    evidence = gather(folder)
    sections = sections_of(evidence)
    page = assembled(evidence, sections, Page(is_static=True))
    assert page.count(PENDING) >= 8
    for section in sections:
        if section.command:
            assert section.command.startswith("floatscope "), section.name
    for figure in (f for s in sections for f in s.figures):
        assert "NaN" not in figure.svg
        assert "<path" in figure.svg
    assert "floatscope probe" in page
    assert "floatscope memory measure" in page
    assert "floatscope study decide" in page


def test_no_finished_run_at_all(tmp_path: Path) -> None:
    page = page_of(made_study(tmp_path / "none", finished=0).path)
    assert "0 of 13 runs finished" in page
    assert page.count(PENDING) >= 8


def test_a_study_under_way_says_how_far_it_is(tmp_path: Path) -> None:
    folder = made_study(tmp_path / "half", finished=5)
    running = folder.plan.runs()[6]
    journal = folder.run_folder(running) / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_text('{"table": "metrics", "step": 0}\n{"table": "metr')
    page = page_of(folder.path)
    assert "5 of 13 runs finished" in page
    assert f"<bdi>{running.label}</bdi> 1 / {running.train.steps}" in page


def test_a_diverged_run_is_marked_and_never_wins(tmp_path: Path) -> None:
    folder = made_study(tmp_path / "diverged", diverged=["fp16-mixed"]).path
    page = page_of(folder)
    assert "▲ marks where a loss stopped being a number" in page
    card = re.search(r'<article class="card (\w+)"[^>]*>\s*<h3><bdi>fp16-mixed</bdi>', page)
    assert card is not None
    assert card[1] == "bad"


def test_one_seed_has_no_band_and_no_verdict(tmp_path: Path) -> None:
    page = page_of(made_study(tmp_path / "one-seed", seeds=[1], ulp_reruns=0).path)
    assert "One baseline run has no spread" in page
    assert "nobody can say yet" in page


def test_skipped_steps_are_marked_and_listed(made_page: str) -> None:
    assert "fp16-mixed-s1: 4" in made_page
    assert "Which steps halved the scale?" in made_page


def test_names_with_markup_and_other_directions(tmp_path: Path) -> None:
    name, text = "<script>alert(1)</script>", "שלום<b>.txt"
    page = page_of(made_study(tmp_path / "odd", name=name, text=text, finished=2).path)
    assert "<script>alert" not in page
    assert "<bdi>&lt;script&gt;alert(1)&lt;/script&gt;</bdi>" in page
    assert "שלום&lt;b&gt;.txt" in page
    assert "<b>.txt" not in page


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "is damaged"), ('{"schema": 99}', "reads up to"), ('{"schema": 1}', "is damaged")],
)
def test_a_record_beside_the_study_that_cannot_be_read(
    tmp_path: Path, content: str, says: str
) -> None:
    folder = made_study(tmp_path / "study", finished=2).path
    (folder / "probe").mkdir()
    (folder / "probe" / "probe.json").write_text(content)
    (folder / "memory").mkdir()
    (folder / "memory" / "memory.json").write_text(content)
    (folder / "decision.json").write_text(content)
    page = page_of(folder)
    assert page.count("A record could not be read") == 3
    assert says in page


def test_the_map_shows_gradients_of_each_recipe(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", seeds=(1,), ulp_reruns=0)
    small = torch.tensor([2.0**-30, 1.0, 0.0, 0.0])
    for run in study.plan.runs()[:2]:
        gradients = {"embedding.weight": Spectrum.of(small), "norm.weight": Spectrum.of(small[1:2])}
        finish(study, run, gradients={0: gradients, 3: gradients})
    maps = map_section(gather(study.path)).values["maps"]
    assert [m.title.en for m in maps] == ["Layer × step: fp32-s1",
                                          "Layer × step: bf16-mixed-s1, really zero"]  # fmt: skip
    for drawn, share in zip(maps, ("50.0 %", "50.0 %"), strict=True):
        assert drawn.rows == ("embedding.weight", "norm.weight")
        assert [c.en for c in drawn.columns] == ["0", "3"]
        assert drawn.cells == ((share, share), ("0 %", "0 %"))
    damaged = study.run_folder(study.plan.runs()[0]) / "gradients.parquet"
    damaged.write_bytes(b"PAR1 no PAR1")
    assert str(damaged) in page_of(study.path)


def test_a_probe_without_its_tables(tmp_path: Path) -> None:
    folder = made_study(tmp_path / "study", finished=2).path
    there = NOVEL / "probe" / "fp32-s1337" / "probe.json"
    (folder / "probe").mkdir()
    (folder / "probe" / "probe.json").write_bytes(there.read_bytes())
    assert "missing or damaged" in page_of(folder)


def test_a_damaged_run_is_one_clear_error(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", finished=2)
    (study.run_folder(study.plan.runs()[0]) / "metrics.parquet").write_bytes(b"no")
    with pytest.raises(StudyError, match=r"metrics\.parquet is missing or damaged"):
        gather(study.path)


def test_no_study_and_a_newer_one(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="holds no study"):
        gather(tmp_path)
    folder = made_study(tmp_path / "newer", finished=1).path
    file = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**file, "schema": 99}))
    with pytest.raises(StudyError, match="reads up to"):
        gather(folder)


def test_a_target_that_cannot_be_written(made: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["report", str(made), "-o", str(tmp_path / "file" / "r.html")])
    assert isinstance(result.exception, DiskError)
    assert "could not be written" in str(result.exception)


def test_the_command_writes_page_and_figures(made: Path, tmp_path: Path) -> None:
    out, figures = tmp_path / "r.html", tmp_path / "figures"
    arguments = ["report", str(made), "-o", str(out), "--lang", "zh", "--static",
                 "--figures", str(figures)]  # fmt: skip
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert '<html lang="zh">' in out.read_text()
    assert (figures / "loss-difference.svg").exists()
    assert (figures / "loss-difference.png").read_bytes().startswith(b"\x89PNG")


def test_figures_stand_alone(made: Path, tmp_path: Path) -> None:
    sections = sections_of(gather(made))
    assert write_figures(sections, tmp_path) == 5
    for section in sections:
        for figure in section.figures:
            svg = standing_alone(str(figure.svg))
            assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
            assert "var(" not in svg
            assert "currentColor" not in svg


def test_paths_are_written_by_steps_that_lead_to_the_same_places() -> None:
    places = [(0.04, 20.16), (1.25, -3.5), (1.25, 0.0), (640.0, 0.1), (-0.3, 99.96)]
    path = "M" + "L".join(f"{x:.3f},{y:.3f}" for x, y in places) + "M7,7.5L8,7"
    drawn = str(compact(f'<svg><path fill="none" d="{path}"/></svg>'))
    steps = re.findall(r"([Ml])(-?[\d.]+),?(-?[\d.]+)", drawn)
    x = y = 0.0
    found = []
    for command, dx, dy in steps:
        x, y = (float(dx), float(dy)) if command == "M" else (x + float(dx), y + float(dy))
        found.append((round(x, 6), round(y, 6)))
    assert found == [
        (0.0, 20.2),
        (1.2, -3.5),
        (1.2, 0.0),
        (640.0, 0.1),
        (-0.3, 100.0),
        (7, 7.5),
        (8, 7),
    ]


def test_thinning_keeps_extremes_ends_and_what_is_no_number() -> None:
    values = [math.sin(i / 50) for i in range(20_000)]
    values[7_777], values[15_000] = 9.0, -9.0
    values[12_345] = math.nan
    kept = thinned(values, 300)
    assert len(kept) <= 3 * 300 + 2
    assert {0, 7_777, 12_345, 15_000, 19_999} <= {*kept}
    assert kept == sorted(kept)
    assert thinned(values[:600], 300) == list(range(600))
    assert thinned([], 10) == []
    assert thinned([math.nan] * 100, 10)[0] == 0


def test_forty_long_runs_are_thinned_and_it_is_said(made: Path) -> None:
    evidence = gather(made)
    first = evidence.runs[0]
    run_rows = [row for row in rows(first.plan) if row["table"] == "metrics"]
    columns = {name: [row[name] for row in run_rows] * 1667 for name in first.metrics}
    columns["step"] = list(range(len(columns["loss"])))
    long = [replace(run, metrics=columns) for run in (evidence.runs * 4)[:40]]
    evidence = replace(evidence, runs=tuple(long))
    for figure in (*loss.section(evidence).figures[1:], *zeros.section(evidence).figures[:1]):
        assert figure.note is not None
        assert "Showing" in figure.note.en
        assert len(figure.svg) < 400_000
    assert 2 * 40 * stretches(40) <= BUDGET


def test_watching_sees_new_records_and_not_its_own_page(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    (tmp_path / "journal.jsonl").write_text("{}\n")
    before = state(tmp_path, page)
    page.write_text("x")
    assert state(tmp_path, page) == before
    (tmp_path / "later.json").write_text("{}")
    assert state(tmp_path, page) != before


def test_the_command_rebuilds_while_a_study_runs(made: Path, tmp_path: Path) -> None:
    folder, page = tmp_path / "study", tmp_path / "page.html"
    shutil.copytree(made, folder)
    new = folder / "a-new-record.json"
    command = [sys.executable, "-m", "floatscope.cli.main", "report", str(folder), "--watch",
               "--static", "-o", str(page)]  # fmt: skip
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(  # ignored where tests run in the background
            signal.SIGINT, signal.SIG_DFL
        ),
    ) as process:
        try:
            wait_for(page.exists)
            first = page.stat().st_mtime_ns
            assert process.stderr is not None
            assert b"Ctrl-C" in process.stderr.readline()
            new.write_text("{}")
            wait_for(lambda: page.stat().st_mtime_ns != first)
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60)[1].decode()
        finally:
            process.kill()
    assert "stopped watching" in said
    assert "Traceback" not in said
    assert page.read_text(encoding="utf-8").endswith("</html>")


def wait_for(holds: Callable[[], bool]) -> None:
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.1)
    pytest.fail("waited two minutes")


def test_the_memory_record_is_that_of_the_laboratory() -> None:
    assert memory_record.SCHEMA_VERSION == memory_of_the_laboratory.SCHEMA_VERSION
    assert memory_record.RECORD == memory_of_the_laboratory.RECORD


def test_the_novel_page_answers_the_reading_questions(novel: Evidence) -> None:
    answers = [a for s in sections_of(novel) for a in s.answers]
    said = " ".join(a.answer.en for a in answers if a.answer is not None)
    assert all(a.answer is not None for a in answers)
    for fact in (
        "+0.0519",
        "0.71 % unscaled",
        "34 octaves",
        "narrower than fp16's 40",
        "embedding.weight",
        "first 100 steps",
        "doubled after 200, 400",
    ):
        assert fact in said, fact
