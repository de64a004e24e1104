"""What the demonstrations find: the records that tables, sentences, figures and the report read.

Shares are recorded as a count and what it is of; scales 2^k as k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Counted:
    """So many of so many."""

    count: int
    of: int

    @property
    def share(self) -> float:
        """The share; 0 of nothing."""
        return self.count / self.of if self.of else 0.0


# 1: formats


@dataclass(frozen=True, kw_only=True)
class FormatRow:
    """A float format. Exact numbers are text, such as "65504", "2^-24" or "≈3.40282e38"."""

    name: str
    exponent_bits: int
    fraction_bits: int
    signed: bool
    emax: int
    """Exponent of the largest value."""
    emin: int
    """Exponent of the smallest normal value."""
    min_octave: int
    """Exponent of the smallest positive value."""
    max: str
    smallest_normal: str
    smallest: str
    eps: str
    to_zero: str
    """Largest magnitude that rounds to zero."""
    overflows: str
    """Smallest magnitude that rounds beyond the largest value, or the bound that must be passed."""


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Demonstration 1."""

    rows: tuple[FormatRow, ...]


# 2: two ways of being swallowed


@dataclass(frozen=True, kw_only=True)
class Sum:
    """An increment added up many times in one format."""

    format: str
    increment: float
    """As the format holds it."""
    result: float
    stalled_after: int | None
    """Additions after which the sum never changed again; None if it kept moving."""
    predicted_after: int | None
    """The same, from ulps alone; None if not within these additions."""
    predicted_value: float
    """Where it stalls, from ulps alone, whenever that is."""
    trace: tuple[tuple[int, float], ...]
    """Additions done and the sum, now and then."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """The same additions with a remedy."""

    format: str
    name: str
    """"fp32", "kahan", "pairwise" or "stochastic"."""
    result: float
    """Mean over the repetitions."""
    spread: float
    """Their standard deviation; 0 for what is not random."""
    repetitions: int


@dataclass(frozen=True, kw_only=True)
class Added:
    """1 + delta in one format."""

    format: str
    delta: float
    result: float
    half_ulp: float
    """Of 1: a delta up to it is swallowed."""

    @property
    def swallowed(self) -> bool:
        return self.result == 1.0


@dataclass(frozen=True, kw_only=True)
class Swallowed:
    """Demonstration 2."""

    increment: float
    additions: int
    sums: tuple[Sum, ...]
    remedies: tuple[Remedy, ...]
    added: tuple[Added, ...]


# 3: real gradients under loss scaling


@dataclass(frozen=True, kw_only=True)
class ScaleRow:
    """A backward pass that really ran in fp16 at one scale, beside what fp32 predicts of it."""

    exponent: int
    flushed: Counted
    """Zero, of those that are not zero in fp32."""
    infinite: Counted
    nan: Counted
    predicted_flushed: Counted
    predicted_infinite: Counted
    error: float
    """2-norm of the error by that of the fp32 gradient; NaN or infinite if an element is."""
    median_error: float
    """Median over elements of |error| / |fp32 element|; what is no number counts as infinite."""
    error_rounded: float
    """As `error`, against fp32 at the weights rounded to fp16: the arithmetic alone."""
    median_error_rounded: float
    sign_flips: Counted
    """Elements with the opposite sign."""

    @property
    def is_finite(self) -> bool:
        return not (self.infinite.count or self.nan.count)


@dataclass(frozen=True, kw_only=True)
class GradientBatch:
    """One batch size."""

    batch_size: int
    loss: float
    """In fp32, nats a character."""
    median: float
    """Of |g| in fp32."""
    below_normal: Counted
    """|g| < 2^-14, not zero."""
    below_smallest: Counted
    """|g| < 2^-24, not zero."""
    to_zero: Counted
    """|g| <= 2^-25, not zero: what a cast to fp16 makes zero."""
    octaves: tuple[tuple[int, int], ...]
    """Non-zero elements by octave, in fp32."""
    scales: tuple[ScaleRow, ...]


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Demonstration 3."""

    bits: float
    """Of the base model, a character."""
    batches: tuple[GradientBatch, ...]


