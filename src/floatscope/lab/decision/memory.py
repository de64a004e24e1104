"""The third question: 16 bytes a parameter against the measurement, from a memory record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floatscope.lab.decision.facts import Facts
from floatscope.lab.decision.records import Answer, Evidence, Missing, Said, Statement
from floatscope.lab.decision.words import both, grouped, listed, mib
from floatscope.lab.identity import said

BYTES_A_PARAMETER = 16
"""Under autocast with AdamW in fp32: weight 4, gradient 4, two moments 8."""
MOMENT_BYTES = 8
PATTERNS = ("memory/memory.json", "memory/*/memory.json")
QUESTION = Said(
    en="Does the memory account add up: 16 bytes a parameter against what was measured?",
    zh="显存账：手算 16 字节 × 参数数，与实测分项对账，差额从哪来？",
)

_TERMS = {
    "formula": "公式",
    "formula without scores": "公式（不含注意力分数）",
    "no dropout": "没有 dropout",
    "norms keep more": "归一化多存",
    "attention": "注意力",
    "last norm and head": "最后的归一化和输出头",
    "ids and targets": "输入和目标的编号",
}
"""Terms in Chinese; others keep their names."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """The baseline's memory, in bytes, each number with its place."""

    parameters: Evidence
    states: Evidence
    """After the first optimizer step, all that is allocated."""
    before_step: Evidence
    built: Evidence
    forward: Evidence
    formula: Evidence
    """Of the standard block's activations."""
    unexplained: Evidence
    terms: tuple[tuple[str, Evidence], ...]
    """From the formula to what is saved for backward, in order."""
    saved: tuple[tuple[str, Evidence], ...]
    """Bytes saved for backward, by recipe."""
    attention: str
    """Of the model that was measured."""

    @property
    def theory(self) -> int:
        return BYTES_A_PARAMETER * int(value(self.parameters))

    @property
    def activations(self) -> float:
        """After the forward pass minus after build."""
        return value(self.forward) - value(self.built)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return (
            self.parameters, self.states, self.built, self.forward, self.formula, self.unexplained
        )  # fmt: skip


def memory_answer(facts: Facts, accounts: Sequence[Account]) -> Answer:
    """States, activations and the terms between formula and measurement."""
    if not accounts:
        return Answer(id="memory", question=QUESTION, statements=(), missing=(missing(facts),))
    statements = [_states(accounts[0]), _moments(accounts[0])]
    for account in accounts:
        statements += [*_activations(account), _recipes(account)]
    return Answer(id="memory", question=QUESTION, statements=tuple(statements))


def missing(facts: Facts) -> Missing:
    """What to do where nothing was measured."""
    folder = facts.folder
    return Missing(
        what=Said(en="the staged memory of this model", zh="这个模型的分阶段显存"),
        command=f"floatscope memory measure {folder.plan.name} --out {folder.path / 'memory'}",
    )


def accounts_of(facts: Facts) -> list[Account]:
    """The baseline's accounts in records of the study's model.

    With its own attention first, then with the other.
    """
    root = facts.folder.path
    paths = [path for pattern in PATTERNS for path in sorted(root.glob(pattern))]
    found = [
        account
        for path in paths
        if (account := _account(facts, path.relative_to(root).as_posix(), _content(path)))
    ]
    own = facts.folder.plan.model.attention
    return sorted(found, key=lambda account: account.attention != own)


def _otherwise(facts: Facts, content: dict[str, Any]) -> set[str]:
    """In what a record's model differs from the study's."""
    plan, shape = facts.folder.plan, content.get("shape", {})
    mine = {**said(plan.model), "batch_size": plan.train.batch_size}
    return {name for name in {*mine, *shape} if mine.get(name) != shape.get(name)}


