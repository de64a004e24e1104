"""A study's verdicts for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from floatscope.lab.statistics import Pairing
from floatscope.lab.study.judgement import ArmJudgement, Judgement, Speed
from floatscope.lab.study.question import Question

_HOLDS = {True: "The claim holds.", False: "The claim does not hold.", None: "Undecided."}


def verdict_lines(judgement: Judgement) -> Iterator[str]:
    """Question, margin, a verdict an arm, limits; or why there is no verdict."""
    question = judgement.question
    if question is not None:
        yield f"question: {question.text}"
        yield f"plan, stated {judgement.stated}: {_plan(question)}"
    if judgement.refusal is not None:
        yield f"no verdict: {judgement.refusal}"
    elif judgement.margin is not None:
        yield f"margin: {judgement.margin:.3g} nats a token, {judgement.margin_says}."
    for arm in judgement.arms:
        yield f"• {arm.recipe}: {arm.sentence} {_HOLDS[arm.holds]}{_details(arm)}"
    if judgement.determinism is not None:
        yield judgement.determinism.sentence
    for limit in judgement.limits:
        yield f"limit: {limit}"


def _plan(question: Question) -> str:
    arms = ", ".join(question.arms) or "no arm"
    together = ""
    if len(question.arms) > 1 and question.method != "dunnett":
        several = {"holm": "Holm's correction", "in order": "tested in this order"}
        together = f", {several[question.several]}"
    last = question.last_evaluations
    endpoint = "at the end" if last == 1 else f"over the last {last} evaluations"
    claim = f"{question.claim}{' than' if question.claim != 'equivalent' else ' to'}"
    return (
        f'"{claim} {question.baseline}" of {arms}; {question.method}, n = {question.n}{together}; '
        f"endpoint: validation loss {endpoint}; stops with {question.stopping}."
    )


def _details(arm: ArmJudgement) -> str:
    parts = []
    if arm.num_diverged and arm.divergence is not None:
        low, high = arm.divergence.low, arm.divergence.high
        parts.append(
            f"Diverged: {arm.num_diverged} of {arm.num_runs} runs, a rate of {low:.0%} to "
            f"{high:.0%} (95 %)."
        )
    if arm.pairing is not None:
        parts.append(_pairing(arm.pairing))
    if arm.speed is not None:
        parts.append(_speed(arm.speed))
    return "".join(f" {part}" for part in parts)


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
