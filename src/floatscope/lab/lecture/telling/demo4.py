"""What demonstration 4 says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, takewhile

from floatscope.lab.lecture.records import ScaledStep, Scaling, ScalingRun
from floatscope.lab.lecture.telling.words import (
    Sentence,
    Table,
    Told,
    Words,
    power,
    reported,
    said,
)

TOLD = Told(
    title=Words(
        "Dynamic loss scaling: skip and halve, or double",
        "动态损失缩放：溢出就跳过并减半，平安就加倍",
    ),
    why=Words(
        "No constant scale suits all models or all of a training. A rule finds it: on infinity "
        "or NaN skip the step and halve the scale, after ten clean steps in a row double it.",
        "没有一个固定的缩放适合所有模型或整个训练。用一条规则去找：遇到 inf 或 NaN 就跳过这一步、"
        "缩放减半；连续十步没事就加倍。",
    ),
    patch=Words(
        "Dynamic loss scaling, for fp16's range. bf16, with fp32's range, hardly needs it.",
        "动态损失缩放，补 fp16 的范围。bf16 的范围和 fp32 一样，基本不需要。",
    ),
    history=(
        reported(
            "OPT-175B's runs in fp16 saw the loss scale drop until gradients underflowed, and "
            "stalled at its floor: skipping went on, training did not.",
            "OPT-175B 的 fp16 训练里，loss scale 一路降到梯度大量下溢，到了下限就停住：一直在跳"
            "步，训练不再前进。",
            "facebookresearch/metaseq, projects/OPT/chronicles",
        ),
    ),
    calls="torch.amp.GradScaler; torch.isfinite(g).all(); optimizer.step(); p.copy_(master.half())",
    caption=Words(
        "Exponent of the loss scale by step: the ordinary run, and one whose forward pass "
        "overflows. Crosses are skipped steps.",
        "每一步损失缩放的指数：正常的一次，和前向就溢出的一次。叉号是跳过的步。",
    ),
)

EARLY = 3
"""Skips in a row from which on a start is called too large."""


def tables(record: Scaling) -> tuple[Table, ...]:
    """The events of the ordinary run, and both runs in numbers."""
    return (_events(record), _runs(record))


def _events(record: Scaling) -> Table:
    clean = record.growth_interval
    skip = Words("infinite or NaN: skipped, halved", "溢出：跳过这一步，缩放减半")
    grow = Words(f"{clean} clean steps: doubled", f"连续 {clean} 步没有溢出：缩放加倍")
    return Table(
        ends_in_words=True,
        title=Words("Events of the ordinary run:", "正常那一次的事件："),
        header=(Words("step", "步"), Words("scale", "缩放"), Words("what", "发生了什么")),
        rows=tuple(
            (str(number), power(step.exponent), skip if step.skipped else grow)
            for number, step in enumerate(record.ordinary.steps)
            if step.skipped or step.grew
        ),
    )


def _runs(record: Scaling) -> Table:
    names = (
        (Words("ordinary", "正常"), record.ordinary),
        (Words("logits × 2^17", "logits × 2^17"), record.overflowing),
    )
    return Table(
        title=Words(
            "Both runs; no run can skip more than the bound:", "两次运行；跳步数不可能超过上界："
        ),
        header=(
            Words("run", "运行"),
            Words("steps", "步数"),
            Words("from", "起始"),
            Words("to", "最终"),
            Words("skipped", "跳过"),
            Words("bound", "上界"),
            Words("doubled", "加倍"),
        ),
        rows=tuple(
            (
                name,
                str(len(run.steps)),
                power(run.initial_exponent),
                power(run.final_exponent),
                str(run.num_skipped),
                f"{run.most_skips(record.growth_interval):.1f}",
                str(run.num_grown),
            )
            for name, run in names
        ),
    )


def observations(record: Scaling) -> Iterator[Sentence]:
    """What the tables show."""
    yield _start(record.ordinary)
    yield _walk(record)
    yield _bound(record)
    yield _overflow(record)


def first_skips(run: ScalingRun) -> int:
    """Steps skipped in a row at the beginning."""
    return len(list(takewhile(lambda step: step.skipped, run.steps)))


def _start(run: ScalingRun) -> Sentence:
    skips, start = first_skips(run), power(run.initial_exponent)
    after = power(run.initial_exponent - skips)
    return said(
        skips >= EARLY,
        Words(
            f"Too large a start ({start}) costs little: {skips} steps are skipped in a row, and "
            f"at {after} the first one counts.",
            f"起始缩放太大（{start}）代价很小：连续跳过 {skips} 步，到 {after} 就有了第一个有效的"
            "步。",
        ),
        Words(
            f"The start at {start} was not too large: only {skips} steps in a row were skipped.",
            f"从 {start} 开始并不算太大：开头只连续跳过了 {skips} 步。",
        ),
    )


def follows_the_rule(run: ScalingRun, growth_interval: int) -> bool:
    """Whether every skip halves, and every doubling follows so many clean steps in a row."""
    clean = 0
    steps: list[ScaledStep] = list(run.steps)
    next_exponents = [*(s.exponent for s in steps[1:]), run.final_exponent]
    for step, after in zip(steps, next_exponents, strict=True):
        clean = 0 if step.skipped else clean + 1
        grows = clean == growth_interval
        if after - step.exponent != (-1 if step.skipped else int(grows)) or step.grew != grows:
            return False
        clean = 0 if grows else clean
    return True


def _walk(record: Scaling) -> Sentence:
    run = record.ordinary
    interval = record.growth_interval
    return said(
        follows_the_rule(run, interval) and run.num_grown > 0,
        Words(
            f"Every skip halves the scale and every doubling follows {interval} clean steps; the "
            f"scale tries the edge again and again, {run.num_grown} times here, and ends at "
            f"{power(run.final_exponent)} with {run.num_skipped} of {len(run.steps)} steps "
            "skipped.",
            f"每次跳步缩放都减半，每次加倍之前都有连续 {interval} 个干净的步；缩放一再试探溢出的"
            f"边缘（这里 {run.num_grown} 次），最后是 {power(run.final_exponent)}，"
            f"{len(run.steps)} 步里跳过 {run.num_skipped} 步。",
        ),
        Words(
            f"The scale did not walk along the edge here: {run.num_grown} doublings, "
            f"{run.num_skipped} skips in {len(run.steps)} steps, or the rule was broken.",
            f"这里缩放没有在边缘来回：{len(run.steps)} 步里加倍 {run.num_grown} 次、跳过 "
            f"{run.num_skipped} 次，或规则被破坏。",
        ),
    )


def _bound(record: Scaling) -> Sentence:
    runs = (record.ordinary, record.overflowing)
    holds = all(
        run.num_grown - run.num_skipped == run.final_exponent - run.initial_exponent
        and run.num_skipped <= run.most_skips(record.growth_interval)
        for run in runs
    )
    run = record.ordinary
    rise = f"{run.final_exponent - run.initial_exponent}".replace("-", "−")
    bound = run.most_skips(record.growth_interval)
    return said(
        holds,
        Words(
            f"Doublings minus skips is the change of the exponent ({run.num_grown} − "
            f"{run.num_skipped} = {rise}), and {run.num_skipped} skips stay below the bound of "
            f"{bound:.1f}. In the long run at most one step in {record.growth_interval + 1} is "
            "skipped.",
            f"加倍次数减跳步次数等于指数的变化（{run.num_grown} − {run.num_skipped} = {rise}），"
            f"跳过 {run.num_skipped} 步，不超过上界 {bound:.1f}。长期来看至多每 "
            f"{record.growth_interval + 1} 步跳过一步。",
        ),
        Words(
            f"The bookkeeping is broken: {run.num_grown} doublings, {run.num_skipped} skips, "
            f"exponent changed by {rise}, bound {bound:.1f}.",
            f"账对不上：加倍 {run.num_grown} 次，跳过 {run.num_skipped} 次，指数变化 {rise}，上界"
            f" {bound:.1f}。",
        ),
        "arithmetic",
    )


def _overflow(record: Scaling) -> Sentence:
    run = record.overflowing
    falls = all(after.exponent == step.exponent - 1 for step, after in pairwise(run.steps))
    end = power(run.final_exponent)
    return said(
        run.num_skipped == len(run.steps) and falls and run.num_skipped > 0,
        Words(
            f"With logits that overflow in the forward pass all {run.num_skipped} steps are "
            f"skipped and the scale halves without end, to {end}"
            + (", where floatscope ends the run" if run.collapsed else "")
            + ". A falling scale is the symptom and not the cause: look in the forward pass.",
            f"logits 在前向就溢出时，{run.num_skipped} 步全部被跳过，缩放无休止地减半，直到 {end}"
            + ("，floatscope 在此终止" if run.collapsed else "")
            + "。缩放一路下降是症状，不是原因：要到前向里去找。",
        ),
        Words(
            f"The forward pass did not overflow at every step here: {run.num_skipped} of "
            f"{len(run.steps)} were skipped.",
            f"这里前向并非每一步都溢出：{len(run.steps)} 步里跳过 {run.num_skipped} 步。",
        ),
    )
