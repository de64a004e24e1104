"""What a probe found, and the files it is kept in.

`probe.json` says what was probed, where and what it answers; four Parquet files hold the numbers:
`spectra` (a row a parameter's fp32 gradient), `predictions` (a row a format and scale, of all
gradients together), `measured` (a row a parameter and a block format) and `backward` (a row a
parameter, format and scale of the passes that really ran), and `on_the_way` (the same for the
gradients of module outputs).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from floatscope.lab.run.environment import Environment
from floatscope.spectrum.spectrum import Spectrum

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What storing all gradients in a float format would do, by their spectrum."""

    format: str
    exponent: int
    """k of the scale 2^k."""
    underflow: int
    subnormal: int
    overflow: int
    of: int
    """Finite non-zero elements."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What storing a parameter's gradient in a block format really did."""

    name: str
    format: str
    underflow: int
    """Non-zero elements that became zero."""
    saturated: int
    of: int
    """Non-zero elements."""
    error: float
    """2-norm of the error by the 2-norm of the gradient."""


@dataclass(frozen=True, kw_only=True)
class Backward:
    """What became of a tensor in a pass that really ran in 16 bits, against fp32."""

    name: str
    """Parameter, or module for the gradients of outputs."""
    format: str
    exponent: int
    zeros: int
    """Elements that are exactly zero (of parameters: and are not in fp32)."""
    subnormals: int
    """Elements that are subnormal in the format, as scaled."""
    infinities: int
    """Of `of`, as are NaNs."""
    nans: int
    of: int
    """Elements that are non-zero in fp32; of module outputs, all elements."""
    predicted: int
    """Elements that the fp32 spectrum says would be zero (of outputs: zeros included)."""
    error: float
    """2-norm of the unscaled difference by the 2-norm in fp32; NaN for module outputs."""
    median_error: float
    """Median over elements non-zero in fp32 of |difference| / |value|, which is infinite where the
    pass gave no number; NaN for module outputs."""


@dataclass(frozen=True, kw_only=True)
class PassRecord:
    """A pass that really ran."""

    recipe: str
    format: str
    exponent: int
    backend: str
    loss: float


@dataclass(frozen=True, kw_only=True)
class Total:
    """All parameters of one pass together; fields as in `Backward`."""

    format: str
    exponent: int
    zeros: int
    subnormals: int
    infinities: int
    nans: int
    predicted: int
    of: int
    median_error: float
    """Median of the parameters' median errors."""


@dataclass(frozen=True, kw_only=True)
class BlockTotal:
    """All parameters in one block format together; fields as in `Measured`."""

    format: str
    underflow: int
    saturated: int
    of: int
    error: float


@dataclass(frozen=True, kw_only=True)
class StateProbe:
    """All that was found in one state of the model."""

    name: str
    loss: float
    """In fp32."""
    spectra: dict[str, Spectrum]
    """Of each parameter's fp32 gradient."""
    without_gradient: tuple[str, ...]
    """Parameters that require a gradient and got none."""
    predictions: tuple[Prediction, ...]
    measured: tuple[Measured, ...]
    passes: tuple[PassRecord, ...]
    backward: tuple[Backward, ...]
    on_the_way: tuple[Backward, ...]

    @cached_property
    def total(self) -> Spectrum:
        """The spectrum of the whole gradient."""
        return Spectrum.sum(self.spectra.values())


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A subject probed."""

    label: str
    origin: dict[str, Any]
    environment: Environment
    states: tuple[StateProbe, ...]


@dataclass(frozen=True, kw_only=True)
class StateSummary:
    """One state in `probe.json`."""

    name: str
    loss: float
    elements: int
    nonzero: int
    octaves: tuple[int, int]
    """Of the smallest and of the largest non-zero magnitude."""
    bulk_octaves: tuple[int, int]
    """Of the middle 99.9 % of the non-zero elements."""
    below_smallest_fp16: float
    """Share of the non-zero elements below 2^-24, unscaled."""
    below_smallest_fp16_at_65536: float
    without_gradient: tuple[str, ...]
    predictions: tuple[Prediction, ...]
    block_formats: tuple[BlockTotal, ...]
    passes: tuple[PassRecord, ...]
    totals: tuple[Total, ...]
    answers: tuple[str, ...]
    """The course document's questions, answered in words."""


@dataclass(frozen=True, kw_only=True)
class ProbeFile:
    """A probe in few numbers: `probe.json`."""

    schema: int = SCHEMA_VERSION
    label: str
    origin: dict[str, Any]
    """The run's plan and identity, or the name of the model's function."""
    environment: Environment
    states: tuple[StateSummary, ...]
