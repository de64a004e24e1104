"""Numbers as words, in both languages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from floatscope.lab.decision.records import Said
from floatscope.lab.statistics.verdict import Word
from floatscope.lab.study.judgement import ArmJudgement

_VERDICTS: dict[Word, str] = {
    "not worse": "不差",
    "equivalent": "等价",
    "worse": "更差",
    "different but within the margin": "有差别但在界值之内",
    "inconclusive": "尚无定论",
}


def both(text: str) -> Said:
    """What reads the same in both languages."""
    return Said(en=text, zh=text)


def listed(parts: Iterable[Said]) -> Said:
    """Parts in a row."""
    parts = tuple(parts)
    return Said(en="; ".join(p.en for p in parts), zh="；".join(p.zh for p in parts))


def names(recipes: Sequence[str]) -> Said:
    """Names of recipes in a row."""
    return Said(en=", ".join(recipes), zh="、".join(recipes))


def share(value: float) -> str:
    """A share in percent, to two significant digits; 0 only for 0."""
    percent = 100 * value
    if value == 0:
        return "0 %"
    if percent < 1e-3:
        return f"{percent:.0e} %"
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.1f} %"


def mib(size: float) -> str:
    """Bytes in MiB."""
    return f"{size / 2**20:,.2f} MiB".replace(",", " ")


def grouped(number: int) -> str:
    """A count in groups of three digits."""
    return f"{number:,}".replace(",", " ")


def verdict_of(arm: ArmJudgement, margin: float | None) -> Said:
    """An arm's verdict with difference, interval and margin; or that there is none."""
    if arm.difference is None or arm.interval is None or arm.word is None or margin is None:
        difference = "" if arm.difference is None else f"{arm.difference:+.4f}"
        return Said(
            en=f"{difference or 'no difference'}, no verdict",
            zh=f"{difference or '没有差值'}，无结论",
        )
    low, high = arm.interval.low, arm.interval.high
    word = arm.word if arm.word != "not worse" else f"not worse by {margin:.2g} or more"
    shown = "" if arm.holds or arm.word in ("worse", "inconclusive") else _NOT_SHOWN.en
    also = "" if not shown else _NOT_SHOWN.zh
    return Said(
        en=f"{arm.difference:+.4f} (95 %: {low:+.4f} to {high:+.4f}): {word}{shown}",
        zh=f"{arm.difference:+.4f}（95 %：{low:+.4f} 到 {high:+.4f}）：{_VERDICTS[arm.word]}{also}",
    )


_NOT_SHOWN = Said(
    en=" on its own, but not after the correction for several arms",
    zh="（单独看如此；按多组校正后未得到证明）",
)
