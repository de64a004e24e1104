"""The loss: differences to the baseline, the raw curves beside, and the three reading questions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from floatscope.lab.study.summary import SIGMAS, Arm, Floor, Summary
from floatscope.report.charts import Chart, Curve, drawn, keys
from floatscope.report.evidence import Evidence, Run
from floatscope.report.figure import Figure
from floatscope.report.section import Answer, Section
from floatscope.report.words import Say, grouped, names, number, same, signed

UNSCALED, BF16, FP16 = "fp16-mixed-unscaled", "bf16-mixed", "fp16-mixed"
EARLY = 100
"""Steps at either end whose mean differences are compared."""
COURSE_PARAMETERS = 3_688_704
"""Of the course document's model, of which it reports losses."""
STEP, NATS = Say("step", "步"), Say("nats per token", "nat/token")


def section(evidence: Evidence) -> Section:
    """The section; its figures are absent while no run of the baseline has finished."""
    figures = [_raw(evidence)] if evidence.runs else []
    if evidence.baselines:
        figures = [_difference(evidence), *figures]
    if paired := paired_differences(evidence):
        figures.append(_training_difference(evidence, paired))
    return Section(
        name="loss",
        title=Say("Loss: the differences first", "损失：先看差值"),
        figures=tuple(figures),
        answers=tuple(_answers(evidence)),
        spoils=True,
        values={
            "table": _table(evidence),
            "steps": _evaluated(evidence.runs),
            "is_the_courses": any(
                run.manifest.num_parameters == COURSE_PARAMETERS for run in evidence.runs
            ),
        },
    )


def mean_of_baseline(evidence: Evidence) -> dict[int, float]:
    """By evaluation step, the mean validation loss of the baseline's runs."""
    held = _by_step(evidence.baselines)
    return {step: statistics.fmean(losses) for step, losses in held.items()}


def _by_step(runs: Iterable[Run]) -> dict[int, list[float]]:
    held: dict[int, list[float]] = {}
    for run in runs:
        for step, loss in zip(run.evaluations["step"], run.evaluations["loss"], strict=True):
            held.setdefault(step, []).append(loss)
    return held


def _difference(evidence: Evidence) -> Figure:
    held, mean = _by_step(evidence.baselines), mean_of_baseline(evidence)
    curves = [
        _curve(run, [loss - mean.get(step, math.nan) for step, loss in _evaluations(run)])
        for run in evidence.runs
    ]
    spreads = {
        step: SIGMAS * statistics.stdev(losses) for step, losses in held.items() if len(losses) > 1
    }
    chart = Chart(
        arms=evidence.recipes,
        curves=curves,
        band=[(step, -half, half) for step, half in spreads.items()],
        marks=diverged_marks(curves),
        zero=True,
        points=True,
        y_axis={"format": "+.3~f"},
    )
    count = len(evidence.baselines)
    band = Say(
        f"The band is ±{SIGMAS:g} standard deviations of a single {evidence.summary.baseline} run "
        f"over its {count} seeds at that step: a curve inside it cannot be told from a change of "
        "seed. Every run is a line; nothing is smoothed.",
        f"灰带是该步上单个 {evidence.summary.baseline} 运行的 ±{SIGMAS:g} 个标准差"
        f"（{count} 个种子）：落在带内的曲线与换一个种子无法区分。每次运行一条线，没有任何平滑。",
    )
    alone = Say(
        "One baseline run has no spread, so there is no band. Every run is a line.",
        "只有一次基线运行，没有离散度可言，所以没有噪声带。每次运行一条线。",
    )
    return _figure(
        "loss-difference",
        Say("Validation loss minus the baseline's mean", "验证损失减去基线均值"),
        chart,
        note=band if spreads else alone,
    )


def _raw(evidence: Evidence) -> Figure:
    curves = [_training(run, run.metrics["loss"]) for run in evidence.runs]
    chart = Chart(arms=evidence.recipes, curves=curves, dashed=False, marks=diverged_marks(curves))
    return _figure(
        "loss-raw",
        Say("Training loss, as it is", "训练损失原样"),
        chart,
        note=Say(
            "On this axis all arms are one line: that is why the differences come first.",
            "在这个纵轴上各组重合成一条线：所以先画差值。",
        ),
    )


