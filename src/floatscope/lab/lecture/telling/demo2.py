"""What demonstration 2 says."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope.lab.lecture.records import Sum, Swallowed
from floatscope.lab.lecture.telling.words import (
    Sentence,
    Table,
    Told,
    Words,
    enumerated,
    grouped,
    reported,
    said,
    same,
    significant,
)

TOLD = Told(
    title=Words(
        "Two ways of being swallowed: sums that stall, updates that vanish",
        "两种“吞掉”：累加停滞与小更新消失",
    ),
    why=Words(
        "What is added to a number and is less than half the distance to the next one is rounded "
        "away. Products of matrices, softmax and gradients are long sums of small numbers.",
        "加到一个数上的量如果小于它到下一个数的距离的一半，就会被舍入掉。矩阵乘法、softmax 和梯度"
        "都是很多小数的和。",
    ),
    patch=Words(
        "Sums in fp32, whatever is added: tensor cores multiply in 16 bits and accumulate in fp32.",
        "不管加的是什么，求和用 fp32：tensor core 就是 16 位相乘、fp32 累加。",
    ),
    history=(
        reported(
            "BLOOM trained in bf16 and accumulated its gradients in fp32; GLM-130B computed its "
            "softmax in fp32, since attention scores left fp16's range.",
            "BLOOM 用 bf16 训练，梯度累加在 fp32 里做；GLM-130B 的注意力分数超出 fp16 的范围，"
            "softmax 用 fp32 计算。",
            "bigscience-workshop/bigscience, chronicles; GLM-130B, arXiv 2210.02414, section 3",
        ),
    ),
    calls="x.to(dtype); torch.zeros((), dtype=dtype); s + inc; torch.matmul(a, b)",
    caption=Words(
        "The running sum after so many additions; the right answer rises to 1.",
        "加了若干次之后的和；正确的和一直升到 1。",
    ),
)

REMEDIES = {
    "fp32": Words("sum in fp32", "fp32 累加"),
    "kahan": Words("Kahan's sum", "Kahan 求和"),
    "pairwise": Words("pairwise", "两两相加"),
    "stochastic": Words("stochastic rounding", "随机舍入"),
}
TOLERANCE = 0.02
"""Of a remedy's sum, by which it may miss."""


def tables(record: Swallowed) -> tuple[Table, ...]:
    """The sums, their remedies, and 1 + delta."""
    return (_sums(record), _remedies(record), _added(record))


def _sums(record: Swallowed) -> Table:
    number = Words("never", "不停")
    rows = tuple(
        (
            s.format,
            f"{s.increment:.8g}",
            f"{s.result:.8g}",
            number if s.stalled_after is None else grouped(s.stalled_after),
            number if s.predicted_after is None else grouped(s.predicted_after),
            f"{s.predicted_value:g}",
        )
        for s in record.sums
    )
    times, one = grouped(record.additions), f"{record.increment:g}"
    return Table(
        title=Words(
            f"(a) {one} added up {times} times; the right answer is "
            f"{record.additions * record.increment:g}:",
            f"(a) 把 {times} 个 {one} 加起来，正确答案是 {record.additions * record.increment:g}：",
        ),
        header=(
            Words("format", "格式"),
            Words("addend", "加数"),
            Words("sum", "和"),
            Words("stands still after", "停在第几次"),
            Words("predicted", "预测"),
            Words("at", "停在"),
        ),
        rows=rows,
    )


def _remedies(record: Swallowed) -> Table:
    rows = tuple(
        (
            Words(f"{r.format}, {REMEDIES[r.name].en}", f"{r.format}，{REMEDIES[r.name].zh}"),
            f"{r.result:.7g}",
            "" if r.repetitions == 1 else f"± {significant(r.spread, 2)}",
        )
        for r in record.remedies
    )
    runs = max(r.repetitions for r in record.remedies)
    return Table(
        title=Words(
            f"Remedies: the same additions (± is the standard deviation of {runs} repetitions):",
            f"补救办法：同样的累加（± 是 {runs} 次重复的标准差）：",
        ),
        header=(Words("how", "怎样加"), Words("sum", "和"), same("")),
        rows=rows,
    )


def _added(record: Swallowed) -> Table:
    formats = list(dict.fromkeys(a.format for a in record.added))
    found = {(a.delta, a.format): a for a in record.added}
    deltas = list(dict.fromkeys(a.delta for a in record.added))
    gone, kept = Words("swallowed", "被吞掉"), Words("kept: ", "保留：")

    def cell(delta: float, form: str) -> Words:
        added = found[delta, form]
        result = f"{added.result:.7g}"
        return gone if added.swallowed else Words(kept.en + result, kept.zh + result)

    halves = tuple(f"{found[deltas[0], form].half_ulp:.4g}" for form in formats)
    return Table(
        title=Words("(b) Is 1 + δ still 1?", "(b) 1 + δ 是否等于 1："),
        header=(same("δ"), *map(same, formats)),
        rows=(
            *((f"{delta:g}", *(cell(delta, form) for form in formats)) for delta in deltas),
            (Words("half an ulp of 1", "1 处半个间距"), *halves),
        ),
    )


