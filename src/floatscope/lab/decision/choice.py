"""Which recipe the records speak for, by a rule that is stated.

Out is what diverged, what is worse by the study's claim or beyond both noise floors, and what loses
gradients that the baseline keeps. Of the rest come first recipes whose claim is shown, the one with
the fewest bits in its products before others, and of these one that needs no loss scaling; then,
provisionally, recipes of which neither claim nor damage is shown: without loss scaling first, then
by the upper limit of their loss. If none is left it is the baseline.
"""

from __future__ import annotations

import math

from floatscope.lab.decision.facts import ArmFacts, Facts
from floatscope.lab.decision.records import Choice, Said
from floatscope.lab.decision.words import names, share

LOST = 1e-4
"""Share of exactly zero gradients beyond the baseline's from which on a recipe loses gradients."""


def choose(facts: Facts) -> Choice:
    """Apply the rule."""
    baseline = facts.arm(facts.baseline)
    if baseline is None or len(facts.arms) < 2:
        return Choice(
            recipe=None,
            settled=False,
            because=Said(
                en="There is no baseline with another recipe beside it.",
                zh="没有可以比较的基线和其他配方。",
            ),
            against={},
        )
    others = [arm for arm in facts.arms if arm is not baseline]
    against = {arm.name: why for arm in others if (why := _against(arm, baseline)) is not None}
    left = [arm for arm in others if arm.name not in against]
    shown = [arm for arm in left if arm.judged is not None and arm.judged.holds]
    if shown:
        best = min(shown, key=lambda arm: (arm.bits, arm.needs_scaling))
        return _chosen(best, left, against, settled=True)
    if left:
        best = min(left, key=lambda arm: (arm.needs_scaling, _upper(arm)))
        return _chosen(best, left, against, settled=False)
    return Choice(
        recipe=baseline.name,
        settled=True,
        because=Said(
            en=f"Every other recipe is out, so it is {baseline.name}.",
            zh=f"其余配方都已出局，所以用 {baseline.name}。",
        ),
        against=against,
    )


def _against(arm: ArmFacts, baseline: ArmFacts) -> Said | None:
    """Why an arm is out; None if it is not."""
    found = arm.arm
    if found.num_diverged:
        return Said(
            en=f"{found.num_diverged} of {found.num_runs} runs diverged",
            zh=f"{found.num_runs} 次运行中有 {found.num_diverged} 次发散",
        )
    if arm.judged is not None and arm.judged.holds is False:
        return Said(en="the study's claim does not hold for it", zh="研究的论断对它不成立")
    extra = found.zero_fraction - baseline.arm.zero_fraction
    beyond = found.hidden_by_seed_spread is False and found.hidden_by_rerun_floor is not True
    if beyond and found.difference > 0:
        return _beyond(found.difference, share(found.zero_fraction) if extra > LOST else "")
    if extra > LOST:
        return Said(
            en=f"it loses gradients: {share(found.zero_fraction)} are exactly zero",
            zh=f"它丢失梯度：{share(found.zero_fraction)} 恰为 0",
        )
    return None


def _beyond(difference: float, zeros: str) -> Said:
    return Said(
        en=f"its loss lies {difference:+.4f} from the baseline's, beyond three standard "
        "deviations of the noise floors that could be measured"
        + (f", and {zeros} of its gradients are exactly zero" if zeros else ""),
        zh=f"它的 loss 与基线相差 {difference:+.4f}，超过能测出的噪声底线的三个标准差"
        + (f"，并且 {zeros} 的梯度恰为 0" if zeros else ""),
    )


def _upper(arm: ArmFacts) -> float:
    """Upper limit of the loss difference; the difference, where there is no interval."""
    judged = arm.judged
    if judged is not None and judged.margin_interval is not None:
        return judged.margin_interval.high
    difference = arm.arm.difference
    return math.inf if math.isnan(difference) else difference


def _chosen(
    best: ArmFacts, left: list[ArmFacts], against: dict[str, Said], *, settled: bool
) -> Choice:
    for arm in left:
        if arm is not best:
            against = {**against, arm.name: _second(arm, best, settled=settled)}
    because = _settled(best) if settled else _provisional(best, left)
    return Choice(recipe=best.name, settled=settled, because=because, against=against)


def _settled(best: ArmFacts) -> Said:
    return Said(
        en=f"The claim is shown for it, and its products have the fewest bits ({best.bits}) of "
        "those for which it is.",
        zh=f"论断对它得到证明；在得到证明的配方中它的乘法位数最少（{best.bits} 位）。",
    )


def _provisional(best: ArmFacts, left: list[ArmFacts]) -> Said:
    others = names([arm.name for arm in left])
    reason = Said(
        en="it needs no loss scaling" if not best.needs_scaling else "none does without scaling",
        zh="它不需要损失缩放" if not best.needs_scaling else "没有一种可以不用损失缩放",
    )
    return Said(
        en=f"Provisionally: the claim is shown for no recipe. Nothing speaks against {others.en}; "
        f"of these {best.name} comes first because {reason.en}.",
        zh=f"暂定：论断对任何配方都还没有得到证明。没有证据反对 {others.zh}；其中 "
        f"{best.name} 居先，因为{reason.zh}。",
    )


def _second(arm: ArmFacts, best: ArmFacts, *, settled: bool) -> Said:
    if arm.needs_scaling and not best.needs_scaling:
        return Said(en="it needs loss scaling", zh="它需要损失缩放")
    if settled and not (arm.judged is not None and arm.judged.holds):
        return Said(en="the claim is not shown for it", zh="论断对它还没有得到证明")
    if settled:
        return Said(en=f"its products have {arm.bits} bits", zh=f"它的乘法有 {arm.bits} 位")
    return Said(
        en="the upper limit of its loss is higher or unknown", zh="它的 loss 上限更高，或者未知"
    )
