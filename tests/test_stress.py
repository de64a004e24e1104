"""Stress studies: signs of instability, remedies, first failures, identities that stay."""

from __future__ import annotations

import io
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from floatscope.cli.stress_table import stress_table
from floatscope.errors import StudyError
from floatscope.lab.decision.decide import decide
from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.model import make_gpt
from floatscope.lab.run import records
from floatscope.lab.run.batches import training_batch
from floatscope.lab.run.plan import RunPlan, TrainConfig
from floatscope.lab.run.stability import Watch
from floatscope.lab.run.train import Run, batch_loss, make_optimizer
from floatscope.lab.study.determinism import determinism
from floatscope.lab.study.folder import create, open_study
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.presets import STRESS
from floatscope.lab.study.stress import Stress
from floatscope.lab.study.stress_summary import StressSummary, summarize_stress
from floatscope.lab.study.summary import summarize
from floatscope.lab.study.toml import plan_from
from floatscope.lab.text.corpus import Tokens, encode
from floatscope.lab.text.world import world_text
from tests import tiny
from tests.studies import Ended, imagined


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return encode(world_text(), tiny.MODEL.vocab_size)[0]


def executed(plan: RunPlan, tokens: Tokens, folder: Path) -> records.FinishedRun:
    Run(plan, tokens, folder, "emulated").execute()
    return records.load(folder)


# --- identities


def test_published_runs_keep_their_identities() -> None:
    """The novel study was made before models and plans had these options."""
    study = open_study(Path(__file__).parent.parent / "results" / "novel")
    found = {plan.label: run.manifest.run_id for plan, run in study.finished()}
    assert len(found) == 15
    assert found["fp32-s1337"] == "a75fc45a880c5b88ae697d227ce890a7"
    assert "qk_norm" not in str(study.plan.runs()[0].to_dict())
    assert "z_loss" not in str(study.plan.runs()[0].to_dict())


def test_options_that_are_on_are_another_run() -> None:
    plan = tiny.plan()
    others = [
        replace(plan, model=replace(plan.model, qk_norm=True)),
        replace(plan, train=replace(plan.train, z_loss=1e-4)),
        replace(plan, repeat=1),
        replace(plan, watch=True),
    ]
    assert len({p.run_id("data") for p in (plan, *others)}) == 5
    assert len({p.label for p in (plan, *others)}) == 5
    for other in others:
        assert RunPlan.from_dict(other.to_dict()) == other


def test_the_plan_of_the_preset() -> None:
    runs = STRESS.runs()
    assert len(runs) == len({run.label for run in runs}) == 3 * 7 * 4
    assert all(run.watch for run in runs)
    assert [run.recipe.name for run in runs[:3]] == ["fp32", "bf16-mixed", "fp16-mixed"]
    assert plan_from({"preset": "stress"}, "stress") == STRESS


def test_a_stress_table_takes_no_question_from_its_preset() -> None:
    plan = plan_from({"preset": "quick", "stress": {"peak_lrs": [0.01]}}, "x")
    assert plan.question is None
    assert len(plan.runs()) == 4 * 4 * 3


@pytest.mark.parametrize(
    ("stress", "message"),
    [
        ({"peak_lrs": []}, "must name at least one each"),
        ({"peak_lrs": [0.1, 0.01]}, "stress.peak_lrs must rise"),
        ({"peak_lrs": [-0.1]}, "stress takes positive numbers"),
        ({"peak_lrs": [0.1], "remedies": ["dropout"]}, "stress.remedies.0 = 'dropout'"),
        ({"peak_lrs": [0.1], "remedies": ["none", "none"]}, "names one twice"),
        ({"peak_lr": [0.1]}, "unknown key 'stress.peak_lr'"),
        ({"remedies": ["none"]}, "stress.peak_lrs is missing"),
    ],
)
def test_bad_stress_tables(stress: dict[str, object], message: str) -> None:
    with pytest.raises(StudyError) as error:
        plan_from({"preset": "quick", "stress": stress}, "x")
    assert message in str(error.value)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="train.z_loss must be 0 or a positive number"):
        TrainConfig(z_loss=-1.0)
    with pytest.raises(StudyError, match="a question or is a stress study"):
        plan_from({"preset": "quick", "stress": {"peak_lrs": [0.1]}, "question": {"n": 3}}, "x")


# --- what a watched run records


