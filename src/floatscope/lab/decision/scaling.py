"""The second question: why fp16 needs loss scaling and bf16 does not, from a probe's records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floatscope.errors import StudyError
from floatscope.lab.decision.cite import Records
from floatscope.lab.decision.facts import Facts
from floatscope.lab.decision.records import Answer, Evidence, Missing, Said, Statement
from floatscope.lab.decision.words import grouped, share

FP16_OCTAVES = 40
"""From 2^-24, the smallest subnormal, to below 2^16."""
BF16_SMALLEST_NORMAL = -126
PATTERNS = ("probe/probe.json", "probe/*/probe.json", "runs/*/probe/probe.json")
SCALED = 16
_ENDS = ("smallest", "largest")


def why_scaling(facts: Facts) -> Answer:
    """For each state that was probed, where gradients lie and what 16 bits make of them."""
    question = Said(
        en="Why does fp16 need loss scaling, and bf16 none?",
        zh="fp16 为什么需要损失缩放，bf16 为什么不需要？",
    )
    record = probe_of(facts)
    if record is None:
        return Answer(id="scaling", question=question, statements=(), missing=(_missing(facts),))
    names = [state["name"] for state in _content(facts.folder.path / record)["states"]]
    statements: list[Statement] = []
    for number, name in enumerate(names):
        probed = _Probed(facts.records, record, name, number)
        statements += [probed.below(), probed.window(), *probed.really()]
    return Answer(id="scaling", question=question, statements=tuple(statements))


def probe_of(facts: Facts) -> str | None:
    """The probe of a run of the baseline, as a path from the study's folder; None without one."""
    root = facts.folder.path
    for pattern in PATTERNS:
        for path in sorted(root.glob(pattern)):
            plan = _content(path).get("origin", {}).get("plan", {})
            if plan.get("recipe", {}).get("name") == facts.baseline:
                return path.relative_to(root).as_posix()
    return None


def _content(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _missing(facts: Facts) -> Missing:
    return Missing(
        what=Said(en=f"the probe of a {facts.baseline} run", zh=f"{facts.baseline} 运行的下溢探针"),
        command=f"floatscope probe {facts.folder.path}",
    )


class _Probed:
    """One state in a probe's record."""

    def __init__(self, records: Records, record: str, name: str, number: int) -> None:
        self.records, self.record, self.name, self.number = records, record, name, number
        chinese = {"initialization": "初始化时", "end of training": "训练结束时"}
        self.when = Said(en=f"At {name}", zh=chinese.get(name, name))

    def cite(self, name: str, field: str) -> Evidence:
        return self.records.cite(
            f"{name}, {self.name}", self.record, f"states[name={self.name}].{field}"
        )

    def below(self) -> Statement:
        at_one = self.cite("below 2^-24, unscaled", "below_smallest_fp16")
        scaled = self.cite("below 2^-24, times 65 536", "below_smallest_fp16_at_65536")
        lost = {
            exponent: self._prediction("fp16", exponent, "underflow") for exponent in (0, SCALED)
        }
        coarse = self._prediction("fp16", 0, "subnormal")
        shares = [_share(*lost[0]), _share(*lost[SCALED]), _share(*coarse)]
        one, big = _number(at_one), _number(scaled)
        return Statement(
            id=f"below-2^-24-{self.number}",
            text=Said(
                en=f"{self.when.en}, {share(one)} of the non-zero gradient elements lie below "
                f"2^-24, fp16's smallest value, and {shares[0]} round to zero in fp16; times "
                f"65 536, {share(big)} lie below and {shares[1]} round to zero. Unscaled, "
                f"{shares[2]} are subnormal in fp16 and lose digits.",
                zh=f"{self.when.zh}，不缩放时 {share(one)} 的非零梯度元素落在 2⁻²⁴（fp16 的最小值）"
                f"以下，{shares[0]} 在 fp16 里舍入为 0；乘 65 536 之后，{share(big)} 落在以下，"
                f"{shares[1]} 舍入为 0。不缩放时 {shares[2]} 在 fp16 里是次正规数，损失位数。",
            ),
            evidence=(at_one, scaled, *lost[0], *lost[SCALED], *coarse),
        )

    def window(self) -> Statement:
        ends = [self.cite(f"octave of the {end}", f"octaves[{k}]") for k, end in enumerate(_ENDS)]
        low, high = (int(_number(end)) for end in ends)
        zero, coarse = (self._prediction("bf16", 0, k) for k in ("underflow", "subnormal"))
        width = high - low + 1
        counts = [grouped(int(_number(e[0]))) for e in (zero, coarse)]
        return Statement(
            id=f"window-{self.number}",
            text=Said(
                en=f"{self.when.en}, they span {width} octaves, from 2^{low} to 2^{high}; fp16 has "
                f"{FP16_OCTAVES}, bf16's normal numbers begin at 2^{BF16_SMALLEST_NORMAL}. In "
                f"bf16, unscaled, {counts[0]} elements round to zero and {counts[1]} are "
                "subnormal: the window is wide enough where the gradients lie, so nothing has to "
                "be moved.",
                zh=f"{self.when.zh}，它们铺了 {width} 个 2 的幂，从 2^{low} 到 2^{high}；fp16 有 "
                f"{FP16_OCTAVES} 个，bf16 的正规数从 2^{BF16_SMALLEST_NORMAL} 开始。在 bf16 里，"
                f"不缩放时 {counts[0]} 个元素舍入为 0，{counts[1]} 个是次正规数：梯度所在之处窗口"
                "够宽，什么也不用移动。",
            ),
            evidence=(*ends, *zero, *coarse),
        )

    def really(self) -> Iterator[Statement]:
        """What passes that really ran in 16 bits lost, where they ran."""
        passes = {"fp16": 0, "fp16 × 65 536": SCALED, "bf16": 0}
        evidence, parts = [], []
        for label, exponent in passes.items():
            form = label.split()[0]
            try:
                zeros, of = (self._total(form, exponent, key) for key in ("zeros", "of"))
            except StudyError:  # it did not run in this format at this scale
                continue
            evidence += [zeros, of]
            parts.append(f"{label} {_share(zeros, of)}")
        if parts:
            yield Statement(
                id=f"really-{self.number}",
                text=Said(
                    en=f"{self.when.en}, passes that really ran left exactly zero: "
                    f"{', '.join(parts)}.",
                    zh=f"{self.when.zh}，真在 16 位里反向一次，恰为 0 的有：{'，'.join(parts)}。",
                ),
                evidence=tuple(evidence),
            )

    def _prediction(self, form: str, exponent: int, key: str) -> tuple[Evidence, Evidence]:
        at = f"predictions[format={form},exponent={exponent}]"
        name = f"{form} at 2^{exponent} on paper"
        return self.cite(f"{key} in {name}", f"{at}.{key}"), self.cite(
            f"elements in {name}", f"{at}.of"
        )

    def _total(self, form: str, exponent: int, key: str) -> Evidence:
        at = f"totals[format={form},exponent={exponent}].{key}"
        return self.cite(f"{key} in {form} at 2^{exponent}, really run", at)


def _number(evidence: Evidence) -> float:
    assert isinstance(evidence.value, int | float)
    return float(evidence.value)


def _share(part: Evidence, whole: Evidence) -> str:
    return share(_number(part) / _number(whole))