def _training_difference(evidence: Evidence, paired: Sequence[tuple[Run, list[float]]]) -> Figure:
    curves = [_training(run, difference) for run, difference in paired]
    chart = Chart(arms=evidence.recipes, curves=curves, zero=True, dashed=False,
                  y_axis={"format": "+.2~f"})  # fmt: skip
    return _figure(
        "loss-paired",
        Say("Training loss minus the baseline of the same seed", "训练损失减去同种子的基线"),
        chart,
        note=Say(
            "Same batches, same initialization: what parts the lines is the recipe and whatever it "
            "sets off.",
            "同样的批次、同样的初始化：使曲线分开的只有精度设置，以及由它引发的一切。",
        ),
    )


def paired_differences(evidence: Evidence) -> list[tuple[Run, list[float]]]:
    """Per step, each other run's training loss minus the mean of the baseline's of its seed."""
    base: dict[int, list[list[float]]] = {}
    for run in evidence.runs:
        if run.recipe == evidence.summary.baseline and not run.diverged:
            base.setdefault(run.plan.seed, []).append(run.metrics["loss"])
    found = []
    for run in evidence.runs:
        if run.recipe != evidence.summary.baseline and run.plan.seed in base:
            mean = map(statistics.fmean, zip(*base[run.plan.seed], strict=False))
            pairs = zip(run.metrics["loss"], mean, strict=False)
            found.append((run, [loss - other for loss, other in pairs]))
    return found


def _figure(name: str, title: Say, chart: Chart, note: Say) -> Figure:
    svg, live = drawn(chart)
    shown, there = chart.num_points
    if shown < there:
        note += Say(
            f"Showing {grouped(shown)} of {grouped(there)} points: the smallest and the largest of "
            "each stretch.",
            f"显示 {grouped(there)} 个点中的 {grouped(shown)} 个：每一小段的最小值与最大值。",
        )
    if any(not math.isfinite(y) for curve in chart.curves for y in curve.y):
        note += Say("▲ marks where a loss stopped being a number.", "▲ 标出损失不再是数的地方。")
    return Figure(
        name=name,
        title=title,
        svg=svg,
        live=live,
        x=STEP,
        y=NATS,
        note=note,
        keys=keys(chart.arms, [curve.arm for curve in chart.curves], dashed=chart.dashed),
    )


def diverged_marks(curves: Sequence[Curve]) -> list[tuple[float, float, str, str]]:
    """A triangle on the last finite value before the first that is none."""
    marks = []
    for curve in curves:
        last = 0.0
        for x, y in zip(curve.x, curve.y, strict=True):
            if not math.isfinite(y):
                marks.append((x, last, "triangle-up", curve.arm))
                break
            last = y
    return marks


def _training(run: Run, values: Sequence[float]) -> Curve:
    steps = [step + 1 for step in run.metrics["step"][: len(values)]]
    return Curve(label=run.label, arm=run.recipe, x=steps, y=list(values))


def _curve(run: Run, values: Sequence[float]) -> Curve:
    return Curve(label=run.label, arm=run.recipe, x=run.evaluations["step"], y=list(values))


def _evaluations(run: Run) -> list[tuple[int, float]]:
    return [*zip(run.evaluations["step"], run.evaluations["loss"], strict=True)]


