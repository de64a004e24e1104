"""Verdicts of studies, their exit statuses, and every reason for which there is none."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from floatscope.cli.main import app
from floatscope.cli.study_table import study_table
from floatscope.errors import StudyError
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.statistics import noise_floor, paired, pooled, prediction_interval, welch
from floatscope.lab.study.folder import StudyFolder, open_study
from floatscope.lab.study.judgement import ArmJudgement, Judgement
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.question import Margin, Question
from floatscope.lab.study.summary import summarize
from floatscope.lab.study.trust import foreseen
from tests.studies import BASE, HERE, PLAN, QUESTION, Ended, Ends, edit, finish, imagined, made

THREE_PAIRS = replace(PLAN, seeds=(1, 2, 3))


def against(*differences: float) -> Ends:
    """Runs of bf16-mixed so much above those of fp32."""
    by_seed = dict(zip(BASE, differences, strict=False))
    return lambda run: BASE[run.seed] + by_seed[run.seed] * (run.recipe.name != "fp32")


def judged(folder: StudyFolder) -> Judgement:
    return summarize(folder).judgement


def only_arm(judgement: Judgement) -> ArmJudgement:
    (arm,) = judgement.arms
    return arm


def shown(folder: StudyFolder) -> tuple[int, str]:
    """What `study show` would exit with, and print."""
    summary = summarize(folder)
    console = Console(width=80, file=io.StringIO())
    console.print(study_table(summary))
    assert isinstance(console.file, io.StringIO)
    return summary.judgement.status, " ".join(console.file.getvalue().split())


def on_disk(*words: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["study", *map(str, words)])
    return done.exit_code, " ".join(done.output.split())


SAME = against(0.001, -0.001, 0.0005, -0.0005, 0.0002)
WORSE = against(0.031, 0.029, 0.030, 0.032, 0.028)
SMALL = against(0.0031, 0.0029, 0.0030, 0.0032, 0.0028)
BETTER = against(-0.05, -0.01, -0.03, -0.04, -0.02)
A_BIT_BETTER = against(-0.02, -0.005, -0.01, -0.015, -0.008)
NOISY = against(0.05, -0.05, 0.03, -0.03, 0.01)


@pytest.mark.parametrize(
    ("ends", "claim", "word", "status"),
    [
        (SAME, "not worse", "equivalent", 0),
        (SAME, "equivalent", "equivalent", 0),
        (SAME, "worse", "equivalent", 3),
        (SMALL, "not worse", "different but within the margin", 0),
        (SMALL, "worse", "different but within the margin", 0),
        (WORSE, "not worse", "worse", 3),
        (WORSE, "equivalent", "worse", 3),
        (WORSE, "worse", "worse", 0),
        (BETTER, "not worse", "not worse", 0),
        (BETTER, "equivalent", "not worse", 3),
        (A_BIT_BETTER, "equivalent", "not worse", 4),
        (NOISY, "not worse", "inconclusive", 4),
    ],
)
def test_five_words_and_three_exit_statuses(ends: Ends, claim: str, word: str, status: int) -> None:
    question = replace(QUESTION, claim=claim)
    folder = imagined(replace(PLAN, question=question), ends)
    arm = only_arm(judged(folder))
    assert arm.word == word
    code, text = shown(folder)
    assert code == status
    assert arm.sentence in text.replace("- ", "-")
    assert {0: "the claim holds", 3: "the claim does not hold", 4: "undecided"}[status] in text


def test_the_numbers_are_those_of_the_statistics() -> None:
    arm = only_arm(judged(imagined(PLAN, SAME)))
    a = list(BASE.values())
    b = [x + d for x, d in zip(a, (0.001, -0.001, 0.0005, -0.0005, 0.0002), strict=True)]
    expected = paired(a, b)
    assert arm.difference == pytest.approx(expected.difference)
    assert arm.interval is not None
    assert arm.interval.low == pytest.approx(expected.interval().low)
    assert arm.p_claim == pytest.approx(expected.p_not_worse(0.01))
    assert arm.pairing is not None
    assert arm.pairing.width_ratio < 1


@pytest.mark.parametrize("method", ["welch", "pooled", "dunnett"])
def test_other_comparisons(method: str) -> None:
    plan = replace(PLAN, question=replace(QUESTION, method=method))
    arm = only_arm(judged(imagined(plan, SAME)))
    a = list(BASE.values())
    b = [x + d for x, d in zip(a, (0.001, -0.001, 0.0005, -0.0005, 0.0002), strict=True)]
    expected = (welch if method == "welch" else pooled)(a, b)
    assert arm.interval is not None
    assert arm.interval.high == pytest.approx(expected.interval().high)


def test_arms_of_different_spread_are_not_pooled() -> None:
    plan = replace(PLAN, question=replace(QUESTION, method="pooled"))
    arm = only_arm(judged(imagined(plan, NOISY)))
    assert arm.method == "Welch"
    assert "standard deviations differ by a factor of" in arm.sentence


# --- the margin


def test_a_margin_in_compute_is_what_more_training_would_gain() -> None:
    question = replace(QUESTION, margin=Margin(compute=0.02))
    judgement = judged(imagined(replace(PLAN, question=question), SAME))
    assert judgement.slope == pytest.approx(1e-4)
    assert judgement.margin == pytest.approx(0.02 * 100 * 1e-4)
    assert "2 % of 100 steps more" in judgement.margin_says


def test_a_relative_margin() -> None:
    question = replace(QUESTION, margin=Margin(relative=0.0025))
    judgement = judged(imagined(replace(PLAN, question=question), SAME))
    assert judgement.margin == pytest.approx(0.0025 * sum(BASE.values()) / 5)


def test_a_loss_that_rises_has_no_margin_in_compute() -> None:
    question = replace(QUESTION, margin=Margin(compute=0.02))
    folder = imagined(
        replace(PLAN, question=question),
        lambda run: Ended(loss=BASE[run.seed], slope=-1e-4),
    )
    judgement = judged(folder)
    assert judgement.refusal is not None
    assert "does not fall at the end" in judgement.refusal
    assert shown(folder)[0] == 4


def test_the_endpoint_is_a_mean_of_the_last_evaluations() -> None:
    question = replace(QUESTION, last_evaluations=2)
    ends = against(0.004, 0.0, 0.001, 0.002, 0.003)
    steep = {"fp32": 1e-4, "bf16-mixed": 3e-4}
    folder = imagined(
        replace(PLAN, question=question),
        lambda run: Ended(loss=float(ends(run)), slope=steep[run.recipe.name]),  # type: ignore[arg-type]
    )
    arm = only_arm(judged(folder))
    assert arm.difference == pytest.approx(0.002 + (3e-4 - 1e-4) * 10 / 2)


# --- several arms


THREE = ("fp32", "bf16-mixed", "fp16-mixed", "fp16-mixed-unscaled")
BORDER = (0.0097, 0.0001, 0.0050, 0.0012, 0.0060)  # p of "not worse" alone is 0.016


@pytest.mark.parametrize("several", ["holm", "in order"])
def test_claims_of_several_arms_are_tested_together(several: str) -> None:
    question = replace(QUESTION, several=several)
    by_arm = {
        "bf16-mixed": against(*BORDER),
        "fp16-mixed": NOISY,
        "fp16-mixed-unscaled": SAME,
    }
    plan = replace(PLAN, recipes=THREE, question=question)
    folder = imagined(plan, lambda run: by_arm.get(run.recipe.name, SAME)(run))
    border, noisy, same = judged(folder).arms
    assert border.word == "equivalent"
    assert border.p_claim is not None
    assert 0.0125 < border.p_claim < 0.05
    assert noisy.holds is None
    if several == "holm":
        assert border.p_adjusted == pytest.approx(2 * border.p_claim)
        assert border.holds is (2 * border.p_claim < 0.05)
        assert same.holds
    else:
        assert border.holds
        assert same.holds is None
        assert "before it in the plan's order" in same.sentence


def test_dunnett_needs_no_correction() -> None:
    plan = replace(PLAN, recipes=THREE, question=replace(QUESTION, method="dunnett"))
    arms = judged(imagined(plan, SAME)).arms
    assert [arm.method for arm in arms] == ["Dunnett"] * 3
    assert all(arm.p_adjusted is None for arm in arms)


# --- bad input: a stated limit or a refusal with its reason


def test_one_seed_is_screened() -> None:
    plan = replace(PLAN, seeds=(1,), ulp_reruns=3)
    losses = {0: 3.001, 1: 3.0011, 2: 3.0009, 3: 3.0012}
    folder = imagined(
        plan,
        lambda run: losses[run.ulp_rerun] if run.recipe.name == "fp32" else 3.2,
    )
    arm = only_arm(judged(folder))
    assert arm.word is None
    assert arm.holds is None
    assert arm.screening is not None
    interval = prediction_interval(losses.values())
    assert (arm.screening.interval.low, arm.screening.interval.high) == pytest.approx(
        (interval.low, interval.high)
    )
    code, text = shown(folder)
    assert code == 4
    assert "Screening, no verdict" in text
    assert "which is no spread of seeds" in text


def test_one_seed_and_one_run_of_the_baseline() -> None:
    arm = only_arm(judged(imagined(replace(PLAN, seeds=(1,)), SAME)))
    assert arm.sentence.startswith("Screening, no verdict: one run, and no interval.")
    assert arm.holds is None


def test_no_baseline() -> None:
    folder = imagined(replace(PLAN, recipes=("bf16-mixed", "fp16-mixed")), SAME)
    refusal = judged(folder).refusal
    assert refusal is not None
    assert "there is no baseline: fp32 is not among the recipes" in refusal
    assert shown(folder)[0] == 4


def test_nothing_but_the_baseline() -> None:
    refusal = judged(imagined(replace(PLAN, recipes=("fp32",)), SAME)).refusal
    assert refusal == "there is nothing to compare: fp32 is the only recipe."


def diverging(arm: str, *seeds: int) -> Ends:
    def ends(run: RunPlan) -> Ended | float:
        if run.recipe.name == arm and run.seed in seeds:
            return Ended(loss=math.nan, exit_reason="diverged")
        return SAME(run)

    return ends


@pytest.mark.parametrize(("method", "says"), [
    ("paired", "Of 5 planned pairs 3 have both runs"),
    ("welch", "different numbers of runs, 3 against 5"),
    ("pooled", "Compared by Welch, because runs diverged"),
])  # fmt: skip
def test_arms_of_different_n(method: str, says: str) -> None:
    plan = replace(PLAN, question=replace(QUESTION, method=method))
    folder = imagined(plan, diverging("bf16-mixed", 2, 4))
    arm = only_arm(judged(folder))
    assert (arm.num_runs, arm.num_diverged, arm.pairs) == (5, 2, (1, 3, 5))
    assert says in arm.sentence
    assert arm.word == "inconclusive"  # a diverged run cannot win
    assert arm.holds is None
    text = shown(folder)[1]
    assert "Diverged: 2 of 5 runs, a rate of 5% to 85% (95 %)" in text


def test_diverged_runs_of_the_baseline() -> None:
    arm = only_arm(judged(imagined(PLAN, diverging("fp32", 1, 2, 3, 4))))
    assert "No verdict: 1 pair" in arm.sentence
    refusal = judged(imagined(PLAN, diverging("fp32", 1, 2, 3, 4, 5))).refusal
    assert refusal == "all 5 runs of the baseline fp32 diverged."


def test_all_runs_diverged() -> None:
    folder = imagined(PLAN, diverging("bf16-mixed", 1, 2, 3, 4, 5))
    arm = only_arm(judged(folder))
    assert arm.word is None
    assert "All 5 runs diverged: there is no loss to compare" in arm.sentence
    assert "48% or more" in arm.sentence
    assert shown(folder)[0] == 3


def test_a_loss_that_is_no_number_counts_as_diverged() -> None:
    folder = imagined(
        PLAN,
        lambda run: math.nan if run.label == "bf16-mixed-s2" else SAME(run),
    )
    assert only_arm(judged(folder)).num_diverged == 1


def test_zero_variance() -> None:
    folder = imagined(PLAN, against(0, 0, 0, 0, 0))
    arm = only_arm(judged(folder))
    assert arm.word is None
    assert "no spread to judge by" in arm.sentence
    assert shown(folder)[0] == 4


def test_a_margin_that_was_never_stated() -> None:
    folder = imagined(replace(PLAN, question=None), SAME)
    judgement = judged(folder)
    assert judgement.question is None
    assert judgement.arms == ()
    assert judgement.refusal is not None
    assert "no margin was stated before its runs" in judgement.refusal
    code, text = shown(folder)
    assert (code, "no verdict: the study was run without a question" in text) == (0, True)


def test_a_study_under_way() -> None:
    last = PLAN.runs()[-1]
    folder = imagined(PLAN, lambda run: None if run == last else SAME(run))
    refusal = judged(folder).refusal
    assert refusal is not None
    assert "9 of 10 runs have ended. The plan fixed n = 5" in refusal
    assert shown(folder)[0] == 4


def somewhere(where: Callable[[RunPlan], bool], **change: str) -> Ends:
    """Runs for which `where` holds were made in another environment."""

    def ends(run: RunPlan) -> Ended:
        environment = replace(HERE, **change) if where(run) else HERE  # type: ignore[arg-type]
        return Ended(loss=float(SAME(run)), environment=environment)  # type: ignore[arg-type]

    return ends


@pytest.mark.parametrize(
    ("change", "what"),
    [({"processor": "there"}, "processor"), ({"commit": "b" * 40}, "commit")],
)
def test_machines_and_commits_mixed_in_one_arm_are_said(change: dict[str, str], what: str) -> None:
    folder = imagined(PLAN, somewhere(lambda r: r.seed > 3 or r.label == "fp32-s1", **change))
    judgement = judged(folder)
    assert only_arm(judgement).word == "equivalent"
    limits = " ".join(judgement.limits)
    assert f"runs within one arm differ in {what} (fp32, bf16-mixed: " in limits
    assert f"in the pair of seed 1 the two runs differ in {what}" in limits
    assert "limit: runs within one arm differ" in shown(folder)[1]


def test_an_arm_on_another_machine_is_refused() -> None:
    folder = imagined(PLAN, somewhere(lambda r: r.recipe.name != "fp32", processor="there"))
    arm = only_arm(judged(folder))
    assert arm.word is None
    assert "differ from all of the baseline's in processor (there; here)" in arm.sentence
    assert shown(folder)[0] == 4


def test_backends_mixed_in_one_arm_are_refused() -> None:
    folder = imagined(PLAN, somewhere(lambda r: r.label == "bf16-mixed-s2", backend="emulated"))
    arm = only_arm(judged(folder))
    assert arm.word is None
    assert "two treatments in one arm" in arm.sentence


# --- a plan that changed


def change_margin(content: dict) -> None:  # type: ignore[type-arg]
    content["plan"]["question"]["margin"]["absolute"] = 0.05


def test_a_plan_changed_afterwards_is_refused_and_named(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", THREE_PAIRS, NOISY)
    edit(folder, change_margin)
    judgement = judged(open_study(folder.path))
    assert judgement.arms == ()
    assert judgement.changes == ("question.margin.absolute was 0.01, now 0.05",)
    code, text = on_disk("show", folder.path)
    assert code == 4
    assert "question.margin.absolute was 0.01, now 0.05" in text
    assert "6 of 6 runs were started under another plan" in text
    assert judgement.stated == "after the runs"


def test_a_seed_left_out_afterwards_is_named(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", THREE_PAIRS, NOISY)

    def drop(content: dict) -> None:  # type: ignore[type-arg]
        content["plan"]["seeds"] = [1, 2]
        content["plan"]["question"]["n"] = 2

    edit(folder, drop)
    assert any(
        "seeds was [1, 2, 3], now [1, 2]" in c for c in judged(open_study(folder.path)).changes
    )


def test_an_earlier_plan_that_was_not_kept(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", THREE_PAIRS, NOISY)
    edit(folder, change_margin)
    (kept,) = (folder.path / "plans").glob("*.json")
    kept.write_text(kept.read_text().replace("0.01", "0.02"))  # no longer what its name says
    assert (
        "was not kept, so what changed cannot be said" in judged(open_study(folder.path)).changes[0]
    )


def test_reused_runs_keep_their_plan(tmp_path: Path) -> None:
    made(tmp_path / "old", THREE_PAIRS, NOISY)
    wider = replace(THREE_PAIRS, question=replace(QUESTION, margin=Margin(absolute=0.05)))
    folder = made(tmp_path / "new", wider, SAME)
    shutil.rmtree(tmp_path / "new" / "runs")
    assert folder.reuse(tmp_path / "old") == 6
    assert judged(open_study(folder.path)).changes == (
        "question.margin.absolute was 0.01, now 0.05",
    )


def test_a_question_asked_afterwards_is_said(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", replace(THREE_PAIRS, question=None), SAME)
    file = tmp_path / "question.toml"
    file.write_text(
        '[question]\ntext = "Is it?"\nmargin = { absolute = 0.01 }\nclaim = "equivalent"\n'
    )
    asked = CliRunner().invoke(app, ["study", "ask", str(folder.path), str(file)])
    assert asked.exit_code == 0, asked.output
    judgement = judged(open_study(folder.path))
    assert judgement.stated == "after the runs"
    assert only_arm(judgement).word == "equivalent"
    assert "it is no test" in " ".join(judgement.limits)
    assert "plan, stated after the runs:" in on_disk("show", folder.path)[1]
    again = CliRunner().invoke(app, ["study", "ask", str(folder.path), str(file)])
    assert isinstance(again.exception, StudyError)
    assert "another one cannot take its place" in str(again.exception)


def test_some_runs_are_older_than_the_question(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", THREE_PAIRS, SAME)
    finish(folder, THREE_PAIRS.runs()[0], Ended(loss=BASE[1]), asked=None)
    judgement = judged(open_study(folder.path))
    assert judgement.stated == "after some of the runs"
    assert "1 of 6 runs are older" in judgement.limits[0]


# --- speed and determinism


def test_raw_and_matched_speed() -> None:
    ends = against(0.0021, 0.0019, 0.002, 0.0022, 0.0018)
    folder = imagined(
        PLAN,
        lambda run: Ended(
            loss=float(ends(run)),  # type: ignore[arg-type]
            seconds=1.0 if run.recipe.name == "fp32" else 0.5,
        ),
    )
    speed = only_arm(judged(folder)).speed
    assert speed is not None
    assert (speed.raw, speed.lowest, speed.highest, speed.num_pairs) == (2.0, 2.0, 2.0, 5)
    assert speed.extra_steps == pytest.approx(0.002 / 1e-4)
    assert speed.matched == pytest.approx(2 * 100 / 120)
    assert speed.matched_interval is not None
    assert speed.matched_interval.low < 2 * 100 / 120 < speed.matched_interval.high
    assert "Speed 2.00 (2.00 to 2.00, 5 pairs) of the baseline's, at equal loss 1.67" in shown(
        folder
    )[1]  # fmt: skip


@pytest.mark.parametrize("parts_at", [None, 1])
def test_repetitions_tell_whether_runs_are_deterministic(parts_at: int | None) -> None:
    folder = imagined(
        replace(PLAN, repeats=2),
        lambda run: Ended(
            loss=float(SAME(run)),  # type: ignore[arg-type]
            parts_at=parts_at if run.repeat == 2 else None,
        ),
    )
    summary = summarize(folder)
    assert (summary.num_finished, len(summary.runs)) == (12, 10)  # repetitions enter no mean
    found = summary.judgement.determinism
    assert found is not None
    assert (found.num_runs, found.equal, found.parted_at) == (3, parts_at is None, parts_at)
    expected = "are equal to the last bit" if parts_at is None else "part at step 1"
    assert expected in shown(folder)[1]


def test_the_command_shows_verdict_and_status(tmp_path: Path) -> None:
    made(tmp_path / "s", THREE_PAIRS, WORSE)
    code, text = on_disk("show", tmp_path / "s")
    assert code == 3
    assert "bf16-mixed: the claim does not hold Screening with n = 3: worse: the" in text
    code, text = on_disk("show", tmp_path / "s", "--json")
    assert code == 3
    arm = json.loads(text)["judgement"]["arms"][0]
    assert (arm["word"], arm["holds"]) == ("worse", False)


def test_floors_are_shown_with_their_limits() -> None:
    limits = noise_floor(BASE.values()).standard_deviation_limits
    text = shown(imagined(PLAN, SAME))[1]
    assert f"(95 %: {limits.low:.2g} to {limits.high:.2g})" in text


# --- a question's own bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"margin": {}}, "must be stated in one way"),
        ({"margin": {"compute": 0.02, "absolute": 0.01}}, "must be stated in one way"),
        ({"margin": {"compute": 2.0}}, "margin.compute must lie between 0 and 1"),
        ({"margin": {"absolute": -0.01}}, "margin.absolute must lie between 0 and inf"),
        ({"margin": {"percent": 1.0}}, "percent"),
        ({"margin": 0.01}, "question.margin"),
        ({"claim": "better"}, "question.claim = 'better'"),
        ({"text": " "}, "question.text is empty"),
        ({"arms": ["nvfp4"]}, "question.arms names 'nvfp4', which is not among the recipes"),
        ({"arms": ["fp32"]}, "question.arms names the baseline"),
        ({"n": 7}, "question.n = 7, and seeds names 3"),
        ({"stopping": "when significant"}, "question.stopping = 'when significant'"),
        ({"last_evaluations": 0}, "question.last_evaluations must be at least 1"),
        ({"marginn": {}}, "unknown key 'question.marginn'"),
    ],
)
def test_bad_questions(change: dict[str, object], message: str) -> None:
    from floatscope.lab.study.toml import plan_from

    with pytest.raises(StudyError) as error:
        plan_from({"preset": "quick", "question": change}, "x")
    assert message in str(error.value)


def test_a_question_without_a_margin_is_refused(tmp_path: Path) -> None:
    from floatscope.lab.study.toml import read_question

    file = tmp_path / "question.toml"
    file.write_text('[question]\ntext = "Is it?"\n')
    with pytest.raises(StudyError, match="margin is missing"):
        read_question(file)
    file.write_text("[model]\nwidth = 3\n")
    with pytest.raises(StudyError, match="has no table"):
        read_question(file)


def test_a_question_is_part_of_the_plan() -> None:
    other = replace(PLAN, question=Question(text="Another?", margin=Margin(absolute=0.01)))
    assert PLAN.sha256("data") == other.sha256("data")
    assert PLAN.asked_sha256("data") != other.asked_sha256("data")
    assert replace(PLAN, question=None).asked_sha256("data") is None
    spelled = replace(PLAN, question=replace(QUESTION, arms=("bf16-mixed",), n=5))
    assert PLAN.asked_sha256("data") == spelled.asked_sha256("data")


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (PLAN, []),
        (replace(PLAN, question=None), ["no question is stated, so there will be no verdict"]),
        (replace(PLAN, recipes=("bf16-mixed",)), ["the baseline fp32 is not among the recipes"]),
        (replace(PLAN, recipes=("fp32",)), ["fp32 is the only recipe"]),
        (replace(PLAN, seeds=(1,)), ["one seed: there will be a look at each recipe"]),
        (THREE_PAIRS, ["3 seeds: verdicts will be called screening"]),
    ],
)
def test_what_is_known_before_the_first_run(plan: StudyPlan, says: list[str]) -> None:
    found = list(foreseen(plan))
    assert len(found) == len(says)
    for line, expected in zip(found, says, strict=True):
        assert line.startswith(expected)
