"""What demonstration 3 says."""

from __future__ import annotations

import math
from collections.abc import Iterator

from floatscope.lab.lecture.records import GradientBatch, Gradients, ScaleRow
from floatscope.lab.lecture.telling.words import (
    Sentence,
    Table,
    Told,
    Words,
    percent,
    power,
    reported,
    said,
    same,
    significant,
)

TOLD = Told(
    title=Words(
        "Real gradients in fp16, under loss scales from 1 to 2^24",
        "真实梯度在 fp16 里反向传播，损失缩放从 1 到 2^24",
    ),
    why=Words(
        "Gradients are small, and fp16 ends at 2^-24. Too small a scale leaves them among the "
        "subnormals and zeros, too large a scale makes infinities. Where is the range between?",
        "梯度很小，而 fp16 到 2^-24 为止。缩放太小，小梯度落进次正规数、变成 0；太大，溢出成 "
        "inf。合适的范围在哪里？",
    ),
    patch=Words(
        "Loss scaling, for fp16's range: multiply the loss by 2^k, divide the gradients by it in "
        "fp32.",
        "损失缩放（loss scaling），补 fp16 的范围：损失乘以 2^k，梯度在 fp32 里再除回来。",
    ),
    history=(
        reported(
            "Micikevicius et al. (2018) used constant scales from 8 to 32K, by network, and many "
            "networks needed none: no fixed value suits all.",
            "Micikevicius 等（2018）用的固定缩放从 8 到 32K 不等，取决于网络，不少网络不需要缩"
            "放：没有一个值适合所有模型。",
            "arXiv 1710.03740, section 3.2",
        ),
    ),
    calls="copy.deepcopy(model).half(); (loss * scale).backward(); p.grad.float() / scale; "
    "torch.isfinite(g)",
    caption=Words(
        "Left: median relative error of a gradient element, by the exponent k of the scale 2^k; "
        "32 and 256 are the batch sizes. Right: infinite and NaN elements, predicted (ring) and "
        "real (dot), by k.",
        "左：梯度元素相对误差的中位数，横轴是缩放 2^k 的 k，32 和 256 是批大小。右：变成 inf 或 "
        "NaN 的比例，横轴同上，圆圈是预测，实心点是实测。",
    ),
)

HELPS, LEVEL = 1.1, 0.03
"""From where on scaling is said to help, and within what the error is said to stay level."""
SETTLED = 8
"""The exponent from which on it is looked at."""


def tables(record: Gradients) -> tuple[Table, ...]:
    """The gradients themselves, and for each batch size what was lost and how far off it is."""
    by_batch = (table for b in record.batches for table in (_lost(b), _errors(b)))
    return (_sizes(record), *by_batch)


def _sizes(record: Gradients) -> Table:
    return Table(
        title=Words(
            f"The base model ({record.bits:.4f} bits a character) in fp32; shares of the "
            "non-zero gradient elements:",
            f"base model（{record.bits:.4f} bit/字符）的 fp32 梯度；比例以非零元素计：",
        ),
        header=(
            Words("batch", "批大小"),
            Words("median |g|", "|g| 中位数"),
            same("< 2^-14"),
            same("< 2^-24"),
            same("≤ 2^-25"),
        ),
        rows=tuple(
            (
                f"{b.batch_size} × 96",
                f"{b.median:.2e}",
                percent(b.below_normal.share),
                percent(b.below_smallest.share),
                percent(b.to_zero.share),
            )
            for b in record.batches
        ),
    )


def _lost(batch: GradientBatch) -> Table:
    return Table(
        title=Words(
            f"Batch {batch.batch_size}, really in fp16, and what fp32's spectrum predicts:",
            f"批大小 {batch.batch_size}，真的用 fp16，以及由 fp32 的谱作的预测：",
        ),
        header=(
            Words("scale", "缩放"),
            Words("zero", "变成 0"),
            Words("predicted", "预测"),
            same("inf"),
            Words("predicted", "预测"),
            same("NaN"),
            Words("sign flips", "变号"),
        ),
        rows=tuple(
            (
                power(row.exponent),
                *(
                    percent(counted.share, 2)
                    for counted in (
                        row.flushed, row.predicted_flushed, row.infinite, row.predicted_infinite,
                        row.nan, row.sign_flips,
                    )
                ),
            )
            for row in batch.scales
        ),
    )  # fmt: skip


