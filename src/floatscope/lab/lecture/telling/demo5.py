"""What demonstration 5 says of swallowed updates and of the trainings that everyone gets.

What `--more` adds is in `demo5_more.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean, stdev

from floatscope.lab.lecture.records import Counted, MasterWeights, Unmoved
from floatscope.lab.lecture.telling import demo5_more
from floatscope.lab.lecture.telling.demo5_names import NAMES, differences_table, lost_by_step
from floatscope.lab.lecture.telling.words import (
    Sentence,
    Table,
    Told,
    Words,
    percent,
    reported,
    said,
    same,
    signed,
)

TOLD = Told(
    title=Words(
        "Swallowed updates, and the fp32 master that saves them",
        "被吞掉的更新与 fp32 主参数",
    ),
    why=Words(
        "Adam moves each weight by about the learning rate. Stored in 16 bits, a weight does not "
        "move where that is less than half an ulp, and late in training, when the rate has "
        "decayed, that is nearly everywhere.",
        "Adam 的每一步大约把每个权重移动一个学习率。权重存成 16 位时，小于半个间距的更新等于没"
        "加；训练后期学习率很小，几乎到处如此。",
    ),
    patch=Words(
        "An fp32 master, for small updates: products use the 16-bit copy, updates go to the "
        "master. It costs 4 of the 16 bytes a parameter (weights 2, gradients 2, master 4, two "
        "moments 8).",
        "fp32 主参数，补小更新：前向反向用 16 位副本，更新加在主参数上。代价是每个参数 16 字节中"
        "的 4 字节（权重 2、梯度 2、主参数 4、两个动量 8）。",
    ),
    history=(
        reported(
            "Micikevicius et al. (2018) keep an fp32 master because fp16 loses an update once "
            "the weight is 2 048 times larger; Gopher found bf16 weights with an fp32 copy "
            "indistinguishable from fp32.",
            "Micikevicius 等（2018）保留 fp32 主参数，因为权重比更新大 2 048 倍时 fp16 就会丢掉更"
            "新；Gopher 发现 bf16 权重加一份 fp32 副本与 fp32 没有区别。",
            "arXiv 1710.03740, section 3.1; arXiv 2112.11446, appendix C",
        ),
    ),
    calls="p.to(torch.bfloat16).float(); torch.optim.AdamW(master); p.copy_(master.bfloat16())",
    caption=Words(
        "Left: bits a character minus fp32 of the same seed, a dot a seed (bf16+fp32: with a "
        "master; SR: stochastic rounding; v: the second moment). Right: updates that left no "
        "trace, by step.",
        "左：与同种子 fp32 之差（bit/字符），每点一个种子（bf16+fp32：有主参数；SR：随机舍入；v："
        "二阶动量）。右：没有留下痕迹的更新的比例，横轴是步。",
    ),
)


def tables(record: MasterWeights) -> tuple[Table, ...]:
    """On paper, really, and what it costs."""
    tables = (_paper(record), _really(record), differences_table(record))
    return (*tables, *demo5_more.tables(record))


def _paper(record: MasterWeights) -> Table:
    forms = list(dict.fromkeys(u.format for u in record.unmoved))
    found = {(u.format, u.update): u for u in record.unmoved}
    updates = list(dict.fromkeys(u.update for u in record.unmoved))
    matrices = Words(" matrices", " 矩阵"), Words(" gains", " 增益")
    return Table(
        title=Words(
            f"Weights of the base model (median |w| {record.median_weight:.3f}) that ±u leaves "
            "where they are; LayerNorm gains apart:",
            f"base model 的权重（|w| 中位数 {record.median_weight:.3f}）加减 u 之后不动的比例；"
            "LayerNorm 增益分开列：",
        ),
        header=(
            Words("u", "u"),
            *(Words(f + part.en, f + part.zh) for f in forms for part in matrices),
        ),
        rows=tuple(
            (
                f"{update:g}",
                *(
                    percent(part.share)
                    for f in forms
                    for part in (found[f, update].matrices, found[f, update].gains)
                ),
            )
            for update in updates
        ),
    )


def _really(record: MasterWeights) -> Table:
    found = lost_by_step(record)
    steps = sorted({step for by_step in found.values() for step in by_step})
    return Table(
        title=Words(
            "Updates that really left no trace in a step of the trainings below, by step, all "
            "seeds together:",
            "下面的训练里真的没有留下痕迹的更新，按步列出，各种子合计：",
        ),
        header=(Words("stored; step", "存储方式；步"), *(same(str(s)) for s in steps)),
        rows=tuple(
            (NAMES[arm], *(percent(by_step[s].share, 2) if s in by_step else "–" for s in steps))
            for arm, by_step in found.items()
        ),
    )


def observations(record: MasterWeights) -> Iterator[Sentence]:
    """What the tables show."""
    yield _smaller_is_worse(record)
    yield _gains(record)
    yield _later_is_worse(record)
    yield _bf16_costs(record)
    yield _master_saves(record)
    yield _fp16(record)
    yield _noise(record)
    yield from demo5_more.observations(record)


def _of(record: MasterWeights, form: str) -> list[Unmoved]:
    return sorted((u for u in record.unmoved if u.format == form), key=lambda u: -u.update)


def _smaller_is_worse(record: MasterWeights) -> Sentence:
    bf16, fp16 = _of(record, "bf16"), _of(record, "fp16")
    shares = [u.matrices.share for u in bf16]
    parts = ", ".join(f"{percent(u.matrices.share)} at {u.update:g}" for u in bf16)
    parts_zh = "，".join(f"{u.update:g} 时 {percent(u.matrices.share)}" for u in bf16)
    last = fp16[-1]
    return said(
        shares == sorted(shares) and all(
            b.matrices.share >= f.matrices.share for b, f in zip(bf16, fp16, strict=True)
        ),
        Words(
            f"The smaller the update, the more is swallowed: in bf16 {parts}. fp16, three bits "
            f"finer, swallows less: {percent(last.matrices.share)} at {last.update:g}.",
            f"更新越小，吞掉的越多：bf16 里 {parts_zh}。fp16 的尾数多 3 位，吞得少些："
            f"{last.update:g} 时 {percent(last.matrices.share)}。",
        ),
        Words(
            "Here smaller updates are not always swallowed more, or fp16 swallows more than "
            f"bf16 (bf16: {parts}).",
            f"这里并非更新越小吞得越多，或者 fp16 吞得比 bf16 还多（bf16：{parts_zh}）。",
        ),
    )  # fmt: skip


def _gains(record: MasterWeights) -> Sentence:
    found = _of(record, "bf16")[0]
    gains, matrices = percent(found.gains.share), percent(found.matrices.share)
    return said(
        found.gains.share > found.matrices.share,
        Words(
            f"The LayerNorm gains, which begin at 1, are hit first: ±{found.update:g} moves "
            f"{gains} of them nowhere in bf16, and {matrices} of the matrices' weights.",
            f"从 1 开始的 LayerNorm 增益最先受害：±{found.update:g} 在 bf16 里有 {gains} 的增益不"
            f"动，矩阵的权重是 {matrices}。",
        ),
        Words(
            f"The gains are not hit more than the matrices here ({gains} and {matrices} at "
            f"±{found.update:g}).",
            f"这里增益并不比矩阵更容易被吞（±{found.update:g} 时 {gains} 与 {matrices}）。",
        ),
    )


def _later_is_worse(record: MasterWeights) -> Sentence:
    by_step = lost_by_step(record).get("bf16") or {0: Counted(count=0, of=0)}
    first, last = min(by_step), max(by_step)
    numbers = f"{percent(by_step[first].share)} → {percent(by_step[last].share)}"
    return said(
        by_step[last].share > by_step[first].share,
        Words(
            f"In the trainings stored in bf16 more is lost as the learning rate falls: {numbers} "
            f"from step {first} to {last}. That Adam's step is about the rate is an approximation; "
            "these are counted.",
            f"在权重存成 bf16 的训练里，学习率下降，丢得更多：从第 {first} 步到第 {last} 步，"
            f"{numbers}。“Adam 的一步约等于学习率”只是近似，这里是数出来的。",
        ),
        Words(
            f"Stored in bf16, no more was lost at the end than at the beginning here ({numbers}).",
            f"权重存成 bf16 的训练里，这里后期丢的并不比前期多（{numbers}）。",
        ),
    )


def _differences(record: MasterWeights, arm: str) -> str:
    found = record.paired(arm)
    each = ", ".join(signed(found[seed]) for seed in sorted(found))
    return f"{signed(mean(found.values()))} ({each})"


def _bf16_costs(record: MasterWeights) -> Sentence:
    found, numbers = record.paired("bf16"), _differences(record, "bf16")
    return said(
        all(difference > 0 for difference in found.values()),
        Words(
            "Weights stored in bf16 without a master are worse with every seed, in the mean by "
            f"{numbers} bits a character.",
            f"权重存成 bf16、没有主参数，每个种子都更差，平均 {numbers} bit/字符。",
        ),
        Words(
            "Weights stored in bf16 without a master are not worse with every seed here: "
            f"{numbers}.",
            f"这里权重存成 bf16、没有主参数，并非每个种子都更差：{numbers}。",
        ),
    )


def _master_saves(record: MasterWeights) -> Sentence:
    arm = "bf16+master"
    own, bare = mean(record.paired(arm).values()), mean(record.paired("bf16").values())
    numbers = _differences(record, arm)
    return said(
        own < bare / 2,
        Words(
            f"With an fp32 master the difference is {numbers}: less than half of that.",
            f"加上 fp32 主参数，差距是 {numbers}：不到上面的一半。",
        ),
        Words(
            f"The fp32 master did not halve the difference here: {numbers}.",
            f"这里 fp32 主参数没有把差距减半：{numbers}。",
        ),
    )


def _fp16(record: MasterWeights) -> Sentence:
    own, bf16 = mean(record.paired("fp16").values()), mean(record.paired("bf16").values())
    numbers = _differences(record, "fp16")
    return said(
        own < bf16,
        Words(
            f"Stored in fp16, with 3 bits more, it is {numbers}.",
            f"存成 fp16（尾数多 3 位），差距是 {numbers}。",
        ),
        Words(
            f"Stored in fp16 it is no better than in bf16 here: {numbers}.",
            f"这里存成 fp16 并不比 bf16 好：{numbers}。",
        ),
    )


def _noise(record: MasterWeights) -> Sentence:
    bits = list(record.bits("fp32").values())
    spread = stdev(bits) if len(bits) > 1 else 0.0
    bare = mean(record.paired("bf16").values())
    return said(
        spread > bare / 3,
        Words(
            f"fp32 itself scatters by {spread:.4f} (standard deviation over seeds): without "
            "pairs by seed that would hide much of these differences.",
            f"fp32 自己在种子之间就有 {spread:.4f} 的标准差：不按种子配对，这些差距会被掩盖不少。",
        ),
        Words(
            f"fp32 scatters by {spread:.4f} over seeds, little beside a difference of {bare:.4f}.",
            f"fp32 在种子之间的标准差是 {spread:.4f}，比 {bare:.4f} 的差距小得多。",
        ),
    )
