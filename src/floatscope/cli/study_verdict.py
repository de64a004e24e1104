"""A study's verdicts for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from floatscope.lab.statistics import Pairing
from floatscope.lab.study.judgement import ArmJudgement, Judgement, Speed
from floatscope.lab.study.question import Question

_HOLDS = {True: "the claim holds", False: "the claim does not hold", None: "undecided"}
_CLAIMS = {"not worse": "not worse than", "equivalent": "equivalent to", "worse": "worse than"}


def verdicts(judgement: Judgement) -> Iterator[RenderableType]:
    """Question, margin, a verdict an arm, limits; or why there is no verdict."""
    question = judgement.question
    if question is not None:
        yield Text(f"\nquestion: {question.text}")
        yield Text(f"plan, stated {judgement.stated}: {_plan(question)}")
    if judgement.refusal is not None:
        yield Text(f"no verdict: {judgement.refusal}")
    elif judgement.margin is not None:
        yield Text(f"margin: {judgement.margin:.3g} nats a token, {judgement.margin_says}.")
    for arm in judgement.arms:
        yield Text(f"{arm.recipe}: {_HOLDS[arm.holds]}")
        for line in (arm.sentence, *_details(arm)):
            yield Padding(Text(line), (0, 0, 0, 2))
    if judgement.determinism is not None:
        yield Text(judgement.determinism.sentence)
    for limit in judgement.limits:
        yield Text(f"limit: {limit}")


def _plan(question: Question) -> str:
    arms = ", ".join(question.arms) or "no arm"
    together = ""
    if len(question.arms) > 1 and question.method != "dunnett":
        several = {"holm": "Holm's correction", "in order": "tested in this order"}
        together = f", {several[question.several]}"
    last = question.last_evaluations
    endpoint = "at the end" if last == 1 else f"over the last {last} evaluations"
    return (
        f'"{_CLAIMS[question.claim]} {question.baseline}" of {arms}; {question.method}, '
        f"n = {question.n}{together}; endpoint: validation loss {endpoint}; {question.stopping}."
    )


def _details(arm: ArmJudgement) -> Iterator[str]:
    if arm.num_diverged and arm.divergence is not None:
        low, high = arm.divergence.low, arm.divergence.high
        yield (
            f"Diverged: {arm.num_diverged} of {arm.num_runs} runs, a rate of {low:.0%} to "
            f"{high:.0%} (95 %)."
        )
    if arm.pairing is not None:
        yield _pairing(arm.pairing)
    if arm.speed is not None:
        yield _speed(arm.speed)


def _pairing(pairing: Pairing) -> str:
    paid = "paid" if pairing.width_ratio < 1 else "did not pay"
    return (
        f"Pairing {paid}: correlation {pairing.correlation:.2f}, variance of a difference "
        f"{pairing.variance_ratio:.2g} of what it would be without, interval "
        f"{pairing.width_ratio:.2g} times as wide."
    )


def _speed(speed: Speed) -> str:
    pairs = f"{speed.num_pairs} pair{'s' * (speed.num_pairs != 1)}"
    emulated = ", emulated" if speed.emulated else ""
    text = f"Speed {speed.raw:.2f} ({speed.lowest:.2f} to {speed.highest:.2f}, {pairs}{emulated})"
    if speed.matched is None:
        return f"{text} of the baseline's."
    limits = speed.matched_interval
    interval = "" if limits is None else f" ({limits.low:.2f} to {limits.high:.2f})"
    return f"{text} of the baseline's, at equal loss {speed.matched:.2f}{interval}."