def observations(record: Swallowed) -> Iterator[Sentence]:
    """What the tables show."""
    sums = {s.format: s for s in record.sums}
    for form in ("fp16", "bf16"):
        yield _stalls(sums[form])
    yield _order(sums["fp16"], sums["bf16"])
    yield _fp32(record, sums["fp32"])
    yield _remedied(record)
    yield _small_updates(record)


def _stalls(s: Sum) -> Sentence:
    after = grouped(s.stalled_after or 0)
    return said(
        s.stalled_after is not None and s.stalled_after == s.predicted_after,
        Words(
            f"{s.format} stands still at {s.result:g} after {after} additions: its numbers there "
            f"are more than twice {s.increment:.3g} apart. That step follows from the ulps alone.",
            f"{s.format} 的累加在第 {after} 次之后停在 {s.result:g}：那里相邻两数的间距超过加数 "
            f"{s.increment:.3g} 的两倍。这一步只由间距就能算出来。",
        ),
        Words(
            f"{s.format}: measured standstill after {s.stalled_after}, predicted "
            f"{s.predicted_after}; the prediction from ulps does not hold here.",
            f"{s.format}：实测停在第 {s.stalled_after} 次，预测是第 {s.predicted_after} 次；由间"
            "距作的预测在此不成立。",
        ),
        "arithmetic",
    )


def _order(fp16: Sum, bf16: Sum) -> Sentence:
    return said(
        bf16.result < fp16.result,
        Words(
            f"bf16, with fewer digits, stops earlier: at {bf16.result:g} rather than "
            f"{fp16.result:g}.",
            f"有效位更少的 bf16 停得更早：停在 {bf16.result:g}，而不是 {fp16.result:g}。",
        ),
        Words(
            f"Here bf16 does not stop before fp16 ({bf16.result:g} and {fp16.result:g}).",
            f"这里 bf16 并没有比 fp16 停得更早（{bf16.result:g} 与 {fp16.result:g}）。",
        ),
        "arithmetic",
    )


def _fp32(record: Swallowed, fp32: Sum) -> Sentence:
    right = record.additions * record.increment
    miss = f"{fp32.result - right:+.2g}"
    return said(
        fp32.stalled_after is None,
        Words(
            f"fp32 keeps moving and ends at {fp32.result:.8g}, off by {miss} from rounding each "
            f"sum; it, too, would stand still, at {fp32.predicted_value:g}.",
            f"fp32 一直在动，最后是 {fp32.result:.8g}，每次求和的舍入使它偏离 {miss}；它也会停，"
            f"停在 {fp32.predicted_value:g}。",
        ),
        Words(
            f"fp32 stood still after {fp32.stalled_after} additions, at {fp32.result:g}.",
            f"fp32 在第 {fp32.stalled_after} 次之后停在 {fp32.result:g}。",
        ),
        "arithmetic",
    )


def _remedied(record: Swallowed) -> Sentence:
    addend = {s.format: s.increment for s in record.sums}
    misses = [
        r for r in record.remedies
        if abs(r.result / (record.additions * addend[r.format]) - 1) > TOLERANCE
    ]  # fmt: skip
    names = enumerated([f"{r.format} {REMEDIES[r.name].en}" for r in misses])
    names_zh = enumerated([f"{r.format} {REMEDIES[r.name].zh}" for r in misses])
    tolerance = f"{100 * TOLERANCE:g} %"
    return said(
        not misses,
        Words(
            f"Every remedy comes within {tolerance} of the sum of the addends as 16 bits hold "
            "them. Stochastic rounding does so in the mean; single sums scatter.",
            f"每一种补救都落在 16 位加数之和的 {tolerance} 以内。随机舍入是平均起来如此，单次的和"
            "有散布。",
        ),
        Words(
            f"Not every remedy comes within {tolerance} of the sum of the addends: {names.en} "
            "does not.",
            f"并非每一种补救都落在加数之和的 {tolerance} 以内：{names_zh.zh}没有。",
        ),
    )


def _small_updates(record: Swallowed) -> Sentence:
    gone = [f"{a.delta:g} ({a.format})" for a in record.added if a.swallowed]
    by_rule = [f"{a.delta:g} ({a.format})" for a in record.added if a.delta <= a.half_ulp]
    names = enumerated(gone)
    return said(
        gone == by_rule and bool(gone),
        Words(
            f"1 + δ is 1 exactly where δ is at most half an ulp of 1: {names.en}. A weight of 1 "
            "does not notice such updates; the fp32 master is for them (5).",
            f"1 + δ 仍是 1，恰好发生在 δ 不超过 1 处半个间距时：{names.zh}。大小为 1 的权重感觉不"
            "到这样的更新，fp32 主参数就是为此（演示 5）。",
        ),
        Words(
            f"Swallowed were {names.en or 'none'}, and by the rule of half an ulp it would be "
            f"{enumerated(by_rule).en or 'none'}.",
            f"被吞掉的是 {names.zh or '无'}，而按半个间距的规则应是 "
            f"{enumerated(by_rule).zh or '无'}。",
        ),
        "arithmetic",
    )