def _errors(batch: GradientBatch) -> Table:
    return Table(
        title=Words(
            f"Batch {batch.batch_size}, relative error against fp32, and against fp32 at the "
            "same weights rounded to fp16:",
            f"批大小 {batch.batch_size}，与 fp32 相比的相对误差；以及与权重同样舍入到 fp16 的 "
            "fp32 相比：",
        ),
        header=(
            Words("scale", "缩放"),
            Words("whole", "整体"),
            Words("median element", "元素中位数"),
            Words("whole, same w", "整体，同权重"),
            Words("median, same w", "中位数，同权重"),
        ),
        rows=tuple(
            (power(row.exponent), *(_shown(error) for error in _errors_of(row)))
            for row in batch.scales
        ),
    )


def _errors_of(row: ScaleRow) -> tuple[float, ...]:
    return (row.error, row.median_error, row.error_rounded, row.median_error_rounded)


def _shown(error: float) -> str:
    return percent(error) if math.isfinite(error) else "–"


def observations(record: Gradients) -> Iterator[Sentence]:
    """What the tables show."""
    for batch in record.batches:
        yield _scaling_helps(batch)
    yield _level(record)
    for batch in record.batches:
        yield _whole(batch)
    yield _too_large(record)
    yield _sizes_differ(record)
    yield _rounded(record)
    yield _zeros_on_the_way(record)


def _at(batch: GradientBatch, exponent: int) -> ScaleRow:
    return next(row for row in batch.scales if row.exponent == exponent)


def _scaling_helps(batch: GradientBatch) -> Sentence:
    first, settled = _at(batch, 0), _at(batch, SETTLED)
    before, after = percent(first.median_error), percent(settled.median_error)
    size, flushed = batch.batch_size, percent(first.flushed.share, 2)
    return said(
        first.median_error >= HELPS * settled.median_error,
        Words(
            f"Batch {size}, unscaled: {flushed} of the gradient become zero and "
            f"{percent(batch.below_normal.share)} are subnormal; the median element is off by "
            f"{before}. At 2^{SETTLED} that is {after}: "
            f"{significant(first.median_error / settled.median_error, 2)} times less.",
            f"批大小 {size}，不缩放：{flushed} 的梯度变成零，{percent(batch.below_normal.share)} "
            f"是次正规数；元素的误差中位数是 {before}。乘以 2^{SETTLED} 后是 {after}，缩小 "
            f"{significant(first.median_error / settled.median_error, 2)} 倍。",
        ),
        Words(
            f"Batch {size}: scaling by 2^{SETTLED} does not lower the median error much here, "
            f"from {before} to {after}; its gradients are not too small for fp16.",
            f"批大小 {size}：这里乘以 2^{SETTLED} 并没有明显降低误差中位数（{before} 到 "
            f"{after}）；这些梯度对 fp16 来说不算小。",
        ),
    )


def _settled_rows(batch: GradientBatch) -> list[ScaleRow]:
    return [row for row in batch.scales if row.exponent >= SETTLED and row.is_finite]


def _level(record: Gradients) -> Sentence:
    rows = [(row.median_error, _at(batch, SETTLED).median_error)
            for batch in record.batches for row in _settled_rows(batch)]  # fmt: skip
    worst = max((abs(error / at - 1) for error, at in rows), default=float("inf"))
    last = [max((r.exponent for r in _settled_rows(b)), default=0) for b in record.batches]
    until = " / ".join(power(exponent) for exponent in dict.fromkeys(last))
    return said(
        worst <= LEVEL,
        Words(
            f"From 2^{SETTLED} to the last scale without infinities ({until}) the median error "
            f"stays within {percent(worst, 2)}: what is left comes from rounding in forward and "
            "products, and no scale mends that.",
            f"从 2^{SETTLED} 到最后一个没有溢出的缩放（{until}），误差中位数的变化不超过 "
            f"{percent(worst, 2)}：剩下的误差来自前向和乘积的舍入，缩放补不了。",
        ),
        Words(
            f"Above 2^{SETTLED} the median error still moves, by up to {percent(worst, 2)}: no "
            "level is reached.",
            f"在 2^{SETTLED} 以上误差中位数仍在变化，最多 {percent(worst, 2)}：没有到达平台。",
        ),
    )


def _whole(batch: GradientBatch) -> Sentence:
    first, settled = _at(batch, 0).error, _at(batch, SETTLED).error
    numbers = f"{percent(first)} → {percent(settled)}"
    return said(
        first >= HELPS * settled,
        Words(
            f"Batch {batch.batch_size}: the error of the whole gradient falls, too: {numbers}.",
            f"批大小 {batch.batch_size}：整体梯度的误差也下降：{numbers}。",
        ),
        Words(
            f"Batch {batch.batch_size}: the error of the whole gradient hardly moves, {numbers}: "
            "the largest elements make it, and they were never too small. The document saw it "
            "halve.",
            f"批大小 {batch.batch_size}：整体梯度的误差几乎不动，{numbers}：它由最大的元素决定，"
            "而它们从来不会太小。讲义里它减了一半。",
        ),
    )