@pytest.mark.parametrize("recipe", ["fp32", "fp16-mixed"])
def test_watching_changes_no_bit(recipe: str, tokens: Tokens, tmp_path: Path) -> None:
    plan = tiny.plan(recipe)
    blind = executed(plan, tokens, tmp_path / "blind")
    watched = executed(replace(plan, watch=True), tokens, tmp_path / "watched")
    for table, columns in records.COLUMNS.items():
        mine, theirs = blind.table(table), watched.table(table)
        for column in set(columns) - set(records.WALL_CLOCK):
            assert repr(mine[column]) == repr(theirs[column])
    assert not (tmp_path / "blind" / "stability.parquet").exists()
    assert len(watched.table("stability")["step"]) == plan.train.steps


def looked_at(config: GPTConfig) -> tuple[Watch, float, list[Tensor]]:
    """A watch after one backward pass, the gradient's norm, and the gradients."""
    model = make_gpt(config, seed=3)
    watch = Watch(model, make_optimizer(model, tiny.TRAIN))
    batch_loss(model, tiny.batch(config)).backward()
    watch.see_gradients()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return watch, float(torch.nn.utils.get_total_norm(gradients)), gradients


def test_signs_are_what_they_are_called() -> None:
    watch, norm, gradients = looked_at(tiny.MODEL)
    signs = watch.signs(norm, clip_norm=norm / 4)
    clipped = [g * ((norm / 4) / (norm + 1e-6)) for g in gradients]
    assert signs.min_gradient_rms == pytest.approx(min(g.square().mean() ** 0.5 for g in clipped))
    assert signs.min_gradient_rms_by_eps == pytest.approx(signs.min_gradient_rms / 1e-8)
    below = sum(int((g.abs() < 1e-8).sum()) for g in clipped)
    assert signs.share_below_eps == below / sum(g.numel() for g in clipped)
    model = make_gpt(tiny.MODEL, seed=3)
    logits = model(tiny.batch().inputs_BT)
    normalizers = torch.log(torch.exp(logits.double()).sum(-1))
    assert signs.max_log_normalizer == pytest.approx(normalizers.max().item())
    assert signs.mean_log_normalizer == pytest.approx(normalizers.mean().item())


def test_attention_logits_are_the_scores_before_softmax() -> None:
    """Against the scores of materialized attention, masked and scaled, seen at its softmax."""
    seen: list[float] = []
    original = Tensor.softmax

    def softmax(scores: Tensor, dim: int) -> Tensor:
        seen.append(scores.max().item())
        return original(scores, dim=dim)

    config = replace(tiny.MODEL, attention="materialized")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "softmax", softmax)
        watch, norm, _ = looked_at(config)
    assert len(seen) == tiny.MODEL.num_layers
    assert watch.signs(norm, 1.0).max_attention_logit == pytest.approx(max(seen), rel=1e-6)


def test_without_a_finite_gradient_nothing_is_said_of_it() -> None:
    watch, _, _ = looked_at(tiny.MODEL)
    signs = asdict(watch.signs(math.inf, 1.0))
    assert math.isnan(signs["min_gradient_rms"])
    assert math.isnan(signs["share_below_eps"])
    assert signs["min_gradient_rms_of"] == ""


def test_normalized_q_and_k_bound_the_scores() -> None:
    """Both have length √H at the start, so no score exceeds √H."""
    watch, norm, _ = looked_at(replace(tiny.MODEL, qk_norm=True))
    logit = watch.signs(norm, 1.0).max_attention_logit
    plain, norm, _ = looked_at(tiny.MODEL)
    assert plain.signs(norm, 1.0).max_attention_logit < 1
    assert 1 < logit <= math.sqrt(tiny.MODEL.head_width)


def test_qk_norm_leaves_all_other_weights_as_they_were() -> None:
    plain, normed = make_gpt(tiny.MODEL, 3), make_gpt(replace(tiny.MODEL, qk_norm=True), 3)
    theirs = dict(normed.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, theirs.pop(name))
    assert len(theirs) == 2 * tiny.MODEL.num_layers
    assert all(torch.equal(gain, torch.ones(tiny.MODEL.head_width)) for gain in theirs.values())


@pytest.mark.parametrize("recipe", ["bf16-mixed", "fp16-mixed"])
def test_remedies_run_in_16_bits(recipe: str, tokens: Tokens, tmp_path: Path) -> None:
    plan = tiny.plan(recipe)
    plan = replace(
        plan,
        watch=True,
        model=replace(plan.model, qk_norm=True),
        train=replace(plan.train, z_loss=1e-4),
    )
    run = executed(plan, tokens, tmp_path)
    losses = run.table("evaluations")["loss"]
    assert losses[-1] < losses[0]