# 4: dynamic loss scaling


@dataclass(frozen=True, kw_only=True)
class ScaledStep:
    """A step under dynamic loss scaling."""

    exponent: int
    """k of the scale 2^k that this step used."""
    skipped: bool
    grew: bool
    """Whether the scale doubled after it."""
    loss: float


@dataclass(frozen=True, kw_only=True)
class ScalingRun:
    """So many steps of it."""

    steps: tuple[ScaledStep, ...]
    final_exponent: int
    collapsed: bool
    """Whether the run ended because its next step would have taken the scale below the floor."""

    @property
    def initial_exponent(self) -> int:
        return self.steps[0].exponent

    @property
    def num_skipped(self) -> int:
        return sum(step.skipped for step in self.steps)

    @property
    def num_grown(self) -> int:
        return sum(step.grew for step in self.steps)

    def most_skips(self, growth_interval: int) -> float:
        """(T - N log2(S_T / S_0)) / (N + 1): no run of T steps can skip more, whatever happens."""
        rise = self.final_exponent - self.initial_exponent
        return (len(self.steps) - growth_interval * rise) / (growth_interval + 1)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Demonstration 4."""

    growth_interval: int
    floor_exponent: int
    """A scale below 2^k ends a run."""
    ordinary: ScalingRun
    overflowing: ScalingRun
    """Its forward pass overflows."""


# 5: swallowed updates and master weights


@dataclass(frozen=True, kw_only=True)
class Unmoved:
    """Weights that an update of +u or -u leaves where they are."""

    format: str
    update: float
    matrices: Counted
    gains: Counted
    """LayerNorm gains apart: they lie near 1."""


@dataclass(frozen=True, kw_only=True)
class LostAt:
    """What a step of a training really lost: updates that left no trace."""

    step: int
    lost: Counted


@dataclass(frozen=True, kw_only=True)
class MomentAt:
    """The second moment after a step, beside one kept in fp32 from the same gradients."""

    step: int
    unchanged: Counted
    """Entries that the step did not change."""
    ratio: tuple[float, float, float]
    """sqrt(v stored / v in fp32): 5 %, 50 % and 95 % of the entries lie below."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One training from scratch."""

    arm: str
    seed: int
    beta2: float
    bits: float
    """A character, on the validation text."""
    lost: tuple[LostAt, ...] = ()
    moments: tuple[MomentAt, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Decay:
    """A second moment in one format through steps whose gradients are all zero."""

    format: str
    beta2: float
    steps: int
    exact: float
    """beta2 ** steps."""
    smallest: float
    """Of what is left of v, over all values that the format has from 1 to 2; as `largest`."""
    largest: float


@dataclass(frozen=True, kw_only=True)
class MasterWeights:
    """Demonstration 5."""

    median_weight: float
    """Of |w| of the base model."""
    unmoved: tuple[Unmoved, ...]
    steps: int
    trainings: tuple[Trained, ...]
    decay: tuple[Decay, ...] = ()

    def bits(self, arm: str, beta2: float = 0.95) -> dict[int, float]:
        """By seed, bits of an arm; empty if it was not trained."""
        return {t.seed: t.bits for t in self.trainings if (t.arm, t.beta2) == (arm, beta2)}

    def paired(self, arm: str, beta2: float = 0.95) -> dict[int, float]:
        """By seed, bits of an arm minus those of fp32 with the same seed and beta2."""
        fp32 = self.bits("fp32", beta2)
        return {s: bits - fp32[s] for s, bits in self.bits(arm, beta2).items() if s in fp32}


KINDS: dict[int, Any] = {1: Formats, 2: Swallowed, 3: Gradients, 4: Scaling, 5: MasterWeights}
"""The record of each demonstration."""