def _too_large(record: Gradients) -> Sentence:
    last = [batch.scales[-1] for batch in record.batches]
    scale = power(last[0].exponent)
    worse = all(r.infinite.count + r.nan.count > r.predicted_infinite.count for r in last)
    parts = [
        (b.batch_size, *(percent(c.share) for c in (r.predicted_infinite, r.infinite, r.nan)))
        for b, r in zip(record.batches, last, strict=True)
    ]
    en = "; ".join(
        f"batch {n}: predicted {p} infinite, real {i} infinite and {x} NaN" for n, p, i, x in parts
    )
    zh = "；".join(
        f"批大小 {n}：预测 {p} 成 inf，实际 {i} 成 inf、{x} 成 NaN" for n, p, i, x in parts
    )
    return said(
        worse,
        Words(
            f"At {scale} the gradient overflows ({en}). Reality is worse than a cast of the "
            "final gradient: infinities arise on the way back and meet as NaN. The step has to "
            "be skipped whole.",
            f"在 {scale} 梯度溢出（{zh}）。实际比“最后才转换”的预测更糟：反向途中就出现 inf，相遇"
            "成 NaN。这一步必须整个跳过。",
        ),
        Words(
            f"At {scale} reality is not worse than predicted here ({en}).",
            f"在 {scale}，这里实际并不比预测更糟（{zh}）。",
        ),
    )


def _sizes_differ(record: Gradients) -> Sentence:
    small, large = record.batches[0], record.batches[-1]
    return said(
        large.median < small.median and large.below_normal.share > small.below_normal.share,
        Words(
            f"The larger batch has the smaller gradients (median |g| {large.median:.2e} against "
            f"{small.median:.2e}; below 2^-14 {percent(large.below_normal.share)} against "
            f"{percent(small.below_normal.share)}), because the loss is a mean over the batch: "
            "larger batches need larger scales.",
            f"批越大，梯度越小（|g| 中位数 {large.median:.2e} 对 {small.median:.2e}；小于 2^-14 "
            f"的 {percent(large.below_normal.share)} 对 {percent(small.below_normal.share)}），因"
            "为损失是整批的平均：批越大，需要的缩放越大。",
        ),
        Words(
            f"Here the larger batch has no smaller gradients (median |g| {large.median:.2e} "
            f"against {small.median:.2e}).",
            f"这里大批的梯度并不更小（|g| 中位数 {large.median:.2e} 对 {small.median:.2e}）。",
        ),
    )


def _rounded(record: Gradients) -> Sentence:
    row = _at(record.batches[-1], SETTLED)
    whole, alone = percent(row.median_error), percent(row.median_error_rounded)
    return said(
        row.median_error_rounded < row.median_error,
        Words(
            f"Against fp32 at the same weights, rounded to fp16, the median error at 2^{SETTLED} "
            f"is {alone} rather than {whole}: the difference comes from rounding the weights, "
            "the rest is the arithmetic.",
            f"与舍入到 fp16 的同一组权重上的 fp32 相比，2^{SETTLED} 处误差中位数是 {alone} 而不是"
            f" {whole}：差的那部分来自权重的舍入，其余才是运算本身。",
        ),
        Words(
            f"Rounding the weights explains nothing of the error here ({alone} with, {whole} "
            "without).",
            f"这里权重的舍入解释不了误差（{alone} 对 {whole}）。",
        ),
    )


def _zeros_on_the_way(record: Gradients) -> Sentence:
    first = [(b.batch_size, _at(b, 0)) for b in record.batches]
    parts = [
        (n, percent(r.predicted_flushed.share, 2), percent(r.flushed.share, 2)) for n, r in first
    ]
    en = "; ".join(f"batch {n}: predicted {p}, real {x}" for n, p, x in parts)
    zh = "；".join(f"批大小 {n}：预测 {p}，实际 {x}" for n, p, x in parts)
    return said(
        all(r.flushed.count > r.predicted_flushed.count for _, r in first),
        Words(
            f"Unscaled, too, reality is worse than a cast of the final gradient ({en} zeros): "
            "what is rounded away on the way back is missing from everything behind it.",
            f"不缩放时实际也比“最后才转换”的预测更糟（变成零的：{zh}）：反向途中被舍入掉的，在"
            "其后的一切里都缺了。",
        ),
        Words(
            f"Unscaled, reality is not worse than predicted here (zeros: {en}).",
            f"不缩放时，这里实际并不比预测更糟（变成零的：{zh}）。",
        ),
    )