def _evaluated(runs: Sequence[Run]) -> list[int]:
    """At most five evaluation steps, the last among them."""
    steps = sorted({step for run in runs for step in run.evaluations["step"]})
    every = max(1, len(steps) // 5)
    return steps[::-1][::every][:5][::-1]


def _table(evidence: Evidence) -> list[tuple[str, str, list[str]]]:
    """A row a run: its label, how it ended, its losses at the evaluation steps."""
    rows = []
    for run in evidence.runs:
        held = dict(_evaluations(run))
        cells = [number(held.get(step)) for step in _evaluated(evidence.runs)]
        rows.append((run.label, run.manifest.exit_reason, cells))
    return rows


def _answers(evidence: Evidence) -> Iterable[Answer]:
    summary = evidence.summary
    yield Answer(
        question=Say(
            "① Are the final gaps beyond the noise floor?", "① 最终差距是否超过噪声底线？"
        ),
        answer=_gaps(summary),
    )
    yield Answer(
        question=Say(
            "② Where does unscaled fp16 differ: at the end, or early on already?",
            "② 不缩放的 fp16 差在哪：最后更高，还是前期就落后？",
        ),
        answer=_early_and_late(evidence),
    )
    yield Answer(
        question=Say(
            "③ Does bf16's step, 8 × coarser than fp16's, show in the loss?",
            "③ bf16 比 fp16 粗 8 倍，这在损失里看得出来吗？",
        ),
        answer=_coarser(summary),
    )


def floors(summary: Summary) -> list[Floor]:
    """The floors that could be measured."""
    return [f for f in (summary.seed_spread, summary.rerun_floor) if f.standard_deviation > 0]


def floor_words(summary: Summary) -> Say:
    """Both floors in numbers."""
    called = {"seed spread": "种子离散", "rerun floor": "重跑底线"}
    parts_en, parts_zh = [], []
    for floor in floors(summary):
        limit = number(SIGMAS * floor.standard_deviation)
        count = len(floor.losses)
        parts_en.append(f"{floor.name} {SIGMAS:g} σ = {limit} (n = {count})")
        parts_zh.append(f"{called[floor.name]} {SIGMAS:g} σ = {limit}（n = {count}）")
    if not parts_en:
        return Say("no floor could be measured", "没有测得噪声底线")
    return Say(", ".join(parts_en), "，".join(parts_zh))


def _gaps(summary: Summary) -> Say | None:
    arms = [a for a in summary.arms if a.recipe != summary.baseline and a.differences]
    if not arms or not floors(summary):
        return None
    said = same("")
    for arm in arms:
        said += Say(
            f"{arm.recipe} {signed(arm.difference)}: {_beyond(arm).en}.",
            f"{arm.recipe} {signed(arm.difference)}：{_beyond(arm).zh}。",
        )
    words = floor_words(summary)
    return said + Say(f"Floors: {words.en}.", f"底线：{words.zh}。")


def _beyond(arm: Arm) -> Say:
    hidden = {arm.hidden_by_seed_spread, arm.hidden_by_rerun_floor}
    if hidden == {False}:
        return Say("beyond both floors", "超过两条底线")
    if hidden <= {True, None} and True in hidden:
        return Say("within the floor", "在底线之内")
    if hidden == {True, False}:
        which = ("the rerun floor", "重跑底线") if arm.hidden_by_seed_spread else (
            "the seed spread", "种子离散")  # fmt: skip
        return Say(f"beyond {which[0]} only", f"只超过{which[1]}")
    return Say("beyond the floor that was measured", "超过测得的那条底线") if False in hidden else (
        Say("nobody can say: no floor was measured", "无从判断：没有测得底线"))  # fmt: skip


def _early_and_late(evidence: Evidence) -> Say | None:
    found = [d for run, d in paired_differences(evidence) if run.recipe == UNSCALED]
    found = [d for d in found if all(map(math.isfinite, d))]
    if not found:
        return None
    window = min(EARLY, max(1, len(found[0]) // 4))
    early, late = ([statistics.fmean(d[part]) for d in found]
                   for part in (slice(window), slice(-window, None)))  # fmt: skip
    first, last = statistics.fmean(early), statistics.fmean(late)
    each = [", ".join(signed(v) for v in values) for values in (early, late)]
    return Say(
        f"Its mean training-loss difference to fp32 is {signed(first)} over the first {window} "
        f"steps (by seed: {each[0]}) and {signed(last)} over the last {window} ({each[1]}).",
        f"它与 fp32 的训练损失平均差：前 {window} 步 {signed(first)}（各种子：{each[0]}），"
        f"最后 {window} 步 {signed(last)}（{each[1]}）。",
    )


def _coarser(summary: Summary) -> Say | None:
    arms = {arm.recipe: arm for arm in summary.arms if arm.differences}
    if BF16 not in arms or not floors(summary):
        return None
    bf16 = arms[BF16]
    shows = bf16.hidden_by_seed_spread is False or bf16.hidden_by_rerun_floor is False
    beside = f", fp16-mixed {signed(arms[FP16].difference)}" if FP16 in arms else ""
    verdict = (
        Say("It lies beyond a floor", "它超过了底线")
        if shows
        else Say("It does not show", "看不出来")
    )
    kept = Say("weights and updates stay in fp32", "权重和更新始终在 fp32")
    return Say(
        f"{verdict.en}: bf16-mixed {signed(bf16.difference)}{beside}; {_beyond(bf16).en}. Under "
        f"autocast {kept.en}.",
        f"{verdict.zh}：bf16-mixed {signed(bf16.difference)}{beside}；{_beyond(bf16).zh}。"
        f"autocast 下{kept.zh}。",
    )


def seeds_named(runs: Sequence[Run]) -> Say:
    """The seeds of runs, as an enumeration."""
    return names([str(seed) for seed in dict.fromkeys(run.plan.seed for run in runs)])
