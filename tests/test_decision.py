"""The decision on the novel study: every number from a record, and what is missing is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from floatscope.cli.main import app
from floatscope.errors import StudyError
from floatscope.lab.decision import choice as choosing
from floatscope.lab.decision.cite import Records
from floatscope.lab.decision.decide import decide, status
from floatscope.lab.decision.facts import Facts, gather, operand_bits
from floatscope.lab.decision.keep import TEXTS, keep, load
from floatscope.lab.decision.markdown import markdown
from floatscope.lab.decision.records import RECORD, Choice, Decision, Evidence
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.study.folder import open_study
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.summary import summarize
from floatscope.recipes import recipe
from tests.studies import BASE, PLAN, Ended, Ends, imagined, made

NOVEL = Path(__file__).parent.parent / "results" / "novel"


@pytest.fixture(scope="module")
def novel() -> Decision:
    return decide(open_study(NOVEL))


def every_evidence(decision: Decision) -> Iterator[Evidence]:
    for answer in decision.answers:
        for statement in answer.statements:
            yield from statement.evidence
    for criterion in decision.criteria:
        yield from criterion.evidence


# --- the novel study


def test_the_committed_decision_is_what_the_records_say(novel: Decision) -> None:
    """If this fails after an intended change: study decide results/novel --out results/novel."""
    assert load(NOVEL) == novel
    for language, name in TEXTS.items():
        assert (NOVEL / name).read_text(encoding="utf-8") == markdown(novel, language)  # type: ignore[arg-type]


def test_the_committed_verdict_is_what_the_command_shows() -> None:
    """If this fails: COLUMNS=80 floatscope study show results/novel > results/novel/verdict.txt."""
    shown = CliRunner().invoke(app, ["study", "show", str(NOVEL)])
    assert shown.exit_code == 4
    written = (NOVEL / "verdict.txt").read_text(encoding="utf-8")
    assert shown.stdout.split() == written.split()


def test_every_number_is_in_its_record(novel: Decision) -> None:
    records, found = Records(NOVEL), list(every_evidence(novel))
    assert len(found) > 100
    for evidence in found:
        again = records.cite(evidence.name, evidence.record, evidence.field)
        assert again == evidence
        assert evidence.value is not None


def test_every_statement_rests_on_records(novel: Decision) -> None:
    statements = [s for answer in novel.answers for s in answer.statements]
    assert [s.id for s in statements if not s.evidence] == ["choice"]  # it rests on the others
    assert len({s.id for s in statements}) == len(statements)
    for said in (s.text for s in statements):
        assert said.en != said.zh


def test_the_documents_three_questions(novel: Decision) -> None:
    assert [answer.id for answer in novel.answers] == ["precision", "scaling", "memory"]
    assert not any(answer.missing for answer in novel.answers)
    text = " ".join(s.text.en for answer in novel.answers for s in answer.statements)
    for fact in (
        "fp16-mixed-unscaled 1.2 %",  # zero gradients
        "fp32 0, 0, 0; bf16-mixed 0, 0, 0",  # skipped steps
        "0.71 % of the non-zero gradient elements lie below 2^-24",
        "times 65 536, 0 % lie below",
        "span 34 octaves, from 2^-40 to 2^-7",
        "16 B × 3 688 704 parameters = 59 019 264 B = 56.29 MiB",
        "formula +1184.00; no dropout -416.00",
    ):
        assert fact in text


def test_the_documents_criteria(novel: Decision) -> None:
    assert [(c.id, c.holds) for c in novel.criteria] == [
        ("table", True), ("memory", True), ("zeros", True)
    ]  # fmt: skip
    assert "higher in 3 of 3 seeds" in novel.criteria[2].text.en


def test_the_choice_is_provisional_and_says_why(novel: Decision) -> None:
    assert (novel.choice.recipe, novel.choice.settled) == ("bf16-mixed", False)
    assert "1.2 % of its gradients are exactly zero" in novel.choice.against[
        "fp16-mixed-unscaled"
    ].en  # fmt: skip
    assert novel.choice.against["fp16-mixed"].en == "it needs loss scaling"
    assert status(novel) == 4


def test_the_limits_name_machines_size_and_when_it_was_asked(novel: Decision) -> None:
    limits = " ".join(limit.en for limit in novel.limits)
    assert "on 2 kinds of processor" in limits
    assert "stated after the runs" in limits
    assert "Screening: 3 pairs" in limits
    assert novel.stated == "after the runs"


# --- what is missing


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(NOVEL, tmp_path / "novel")
    return tmp_path / "novel"


def test_what_was_not_measured_is_said_with_its_command(copy: Path) -> None:
    shutil.rmtree(copy / "probe")
    shutil.rmtree(copy / "memory")
    decision = decide(open_study(copy))
    commands = [m.command for answer in decision.answers for m in answer.missing]
    assert commands == [
        f"floatscope probe {copy}",
        f"floatscope memory measure novel --out {copy / 'memory'}",
    ]
    assert decision.criteria[1].holds is None
    assert decision.criteria[1].missing is not None
    text = markdown(decision, "en")
    assert f"Command: `floatscope probe {copy}`" in text
    assert f"未测量：这个模型的分阶段显存。命令：`floatscope memory measure novel --out {copy}" in (
        markdown(decision, "zh")
    )


def test_memory_of_another_model_is_not_this_studys(copy: Path) -> None:
    for path in copy.glob("memory/*/memory.json"):
        content = json.loads(path.read_text())
        content["shape"]["width"] = 512
        path.write_text(json.dumps(content))
    assert decide(open_study(copy)).criteria[1].holds is None


def test_bytes_that_nothing_explains_fail_the_criterion(copy: Path) -> None:
    for path in copy.glob("memory/*/memory.json"):
        content = json.loads(path.read_text())
        content["arms"][0]["unexplained_bytes"] = 64
        path.write_text(json.dumps(content))
    decision = decide(open_study(copy))
    assert decision.criteria[1].holds is False
    assert status(decision) == 3


def test_a_damaged_record_is_named(copy: Path) -> None:
    next(copy.glob("runs/fp32-s1338*/metrics.parquet")).write_bytes(b"PAR1 and more PAR1")
    with pytest.raises(StudyError, match=r"metrics\.parquet"):
        decide(open_study(copy))


# --- other studies

FOUR = replace(
    PLAN,
    recipes=("fp32", "bf16-mixed", "fp16-mixed", "fp16-mixed-unscaled"),
    seeds=(1, 2, 3),
)
SPREAD = {1: 0.0002, 2: -0.0001, 3: 0.0003}


def ends_of(zeros: dict[str, float], shift: dict[str, float] | None = None) -> Ends:
    def ends(run: RunPlan) -> Ended:
        name = run.recipe.name
        moved = (shift or {}).get(name, 0.0) + SPREAD[run.seed] * (name != "fp32")
        return Ended(loss=BASE[run.seed] + moved, zero_fraction=zeros.get(name, 0.0))

    return ends


def test_more_zeros_with_scaling_fail_the_criterion(tmp_path: Path) -> None:
    zeros = {"fp16-mixed": 0.02, "fp16-mixed-unscaled": 0.01}
    decision = decide(made(tmp_path / "s", FOUR, ends_of(zeros)))
    assert decision.criteria[2].holds is False
    done = CliRunner().invoke(app, ["study", "decide", str(tmp_path / "s")])
    assert done.exit_code == 3
    assert "**does not hold**" in done.stdout


def test_a_study_without_the_arms_names_the_command(tmp_path: Path) -> None:
    plan = replace(PLAN, seeds=(1, 2, 3))
    decision = decide(made(tmp_path / "s", plan, ends_of({})))
    criterion = decision.criteria[2]
    assert criterion.holds is None
    assert criterion.missing is not None
    assert "--recipes fp32,fp16-mixed,fp16-mixed-unscaled" in criterion.missing.command


def test_a_study_without_a_finished_run_is_refused(tmp_path: Path) -> None:
    from floatscope.lab.study.folder import create

    with pytest.raises(StudyError, match="no run has finished"):
        decide(create(tmp_path / "s", PLAN, "data"))


def chosen(plan: StudyPlan, ends: Ends) -> Choice:
    folder = imagined(plan, ends)
    return choosing.choose(facts_of(folder))


def facts_of(folder: object) -> Facts:
    return gather(folder, summarize(folder))  # type: ignore[arg-type]


def test_a_claim_that_is_shown_settles_the_choice() -> None:
    choice = chosen(FOUR, ends_of({"fp16-mixed-unscaled": 0.01}))
    assert (choice.recipe, choice.settled) == ("bf16-mixed", True)
    assert choice.against["fp16-mixed"].en == "it needs loss scaling"
    assert "it loses gradients" in choice.against["fp16-mixed-unscaled"].en


def test_what_is_worse_is_out() -> None:
    choice = chosen(FOUR, ends_of({"fp16-mixed-unscaled": 0.01}, {"bf16-mixed": 0.5}))
    assert (choice.recipe, choice.settled) == ("fp16-mixed", True)
    assert choice.against["bf16-mixed"].en == "the study's claim does not hold for it"


def test_if_all_others_are_out_it_is_the_baseline() -> None:
    shift = dict.fromkeys(FOUR.recipes[1:], 0.5)
    choice = chosen(FOUR, ends_of({}, shift))
    assert (choice.recipe, choice.settled) == ("fp32", True)
    assert len(choice.against) == 3


def test_fewer_bits_come_first() -> None:
    plan = replace(FOUR, recipes=("fp32", "bf16-mixed", "mxfp8"))
    assert chosen(plan, ends_of({})).recipe == "mxfp8"
    bits = {name: operand_bits(recipe(name)) for name in ("fp32", "bf16-pure", "mxfp8", "nvfp4")}
    assert bits == {"fp32": 32, "bf16-pure": 16, "mxfp8": 8, "nvfp4": 4}


def test_diverged_recipes_are_out() -> None:
    ends = ends_of({})

    def one_diverged(run: RunPlan) -> Ended:
        end = ends(run)
        assert isinstance(end, Ended)
        diverged = run.label == "bf16-mixed-s2"
        return replace(end, exit_reason="diverged") if diverged else end

    choice = chosen(FOUR, one_diverged)
    assert choice.against["bf16-mixed"].en == "1 of 3 runs diverged"


def test_without_a_baseline_nothing_is_chosen() -> None:
    choice = chosen(replace(FOUR, recipes=("bf16-mixed", "fp16-mixed")), ends_of({}))
    assert choice.recipe is None


# --- the command and its records


def test_the_record_is_written_and_read(tmp_path: Path) -> None:
    decision = decide(made(tmp_path / "s", FOUR, ends_of({})))
    keep(tmp_path / "out", decision)
    assert load(tmp_path / "out") == decision
    (tmp_path / "out" / RECORD).write_text("{}")
    with pytest.raises(StudyError, match="study decide"):
        load(tmp_path / "out")


def test_the_command_in_both_languages_and_as_json(tmp_path: Path) -> None:
    made(tmp_path / "s", FOUR, ends_of({"fp16-mixed-unscaled": 0.01}))
    run = CliRunner()
    out = ["--out", str(tmp_path / "s")]
    english = run.invoke(app, ["study", "decide", str(tmp_path / "s"), *out])
    assert english.exit_code == 4  # nothing probed, no memory measured
    assert "# Decision on the study made: bf16-mixed" in english.stdout
    chinese = run.invoke(app, ["study", "decide", str(tmp_path / "s"), "--lang", "zh"])
    assert "验收标准" in chinese.stdout
    record = json.loads((tmp_path / "s" / RECORD).read_text())
    printed = run.invoke(app, ["study", "decide", str(tmp_path / "s"), "--json"])
    assert json.loads(printed.stdout) == record
    wrong = run.invoke(app, ["study", "decide", str(tmp_path / "s"), "--lang", "fr"])
    assert wrong.exit_code == 2


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ("absent.json", "x"),
        ("study.json", "plan.nothing"),
        ("study.json", "plan.seeds[99]"),
        ("study.json", "plan..x"),
        ("runs/fp32-s1337-a75fc45a/metrics.parquet", "mean(nothing)"),
        ("runs/fp32-s1337-a75fc45a/metrics.parquet", "variance(loss)"),
    ],
)
def test_places_that_do_not_exist_are_refused(record: str, field: str) -> None:
    with pytest.raises(StudyError):
        Records(NOVEL).cite("x", record, field)
