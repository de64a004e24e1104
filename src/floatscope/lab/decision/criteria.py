"""The course document's acceptance criteria, one by one with what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from floatscope.lab.decision.facts import ArmFacts, Facts, mean_of
from floatscope.lab.decision.memory import Account, in_chinese, missing, value
from floatscope.lab.decision.precision import zeros_of
from floatscope.lab.decision.records import Criterion, Evidence, Missing, Said
from floatscope.lab.decision.words import both, grouped, listed, mib, share

UNSCALED, SCALED = "fp16-mixed-unscaled", "fp16-mixed"
_TABLE = Said(
    en="The comparison holds tokens/s, memory, validation loss and skipped steps of every recipe",
    zh="对照表包含 tokens/s、显存、val loss、跳过步数",
)
_MEMORY = Said(
    en="The states of 16 bytes a parameter against the measurement after the first step, the "
    "difference explained, with the formula's estimate of the activations beside it",
    zh="模型状态的理论值与实测「第一步后」对比，差额得到解释，并给出激活的公式估算与实测差多少",
)
_ZEROS = Said(
    en="The mean share of exactly zero gradients is higher in unscaled fp16 than in scaled fp16",
    zh="fp16 不缩放的平均「恰为 0 梯度」比例高于 fp16 缩放",
)


def criteria(facts: Facts, accounts: Sequence[Account]) -> tuple[Criterion, ...]:
    """All of them, in the document's order."""
    return (_table(facts), _memory(facts, accounts), _zeros(facts))


def _table(facts: Facts) -> Criterion:
    evidence: list[Evidence] = []
    parts, complete = [], True
    for arm in facts.arms:
        seconds = facts.each_run(arm, "seconds a step", "metrics.parquet", "median(seconds)")
        tokens = facts.each_run(arm, "tokens a step", "manifest.json", "tokens_per_step")
        memory = facts.each_run(arm, "largest resident set", "manifest.json", "peak_rss_bytes")
        loss = facts.each_run(arm, "validation loss", "evaluations.parquet", "last(loss)")
        skipped = facts.each_run(arm, "skipped steps", "metrics.parquet", "sum(skipped)")
        evidence += [*seconds, *tokens, *memory, *loss, *skipped]
        found = arm.arm
        complete &= bool(arm.runs) and math.isfinite(found.tokens_per_second)
        parts.append(
            both(
                f"{arm.name} {found.tokens_per_second:.0f} tokens/s, "
                f"{found.peak_rss_bytes / 2**20:.0f} MiB RSS, {found.validation_loss:.4f}, "
                f"{found.skipped_steps:g}"
            )
        )
    said = listed(parts)
    return Criterion(
        id="table",
        what=_TABLE,
        holds=complete if facts.arms else None,
        text=Said(en=f"{said.en}.", zh=f"{said.zh}。"),
        evidence=tuple(evidence),
    )


def _memory(facts: Facts, accounts: Sequence[Account]) -> Criterion:
    if not accounts:
        return _not_measured("memory", _MEMORY, missing(facts))
    account = accounts[0]
    rest = int(value(account.states)) - account.theory
    unexplained = sum(int(value(each.unexplained)) for each in accounts)
    said = listed(_estimate(each) for each in accounts)
    return Criterion(
        id="memory",
        what=_MEMORY,
        holds=unexplained == 0,
        text=Said(
            en=f"Theory {mib(account.theory)}, measured {mib(value(account.states))} after the "
            f"first step: {grouped(rest)} B of named rows between them. The activations show after "
            f"the forward pass: {said.en}. Unexplained: {unexplained} B.",
            zh=f"理论 {mib(account.theory)}，第一步后实测 {mib(value(account.states))}：其间 "
            f"{grouped(rest)} B 逐行有名。激活出现在前向之后：{said.zh}。"
            f"无法解释：{unexplained} B。",
        ),
        evidence=tuple(one for each in accounts for one in each.evidence),
    )


def _estimate(account: Account) -> Said:
    measured, formula, name = account.activations, value(account.formula), account.terms[0][0]
    return Said(
        en=f"with {account.attention} attention {mib(measured)}, {name} {mib(formula)}, a "
        f"difference of {mib(measured - formula)}",
        zh=f"{account.attention} 注意力实测 {mib(measured)}，{in_chinese(name)} {mib(formula)}，差 "
        f"{mib(measured - formula)}",
    )


def _zeros(facts: Facts) -> Criterion:
    unscaled, scaled = facts.arm(UNSCALED), facts.arm(SCALED)
    if unscaled is None or scaled is None or not unscaled.runs or not scaled.runs:
        folder = facts.folder
        return _not_measured(
            "zeros",
            _ZEROS,
            Missing(
                what=Said(
                    en=f"runs of {UNSCALED} and {SCALED}", zh=f"{UNSCALED} 和 {SCALED} 的运行"
                ),
                command=(
                    f"floatscope study run {folder.plan.name} --recipes "
                    f"{facts.baseline},{SCALED},{UNSCALED} --out FOLDER --reuse {folder.path}"
                ),
            ),
        )
    return _more_zeros(facts, unscaled, scaled)


def _more_zeros(facts: Facts, unscaled: ArmFacts, scaled: ArmFacts) -> Criterion:
    evidence = [zeros_of(facts, arm) for arm in (unscaled, scaled)]
    more, less = (mean_of(found) for found in evidence)
    by_seed = {
        plan.seed: float(e.value)  # type: ignore[arg-type]
        for (plan, _), e in zip(scaled.runs, evidence[1], strict=True)
    }
    pairs = [
        float(e.value) > by_seed[plan.seed]  # type: ignore[arg-type]
        for (plan, _), e in zip(unscaled.runs, evidence[0], strict=True)
        if plan.seed in by_seed
    ]
    return Criterion(
        id="zeros",
        what=_ZEROS,
        holds=more > less,
        text=Said(
            en=f"{share(more)} unscaled, {share(less)} scaled; higher in {sum(pairs)} of "
            f"{len(pairs)} seeds.",
            zh=f"不缩放 {share(more)}，缩放 {share(less)}；{len(pairs)} 个种子中有 {sum(pairs)} "
            "个更高。",
        ),
        evidence=(*evidence[0], *evidence[1]),
    )


def _not_measured(name: str, what: Said, lacking: Missing) -> Criterion:
    return Criterion(
        id=name,
        what=what,
        holds=None,
        text=Said(en="not measured", zh="未测量"),
        evidence=(),
        missing=lacking,
    )
