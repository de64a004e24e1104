"""The decision that the course document asks for, from the records of a study."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope.errors import StudyError
from floatscope.lab.decision.choice import choose
from floatscope.lab.decision.criteria import criteria
from floatscope.lab.decision.facts import Facts, gather
from floatscope.lab.decision.memory import accounts_of, memory_answer
from floatscope.lab.decision.precision import which_precision
from floatscope.lab.decision.records import Decision, Said
from floatscope.lab.decision.scaling import why_scaling
from floatscope.lab.study.folder import StudyFolder
from floatscope.lab.study.judgement import DONE, FAILED, UNDECIDED
from floatscope.lab.study.summary import summarize

LARGE_ENOUGH = 3
"""Up to so many pairs a verdict is called screening."""


def decide(folder: StudyFolder) -> Decision:
    """The document's three questions answered, and its criteria held against the records.

    Raises:
        StudyError: a record is damaged, no run has finished, or it is a stress study.
    """
    summary = summarize(folder)
    if not summary.arms:
        raise StudyError(f"{folder.path}: no run has finished, so there is nothing to decide by.")
    facts = gather(folder, summary)
    choice, accounts = choose(facts), accounts_of(facts)
    return Decision(
        study=summary.name,
        stated=summary.judgement.stated,
        choice=choice,
        answers=(
            which_precision(facts, choice),
            why_scaling(facts),
            memory_answer(facts, accounts),
        ),
        criteria=criteria(facts, accounts),
        limits=tuple(_limits(facts)),
    )


def status(decision: Decision) -> int:
    """Exit status: 3 if a criterion does not hold, 4 if one was not measured or nothing is settled.

    A question without an answer counts as not measured.
    """
    if any(criterion.holds is False for criterion in decision.criteria):
        return FAILED
    measured = all(c.holds for c in decision.criteria)
    answered = not any(answer.missing for answer in decision.answers)
    return DONE if measured and answered and decision.choice.settled else UNDECIDED


def _limits(facts: Facts) -> Iterator[Said]:
    summary, judgement = facts.summary, facts.summary.judgement
    if judgement.refusal is not None:
        yield Said(
            en=f"There is no verdict on any loss: {judgement.refusal}",
            zh=f"没有任何关于 loss 的结论（原文）：{judgement.refusal}",
        )
    elif judgement.stated != "before the runs":
        yield Said(
            en="The study's question and margin were stated after the runs: the verdicts explore, "
            "they are no test.",
            zh="研究的问题和界值是在运行之后才提出的：结论只是探索，不是检验。",
        )
    n = min((len(arm.pairs) for arm in judgement.arms), default=0)
    if judgement.arms and n <= LARGE_ENOUGH:
        yield Said(en=f"Screening: {n} pairs.", zh=f"初筛：只有 {n} 对。")
    processors = {e.processor for run in summary.runs for e in run.environments}
    if len(processors) > 1:
        yield Said(
            en=f"The runs were made on {len(processors)} kinds of processor: "
            f"{'; '.join(sorted(processors))}.",
            zh=f"运行分布在 {len(processors)} 种处理器上：{'；'.join(sorted(processors))}。",
        )
    if any("emulated" in arm.backend for arm in summary.arms):
        yield Said(
            en="16-bit products were emulated: the numbers are the format's, the speed says "
            "nothing about a device with 16-bit units.",
            zh="16 位乘法是模拟的：数值是格式本身的，速度不说明有 16 位单元的设备。",
        )
    plan = facts.folder.plan
    yield Said(
        en=f"It holds for this model, text and {plan.train.steps} steps.",
        zh=f"只对这个模型、这份文本和 {plan.train.steps} 步成立。",
    )