def _content(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _account(facts: Facts, record: str, content: dict[str, Any]) -> Account | None:
    """None where the record is of another model, or the baseline was not measured in it."""
    records, name = facts.records, facts.baseline
    arm = next((a for a in content.get("arms", ()) if a.get("recipe") == name), {})
    run = next((path for a in facts.arms for _, path in a.runs), None)
    measured = arm.get("formula_bytes") is not None and _was_measured(arm)
    if run is None or not measured or not _otherwise(facts, content) <= {"attention"}:
        return None
    at = f"arms[recipe={name}]"

    def live(stage: str) -> Evidence:
        return records.cite(
            f"allocated after {stage}", record, f"{at}.stages[stage={stage}].live_by_meter"
        )

    return Account(
        parameters=records.cite("parameters", f"{run}/manifest.json", "num_parameters"),
        states=live("first optimizer step"),
        before_step=live("backward"),
        built=live("build"),
        forward=live("forward"),
        formula=records.cite("the standard block's formula", record, f"{at}.formula_bytes"),
        unexplained=records.cite("unexplained bytes", record, f"{at}.unexplained_bytes"),
        terms=tuple(
            (term["term"], records.cite(term["term"], record, f"{at}.terms[{k}].bytes"))
            for k, term in enumerate(arm["terms"])
        ),
        saved=tuple(
            (a["recipe"], records.cite(
                f"saved for backward, {a['recipe']}", record,
                f"arms[recipe={a['recipe']}].saved_bytes",
            ))
            for a in content["arms"]
        ),
        attention=str(content.get("shape", {}).get("attention", "")),
    )  # fmt: skip


def _was_measured(arm: dict[str, Any]) -> bool:
    return all(stage.get("live_by_meter") is not None for stage in arm["stages"])


def value(evidence: Evidence) -> float:
    """A cited number."""
    assert isinstance(evidence.value, int | float)
    return evidence.value


def _states(account: Account) -> Statement:
    count, rest = int(value(account.parameters)), value(account.states) - account.theory
    product = f"{BYTES_A_PARAMETER} B × {grouped(count)}"
    theory, measured = mib(account.theory), mib(value(account.states))
    return Statement(
        id="states",
        text=Said(
            en=f"{product} parameters = {grouped(account.theory)} B = {theory}. Measured after the "
            f"first step: {measured}, {grouped(int(rest))} B more, which are buffers, input and "
            "counters by name. Activations are not in it: on this device they are freed in "
            "backward, and show after the forward pass.",
            zh=f"{product} 个参数 = {grouped(account.theory)} B = {theory}。第一步后实测 "
            f"{measured}，多出 {grouped(int(rest))} B，是逐行列名的缓冲区、输入和计数器。其中没有"
            "激活：在这个设备上激活在反向中释放，只出现在前向之后。",
        ),
        evidence=(account.parameters, account.states),
    )


def _moments(account: Account) -> Statement:
    count = int(value(account.parameters))
    grown = int(value(account.states) - value(account.before_step))
    expected = MOMENT_BYTES * count
    return Statement(
        id="moments",
        text=Said(
            en=f"The first step adds {grouped(grown)} B: {MOMENT_BYTES} B × parameters = "
            f"{grouped(expected)} B of moments, and {grouped(grown - expected)} B beside.",
            zh=f"第一步新增 {grouped(grown)} B：m + v = {MOMENT_BYTES} B × 参数数 = "
            f"{grouped(expected)} B，另有 {grouped(grown - expected)} B。",
        ),
        evidence=(account.parameters, account.states, account.before_step),
    )


def _activations(account: Account) -> Iterator[Statement]:
    formula = value(account.formula)
    name = account.terms[0][0]
    times = f"{account.activations / account.theory:.0f}"
    where, off = account.attention, f"{(account.activations - formula) / 2**20:+.2f} MiB"
    yield Statement(
        id=f"activations-{where}",
        text=Said(
            en=f"After the forward pass {mib(account.activations)} more than after build, with "
            f"{where} attention: activations, {times} times the states. The standard block's "
            f"{name} says {mib(formula)}; the measurement lies {off} from it.",
            zh=f"前向后比建模型后多 {mib(account.activations)}（{where} 注意力）：激活，是模型状态"
            f"的 {times} 倍。标准块{in_chinese(name)}给出 {mib(formula)}；实测与它相差 {off}。",
        ),
        evidence=(account.forward, account.built, account.formula),
    )
    parts = listed(_term(name, value(size)) for name, size in account.terms)
    unexplained = int(value(account.unexplained))
    yield Statement(
        id=f"from-formula-to-measurement-{account.attention}",
        text=Said(
            en=f"From the formula to what is saved for backward, in MiB: {parts.en}. Unexplained: "
            f"{unexplained} B.",
            zh=f"从公式到为反向保存的激活，单位 MiB：{parts.zh}。无法解释：{unexplained} B。",
        ),
        evidence=(*(e for _, e in account.terms), account.unexplained),
    )


def in_chinese(term: str) -> str:
    """The name of a term in Chinese, or as it is."""
    return _TERMS.get(term, term)


def _term(name: str, size: float) -> Said:
    return Said(en=f"{name} {size / 2**20:+.2f}", zh=f"{in_chinese(name)} {size / 2**20:+.2f}")


def _recipes(account: Account) -> Statement:
    parts = listed(both(f"{recipe} {mib(value(e))}") for recipe, e in account.saved)
    return Statement(
        id=f"saved-by-recipe-{account.attention}",
        text=Said(
            en=f"Saved for backward, {account.attention} attention: {parts.en}. Under autocast the "
            f"states are {BYTES_A_PARAMETER} bytes a parameter in each.",
            zh=f"为反向保存的激活，{account.attention} 注意力：{parts.zh}。autocast 下模型状态都是 "
            f"{BYTES_A_PARAMETER} 字节/参数。",
        ),
        evidence=tuple(e for _, e in account.saved),
    )