def test_z_loss_is_added_to_the_training_loss_alone(tokens: Tokens, tmp_path: Path) -> None:
    plan = tiny.plan("fp32")
    without = executed(plan, tokens, tmp_path / "without")
    with_z = executed(
        replace(plan, train=replace(plan.train, z_loss=0.01)), tokens, tmp_path / "with"
    )
    assert with_z.table("evaluations")["loss"][0] == without.table("evaluations")["loss"][0]
    batch = training_batch(
        tokens.train,
        seed=plan.seed,
        step=0,
        size=plan.train.batch_size,
        context=plan.model.context,
    )
    logits = make_gpt(plan.model, plan.seed)(batch.inputs_BT)
    penalty = 0.01 * logits.logsumexp(-1).square().mean().item()
    added = with_z.table("metrics")["loss"][0] - without.table("metrics")["loss"][0]
    assert added == pytest.approx(penalty, rel=1e-4)


def test_repetitions_are_equal_to_the_bit(tokens: Tokens, tmp_path: Path) -> None:
    plan = StudyPlan(
        name="x",
        recipes=("fp32",),
        seeds=(1,),
        ulp_reruns=1,
        repeats=2,
        model=tiny.MODEL,
        train=tiny.TRAIN,
    )
    folder = create(tmp_path / "x", plan, tokens.sha256)
    for run in plan.runs():
        Run(run, tokens, folder.run_folder(run)).execute()
    found = determinism(folder)
    assert found is not None
    assert (found.num_runs, found.equal, found.standard_deviation) == (3, True, 0.0)


# --- what a stress study found

PLAN = StudyPlan(
    name="stressed",
    recipes=("fp32", "fp16-mixed"),
    seeds=(1,),
    ulp_reruns=0,
    model=tiny.MODEL,
    train=tiny.TRAIN,
    stress=Stress(peak_lrs=(0.01, 0.1, 1.0), remedies=("none", "qk-norm"), fails_by=1.0),
)


def ended(run: RunPlan) -> Ended:
    """fp32 fails by its loss at 1; fp16 by its scale at 1, and by its loss at 0.1 unless normed."""
    rate, is_fp16 = run.train.peak_lr, run.recipe.name == "fp16-mixed"
    if is_fp16 and rate == 1.0 and not run.model.qk_norm:
        return Ended(exit_reason="loss scale collapsed")
    loss = {0.01: 2.0, 0.1: 2.5, 1.0: 3.5}[rate]
    if run.model.qk_norm:
        loss = min(loss, 2.9)
    elif is_fp16 and rate == 0.1:
        loss = 3.0
    return Ended(loss=loss)


def test_first_failures() -> None:
    summary = summarize_stress(imagined(PLAN, ended))
    assert (summary.best_loss, summary.fails_above) == (2.0, 3.0)
    found = {(f.remedy, f.recipe): f for f in summary.first_failures}
    assert found["none", "fp32"].peak_lr == 1.0
    assert found["none", "fp32"].why == "loss"
    assert found["none", "fp32"].highest_without == 0.1
    assert found["none", "fp16-mixed"].peak_lr == 0.1
    assert found["qk-norm", "fp32"].peak_lr is None
    assert found["qk-norm", "fp16-mixed"].highest_without == 1.0
    collapsed = next(r for r in summary.runs if r.exit_reason != "finished")
    assert collapsed.fails
    assert collapsed.validation_loss is None
    assert collapsed.max_attention_logit == 30.0  # NaN of the last step left out


def text_of(summary: StressSummary) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(stress_table(summary))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table() -> None:
    text = text_of(summarize_stress(imagined(PLAN, ended)))
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert "fp16-mixed, no remedy: first at 0.1 (by its loss), not at 0.01." in flat
    assert "fp32, q and k normalized: fails at none of the rates up to 1." in flat
    assert "scale !" in text
    assert "One seed a cell: screening." in flat


def test_first_failures_of_half_a_study_are_those_of_whole_arms() -> None:
    some = set(PLAN.runs()[:5])
    summary = summarize_stress(imagined(PLAN, lambda run: ended(run) if run in some else None))
    assert (summary.num_planned, summary.num_finished) == (12, 5)
    assert [(f.recipe, f.remedy) for f in summary.first_failures] == [("fp32", "none")]
    empty = summarize_stress(imagined(PLAN, lambda run: None))
    assert "0 of 12 runs" in text_of(empty)


def test_other_summaries_refuse_it() -> None:
    folder = imagined(PLAN, ended)
    for refused in (summarize, decide):
        with pytest.raises(StudyError, match="is a stress study"):
            refused(folder)
    with pytest.raises(StudyError, match="is no stress study"):
        summarize_stress(imagined(replace(PLAN, stress=None), ended))
