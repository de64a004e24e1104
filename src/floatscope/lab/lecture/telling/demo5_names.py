"""The arms of demonstration 5 by name, what they lost, and their differences from fp32."""

from __future__ import annotations

from statistics import mean

from floatscope.lab.lecture.records import Counted, MasterWeights
from floatscope.lab.lecture.telling.words import Table, Words, same, signed

NAMES = {
    "fp32": Words("fp32 (reference)", "fp32（参照）"),
    "bf16": Words("weights in bf16, no master", "权重存 bf16，没有主参数"),
    "fp16": Words("weights in fp16, no master", "权重存 fp16，没有主参数"),
    "bf16+master": Words("bf16 + fp32 master", "bf16 + fp32 主参数"),
    "bf16+sr": Words("bf16, stochastic rounding", "bf16，随机舍入"),
    "bf16+kahan": Words("bf16, Kahan's sum", "bf16，Kahan 求和"),
    "v-bf16": Words("second moment in bf16", "二阶动量存 bf16"),
}


def arms(record: MasterWeights) -> list[tuple[str, float]]:
    """Arms and their beta2, in the order of training."""
    return list(dict.fromkeys((t.arm, t.beta2) for t in record.trainings))


def name_of(arm: str, beta2: float) -> Words:
    """An arm's name; beta2 is named where it is not the usual one."""
    words = NAMES.get(arm, same(arm))
    if beta2 == 0.95:
        return words
    return Words(f"{words.en}, β₂ = {beta2:g}", f"{words.zh}，β₂ = {beta2:g}")


def lost_by_step(record: MasterWeights) -> dict[str, dict[int, Counted]]:
    """By arm and step, updates lost over all seeds; beta2 0.95."""
    found: dict[str, dict[int, Counted]] = {}
    for training in record.trainings:
        for at in training.lost:
            if training.beta2 == 0.95:
                steps = found.setdefault(training.arm, {})
                so_far = steps.get(at.step, Counted(count=0, of=0))
                steps[at.step] = Counted(
                    count=so_far.count + at.lost.count, of=so_far.of + at.lost.of
                )
    return {arm: steps for arm, steps in found.items() if arm in NAMES and arm != "v-bf16"}


def differences_table(record: MasterWeights) -> Table:
    """Bits a character, and minus fp32 by seed."""
    seeds = sorted({t.seed for t in record.trainings})
    rows = []
    for arm, beta2 in arms(record):
        bits, paired = record.bits(arm, beta2), record.paired(arm, beta2)
        difference = "" if arm == "fp32" else signed(mean(paired.values()))
        each = ("" if arm == "fp32" else signed(paired[s]) for s in seeds)
        rows.append((name_of(arm, beta2), f"{mean(bits.values()):.4f}", difference, *each))
    return Table(
        title=Words(
            f"{record.steps} steps from scratch, products in fp32, only what is stored is "
            "rounded; bits a character on the validation text, minus fp32 of the same seed and "
            "β₂:",
            f"从零训练 {record.steps} 步，乘积用 fp32，只舍入存储的值；验证集 bit/字符，减去同种"
            "子、同 β₂ 的 fp32：",
        ),
        header=(
            Words("stored", "存储方式"),
            Words("mean", "平均"),
            Words("minus fp32", "减 fp32"),
            *(Words(f"seed {s}", f"种子 {s}") for s in seeds),
        ),
        rows=tuple(rows),
    )
