"""What a recipe is: which formats a training step uses, and how its loss is scaled.

A recipe is data. It says nothing about the model or the device; `compute.py` carries it out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from floatscope.errors import RecipeError, unknown

ProductFormat = Literal["fp32", "bf16", "fp16"]
BACKENDS = ("auto", "native", "emulated")


def check_backend(requested: str) -> None:
    """Refuse a backend that does not exist.

    Raises:
        RecipeError: it is none of "auto", "native", "emulated".
    """
    if requested not in BACKENDS:
        raise RecipeError(unknown("backend", requested, BACKENDS))


@dataclass(frozen=True, kw_only=True)
class LossScaling:
    """Dynamic loss scaling (Micikevicius et al. 2018, section 3.2), with every constant visible.

    The loss is multiplied by the scale before backward and the gradients are divided by it after.
    """

    initial: float = 65_536.0
    """Scale of the first step."""
    growth_factor: float = 2.0
    """Multiplies the scale after `growth_interval` clean steps in a row."""
    backoff_factor: float = 0.5
    """Multiplies the scale after a step with an infinity or a NaN in its gradients."""
    growth_interval: int = 200
    """Clean steps in a row before the scale grows."""
    floor: float = 2.0**-24
    """A skipped step that leaves the scale below this ends the run: no scale helps. Torch's own
    scaler goes on until 1/scale is infinite and then writes NaN into every weight."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one training step computes.

    Weights, gradients and optimizer states are fp32 in every recipe here; what changes is the
    format of matrix products, as under `torch.autocast`.
    """

    name: str
    products: ProductFormat
    """Format of the operands and results of matrix products; sums inside them run in fp32."""
    loss_scaling: LossScaling | None = None
    """None multiplies the loss by nothing and applies every step, finite or not."""
    summary: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """The fields that determine the arithmetic, as plain JSON values."""
        fields = asdict(self)
        del fields["summary"], fields["source"]
        return fields
