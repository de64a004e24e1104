"""The first question: which precision, by loss curve, skipped steps and zeros together."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope.lab.decision.facts import EARLY, LATE, ArmFacts, Facts, mean_of
from floatscope.lab.decision.records import Answer, Choice, Evidence, Said, Statement
from floatscope.lab.decision.words import both, listed, names, share, verdict_of


def which_precision(facts: Facts, choice: Choice) -> Answer:
    """Loss at the end, along the curve, skipped steps, zeros, and what follows."""
    return Answer(
        id="precision",
        question=Said(
            en="Which precision trains this model, by loss curve, skipped steps and underflow?",
            zh="用哪种精度训练这个模型？理由要同时引用 loss 曲线、跳过步数与下溢比例。",
        ),
        statements=(_end(facts), *_curve(facts), _skipped(facts), _zeros(facts), _choice(choice)),
    )


def _end(facts: Facts) -> Statement:
    parts, evidence = [], []
    for arm in facts.arms:
        found = facts.each_run(arm, "validation loss", "evaluations.parquet", "last(loss)")
        evidence += found
        loss = f"{arm.name} {arm.arm.validation_loss:.4f}"
        if arm.name == facts.baseline:
            parts.append(both(loss))
            continue
        said = Said(en="no verdict", zh="无结论")
        if arm.judged is not None:
            said = verdict_of(arm.judged, facts.summary.judgement.margin)
        parts.append(Said(en=f"{loss}, {said.en}", zh=f"{loss}，{said.zh}"))
    said = listed(parts)
    return Statement(
        id="loss-at-the-end",
        text=Said(
            en=f"Validation loss after the last step (mean over seeds), and the difference to "
            f"{facts.baseline}: {said.en}.{_margin(facts).en}",
            zh=f"最后一步之后的验证 loss（对种子取平均），以及与 {facts.baseline} 的差：{said.zh}。"
            f"{_margin(facts).zh}",
        ),
        evidence=tuple(evidence),
    )


def _margin(facts: Facts) -> Said:
    judgement = facts.summary.judgement
    if judgement.margin is None:
        return Said(en=" No margin was stated or measured.", zh="没有给出或测得界值。")
    return Said(
        en=f" The margin is {judgement.margin:.2g} nats a token.",
        zh=f"界值是每个 token {judgement.margin:.2g} nat。",
    )


def _curve(facts: Facts) -> Iterator[Statement]:
    """Whether an arm is behind early, or only in the end."""
    baseline = facts.arm(facts.baseline)
    if baseline is None or len(facts.arms) < 2:
        return
    evidence: list[Evidence] = []
    parts = []
    theirs = [_of_steps(facts, baseline, rows) for rows in (EARLY, LATE)]
    for arm in facts.arms:
        if arm is baseline or not arm.runs:
            continue
        mine = [_of_steps(facts, arm, rows) for rows in (EARLY, LATE)]
        evidence += [e for part in mine for e in part]
        early, late = (mean_of(m) - mean_of(t) for m, t in zip(mine, theirs, strict=True))
        parts.append(
            Said(
                en=f"{arm.name} {early:+.4f} then {late:+.4f}",
                zh=f"{arm.name} 先 {early:+.4f} 后 {late:+.4f}",
            )
        )
    evidence = [e for part in theirs for e in part] + evidence
    said = listed(parts)
    yield Statement(
        id="loss-early-and-late",
        text=Said(
            en=f"Training loss against {baseline.name}, mean over the first 100 steps and over the "
            f"last 100: {said.en}.",
            zh=f"训练 loss 与 {baseline.name} 之差，前 100 步的平均和后 100 步的平均：{said.zh}。",
        ),
        evidence=tuple(evidence),
    )


def _of_steps(facts: Facts, arm: ArmFacts, rows: str) -> list[Evidence]:
    return facts.each_run(arm, f"training loss{rows}", "metrics.parquet", f"mean(loss{rows})")


def _skipped(facts: Facts) -> Statement:
    parts, evidence = [], []
    for arm in facts.arms:
        found = facts.each_run(arm, "skipped steps", "metrics.parquet", "sum(skipped)")
        evidence += found
        parts.append(both(f"{arm.name} {', '.join(str(int(e.value or 0)) for e in found)}"))
    said = listed(parts)
    return Statement(
        id="skipped-steps",
        text=Said(en=f"Skipped steps, by run: {said.en}.", zh=f"各次运行的跳过步数：{said.zh}。"),
        evidence=tuple(evidence),
    )


def _zeros(facts: Facts) -> Statement:
    parts, evidence = [], []
    for arm in facts.arms:
        found = zeros_of(facts, arm)
        evidence += found
        parts.append(both(f"{arm.name} {share(mean_of(found))}"))
    said = listed(parts)
    return Statement(
        id="zero-gradients",
        text=Said(
            en=f"Gradient elements that are exactly zero, mean over steps and seeds: {said.en}.",
            zh=f"恰为 0 的梯度元素，对步数和种子取平均：{said.zh}。",
        ),
        evidence=tuple(evidence),
    )


def zeros_of(facts: Facts, arm: ArmFacts) -> list[Evidence]:
    """The mean share of exactly zero gradients of each run of an arm."""
    return facts.each_run(arm, "exactly zero gradients", "metrics.parquet", "mean(zero_fraction)")


def _choice(choice: Choice) -> Statement:
    against = listed(
        Said(en=f"{name}: {why.en}", zh=f"{name}：{why.zh}") for name, why in choice.against.items()
    )
    not_others = Said(en=f" Not {against.en}.", zh=f"不选 {against.zh}。")
    if not choice.against:
        not_others = both("")
    chosen = names([choice.recipe]) if choice.recipe else Said(en="none", zh="无")
    return Statement(
        id="choice",
        text=Said(
            en=f"So: {chosen.en}. {choice.because.en}{not_others.en}",
            zh=f"所以：{chosen.zh}。{choice.because.zh}{not_others.zh}",
        ),
        evidence=(),
    )
