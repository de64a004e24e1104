"""What demonstration 1 says."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope.lab.lecture.records import FormatRow, Formats
from floatscope.lab.lecture.telling.words import (
    Sentence,
    Table,
    Told,
    Words,
    power,
    reported,
    said,
    same,
)

TOLD = Told(
    title=Words(
        "Formats: what fp32, fp16 and bf16 can hold", "三种格式：fp32、fp16、bf16 能表示什么"
    ),
    why=Words(
        "Large models train in 16 bits: half the memory, and twice the speed or more where there "
        "are units for it. What 16 bits can hold decides what can go wrong.",
        "大模型用 16 位浮点数训练：显存省一半，有专门单元的设备上还快一倍以上。16 位能表示什么，"
        "决定了什么会出错。",
    ),
    patch=Words(
        "fp16 lacks range: loss scaling repairs that (3, 4). Both lack precision: fp32 "
        "accumulation repairs sums (2), an fp32 master repairs small updates (5).",
        "fp16 缺范围：用损失缩放来补（演示 3、4）。两种都缺精度：求和用 fp32 累加来补（演示 2），"
        "小更新用 fp32 主参数来补（演示 5）。",
    ),
    history=(
        reported(
            "BigScience's 104B trial in fp16 went from loss 6.4 to 14 within ten iterations near "
            "step 7 000 and ended in NaN; BLOOM-176B was then trained in bf16, whose range is "
            "fp32's.",
            "BigScience 的 104B 试验用 fp16，在第 7 000 步附近十次迭代之内损失从 6.4 升到 14，最"
            "后成了 NaN；之后 BLOOM-176B 改用范围与 fp32 相同的 bf16 训练。",
            "bigscience-workshop/bigscience, chronicles",
        ),
    ),
    calls="torch.finfo(dtype).max, .tiny, .eps; x.half(), x.bfloat16(), x.float()",
    caption=Words(
        "Positive numbers of each format by log2 of their magnitude: normal (solid) and "
        "subnormal (pale). At the ends stand the smallest and the largest number.",
        "各格式的正数，横轴是大小的 log2：正规数（深色）与次正规数（浅色），两端写着最小值与最大"
        "值。",
    ),
)


def tables(record: Formats) -> tuple[Table, ...]:
    """The formats, a row each."""
    header = (
        Words("format", "格式"),
        Words("sign+exp\n+frac", "符号+指数\n+尾数"),
        Words("largest", "最大值"),
        Words("smallest\nnormal", "最小\n正规数"),
        Words("smallest", "最小\n次正规数"),
        same("eps"),
        Words("becomes\n0", "变成 0"),
        Words("overflows", "溢出"),
    )
    rows = tuple(
        (
            row.name,
            f"{int(row.signed)}+{row.exponent_bits}+{row.fraction_bits}",
            row.max,
            row.smallest_normal,
            row.smallest,
            row.eps,
            row.to_zero,
            row.overflows,
        )
        for row in record.rows
    )
    return (Table(title=Words("Every number is exact, or marked ≈:", "除标 ≈ 的以外都是精确值："),
                  header=header, rows=rows),)  # fmt: skip


def observations(record: Formats) -> Iterator[Sentence]:
    """What the table shows."""
    rows = {row.name: row for row in record.rows}
    fp32, fp16, bf16 = (rows.get(name) for name in ("fp32", "fp16", "bf16"))
    if fp16:
        yield _range_of_fp16(fp16)
    if fp32 and bf16:
        yield _range_of_bf16(fp32, bf16)
    if fp16 and bf16:
        yield _each_lacks_one(fp16, bf16)
    if not (fp32 and fp16 and bf16) or len(rows) > 3:
        yield _widest_and_finest(record.rows)


def _range_of_fp16(fp16: FormatRow) -> Sentence:
    smallest, normal = power(fp16.min_octave), power(fp16.emin)
    return said(
        fp16.to_zero == f"≤ {power(fp16.min_octave - 1)}" and fp16.min_octave < fp16.emin,
        Words(
            f"fp16 ends at {fp16.max} (infinite from {fp16.overflows.split()[-1]} on), and "
            f"magnitudes {fp16.to_zero} become 0. What lies between that and {smallest} rounds "
            f"up to {smallest}: that all below {smallest} becomes 0 is a simplification. From "
            f"{smallest} to {normal} are subnormals, with ever fewer digits.",
            f"fp16 最大到 {fp16.max}（从 {fp16.overflows.split()[-1]} 起变成 inf），大小 "
            f"{fp16.to_zero} 的数变成 0。在它与 {smallest} 之间的数向上舍入成 {smallest}：“小于 "
            f"{smallest} 就变成 0”是简化的说法。{smallest} 到 {normal} 之间是次正规数，有效位越来"
            "越少。",
        ),
        Words(
            f"This fp16 has no subnormals or another bound for zero ({fp16.to_zero}): what the "
            "document says of them does not apply.",
            f"这里的 fp16 没有次正规数，或归零的界限不同（{fp16.to_zero}）：讲义的说法在此不成立。",
        ),
        "arithmetic",
    )


def _range_of_bf16(fp32: FormatRow, bf16: FormatRow) -> Sentence:
    return said(
        bf16.exponent_bits == fp32.exponent_bits,
        Words(
            f"bf16 has as many exponent bits as fp32 ({bf16.exponent_bits}) and so nearly its "
            f"range (up to {bf16.max}); the price is a fraction of {bf16.fraction_bits} bits: "
            f"eps is {bf16.eps}, two to three decimal digits.",
            f"bf16 的指数位和 fp32 一样多（{bf16.exponent_bits} 位），范围几乎相同（最大 "
            f"{bf16.max}）；代价是尾数只有 {bf16.fraction_bits} 位：eps = {bf16.eps}，只有两三位"
            "十进制有效数字。",
        ),
        Words(
            f"Here bf16 has {bf16.exponent_bits} exponent bits and fp32 {fp32.exponent_bits}: "
            "their ranges differ.",
            f"这里 bf16 有 {bf16.exponent_bits} 个指数位，fp32 有 {fp32.exponent_bits} 个：两者范"
            "围不同。",
        ),
        "arithmetic",
    )


def _each_lacks_one(fp16: FormatRow, bf16: FormatRow) -> Sentence:
    finer, wider = 2 ** (fp16.fraction_bits - bf16.fraction_bits), bf16.emax - fp16.emax
    return said(
        fp16.fraction_bits > bf16.fraction_bits and fp16.emax < bf16.emax,
        Words(
            f"Each of the two lacks one thing: fp16's steps are {finer} times finer, bf16 "
            f"reaches 2^{wider} times farther. The patches of mixed precision are for these two "
            "lacks.",
            f"两种 16 位格式各缺一样：fp16 的间距细 {finer} 倍，bf16 的上限大 2^{wider} 倍。混合"
            "精度的补丁就是分别针对这两样的。",
        ),
        Words(
            "Here neither format is finer and narrower than the other: the trade that the "
            "document describes is not there.",
            "这里并不是一种更细、另一种更宽：讲义所说的取舍在此不成立。",
        ),
        "arithmetic",
    )


def _widest_and_finest(rows: tuple[FormatRow, ...]) -> Sentence:
    widest = max(rows, key=lambda row: row.emax - row.min_octave)
    finest = max(rows, key=lambda row: row.fraction_bits)
    octaves = widest.emax - widest.min_octave + 1
    return said(
        widest is not finest,
        Words(
            f"Of these, {widest.name} spans the most octaves ({octaves}) and {finest.name} is "
            f"the finest (eps {finest.eps}).",
            f"其中 {widest.name} 跨的倍频程最多（{octaves} 个），{finest.name} 最细（eps = "
            f"{finest.eps}）。",
        ),
        Words(
            f"Of these, {widest.name} spans the most octaves ({octaves}) and is the finest, too "
            f"(eps {finest.eps}).",
            f"其中 {widest.name} 跨的倍频程最多（{octaves} 个），也最细（eps = {finest.eps}）。",
        ),
        "arithmetic",
    )
