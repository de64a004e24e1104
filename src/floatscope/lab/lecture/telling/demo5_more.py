"""What demonstration 5 says of its further arms: stochastic rounding, Kahan, the second moment."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from floatscope.lab.lecture.records import Decay, MasterWeights, MomentAt
from floatscope.lab.lecture.telling.demo5_names import lost_by_step
from floatscope.lab.lecture.telling.words import (
    Sentence,
    Table,
    Words,
    percent,
    said,
    same,
    signed,
    significant,
)

STILL = 0.5
"""Share of unchanged entries from which on a second moment is said to stand still."""


def tables(record: MasterWeights) -> tuple[Table, ...]:
    """The second moment really and in arithmetic; nothing without `--more`."""
    if not record.decay:
        return ()
    return (_moments(record), _decay(record))


def last_moments(record: MasterWeights) -> list[tuple[float, int, MomentAt]]:
    """By beta2 and seed, the second moment after the last step that was measured."""
    return [(t.beta2, t.seed, t.moments[-1]) for t in record.trainings if t.moments]


def _moments(record: MasterWeights) -> Table:
    return Table(
        title=Words(
            "The second moment stored in bf16, in the last step measured: entries that the step "
            "did not change, and √(v in bf16 / v in fp32) from the same gradients:",
            "二阶动量存 bf16，最后一次测量的那一步：这一步没有改变的元素，以及同样梯度下 √(bf16 "
            "的 v / fp32 的 v)：",
        ),
        header=(
            same("β₂"),
            Words("seed", "种子"),
            Words("unchanged", "没有变"),
            same("5 %"),
            Words("median", "中位数"),
            same("95 %"),
        ),
        rows=tuple(
            (
                f"{beta2:g}",
                str(seed),
                percent(at.unchanged.share),
                *(f"{value:.3f}" for value in at.ratio),
            )
            for beta2, seed, at in sorted(last_moments(record), key=lambda row: row[:2])
        ),
    )


def _decay(record: MasterWeights) -> Table:
    return Table(
        title=Words(
            f"What is left of v after {record.decay[0].steps} steps with gradient zero:",
            f"梯度为零的 {record.decay[0].steps} 步之后，v 剩下多少：",
        ),
        header=(
            same("β₂"),
            Words("format", "格式"),
            Words("exactly", "精确值"),
            Words("least", "最少"),
            Words("most", "最多"),
        ),
        rows=tuple(
            (
                f"{d.beta2:g}",
                d.format,
                f"{d.exact:.2e}",
                significant(d.smallest),
                significant(d.largest),
            )
            for d in record.decay
        ),
    )


def observations(record: MasterWeights) -> Iterator[Sentence]:
    """What the tables show; nothing without `--more`."""
    if not record.decay:
        return
    yield _without_master(record)
    yield _standstill(record)
    yield _frozen(record)
    yield _loss_says_nothing(record)


def _without_master(record: MasterWeights) -> Sentence:
    bare = mean(record.paired("bf16").values())
    stochastic, kahan = (mean(record.paired(arm).values()) for arm in ("bf16+sr", "bf16+kahan"))
    by_step = lost_by_step(record)["bf16+sr"]
    lost = percent(by_step[max(by_step)].share)
    return said(
        max(stochastic, kahan) < bare / 2,
        Words(
            f"Without a master, stochastic rounding ({signed(stochastic)}) and Kahan's sum "
            f"({signed(kahan)}) save most of the {signed(bare)} as well; Kahan's rest costs 2 "
            "bytes a parameter, stochastic rounding none. It, too, leaves many weights where "
            f"they are ({lost} of the updates in the last step), but is right in the mean.",
            f"不用主参数，随机舍入（{signed(stochastic)}）和 Kahan 求和（{signed(kahan)}）也能补"
            f"回 {signed(bare)} 的大部分；Kahan 的余数每个参数 2 字节，随机舍入不占内存。随机舍入也"
            f"让许多权重原地不动（最后一步 {lost} 的更新），但平均起来是对的。",
        ),
        Words(
            f"Stochastic rounding ({signed(stochastic)}) and Kahan's sum ({signed(kahan)}) do "
            f"not both halve the {signed(bare)} here.",
            f"这里随机舍入（{signed(stochastic)}）和 Kahan 求和（{signed(kahan)}）没有都把 "
            f"{signed(bare)} 减半。",
        ),
    )


def _standstill(record: MasterWeights) -> Sentence:
    shares = {
        beta2: mean(at.unchanged.share for b, _, at in last_moments(record) if b == beta2)
        for beta2 in (0.95, 0.999)
    }
    usual, slow = percent(shares[0.95]), percent(shares[0.999])
    return said(
        shares[0.999] > STILL > shares[0.95],
        Words(
            f"At β₂ = 0.999 the second moment in bf16 nearly stands still: a step leaves {slow} "
            f"of its entries unchanged; at 0.95 {usual}.",
            f"β₂ = 0.999 时 bf16 的二阶动量几乎不动：一步之后 {slow} 的元素没有变；0.95 时是 "
            f"{usual}。",
        ),
        Words(
            f"A step leaves {slow} of the second moment unchanged at β₂ = 0.999 and {usual} at "
            "0.95: not the contrast that arithmetic suggests.",
            f"一步之后没有变的元素，β₂ = 0.999 时 {slow}，0.95 时 {usual}：没有算术所提示的反差。",
        ),
    )


def _frozen(record: MasterWeights) -> Sentence:
    found: dict[tuple[str, float], Decay] = {(d.format, d.beta2): d for d in record.decay}
    bf16, fp32 = found["bf16", 0.999], found["fp32", 0.999]
    return said(
        bf16.smallest == 1.0,
        Words(
            "The arithmetic: 0.1 % less is less than half an ulp of any bf16 number, so v never "
            f"decays; after {bf16.steps} steps all of it is left, where fp32 keeps "
            f"{significant(fp32.largest)}.",
            f"算术上：减少 0.1 % 小于任何 bf16 数的半个间距，v 永远不衰减；{bf16.steps} 步之后原"
            f"样不动，fp32 只剩 {significant(fp32.largest)}。",
        ),
        Words(
            f"At β₂ = 0.999 v in bf16 decays here, to {significant(bf16.smallest)} of itself "
            f"after {bf16.steps} steps.",
            f"β₂ = 0.999 时这里 bf16 的 v 会衰减，{bf16.steps} 步之后剩 "
            f"{significant(bf16.smallest)}。",
        ),
        "arithmetic",
    )


def _loss_says_nothing(record: MasterWeights) -> Sentence:
    usual, slow = (mean(record.paired("v-bf16", beta2).values()) for beta2 in (0.95, 0.999))
    alone = mean(record.bits("fp32", 0.999).values()) - mean(record.bits("fp32").values())
    return said(
        abs(slow) < abs(alone),
        Words(
            f"The loss after {record.steps} steps does not show it ({signed(usual)} at 0.95, "
            f"{signed(slow)} at 0.999, each against fp32 at its own β₂); β₂ = 0.999 alone "
            f"changes fp32 by {signed(alone)}.",
            f"{record.steps} 步之后的损失看不出来（0.95 时 {signed(usual)}，0.999 时 "
            f"{signed(slow)}，各与同 β₂ 的 fp32 比）；单是 β₂ = 0.999 就使 fp32 改变 "
            f"{signed(alone)}。",
        ),
        Words(
            f"Here the loss does differ: {signed(usual)} at 0.95, {signed(slow)} at 0.999, "
            f"against {signed(alone)} from β₂ alone.",
            f"这里损失确实不同：0.95 时 {signed(usual)}，0.999 时 {signed(slow)}，而单是 β₂ 带来 "
            f"{signed(alone)}。",
        ),
    )
