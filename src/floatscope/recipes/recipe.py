"""What a recipe is: which formats a training step uses, and how its loss is scaled.

A recipe is data. It says nothing about the model or the device; `compute.py` carries it out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any, Literal

from floatscope.errors import RecipeError, unknown
from floatscope.recipes.formats_of import Kept, Operand, Operands, Stored

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

    What is multiplied, how it adds up, what is kept between steps, and how the loss is scaled. What
    is not named is fp32.
    """

    name: str
    products: ProductFormat
    """Format between products, as under `torch.autocast`: of their results, and of operands that
    nothing else is said of. Sums inside them run in fp32."""
    operands: Operands | None = None
    """What the products of weights multiply instead; None for what `products` says."""
    kept: Kept = field(default_factory=Kept)
    """Weights to which `operands` do not apply."""
    stored: Stored = field(default_factory=Stored)
    """How weights, optimizer states and accumulated gradients are kept between steps."""
    loss_scaling: LossScaling | None = None
    """None multiplies the loss by nothing and applies every step, finite or not."""
    summary: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """The fields that determine the arithmetic, as plain JSON values.

        Parts that are as they are by default are left out, so that the identity of a run does not
        change when a recipe could say more.
        """
        fields: dict[str, Any] = {"name": self.name, "products": self.products}
        scaling = None if self.loss_scaling is None else _said(self.loss_scaling, LossScaling())
        fields["loss_scaling"] = scaling
        if self.operands is not None:
            fields["operands"] = {
                f.name: _plain(getattr(self.operands, f.name)) for f in dataclass_fields(Operands)
            }
        for name, default in (("kept", Kept()), ("stored", Stored())):
            part = getattr(self, name)
            if part != default and (name != "kept" or self.operands is not None):
                fields[name] = {k: _plain(v) for k, v in asdict(part).items()}
        return fields


_FIRST_FIELDS = ("initial", "growth_factor", "backoff_factor", "growth_interval", "floor")


def _said(part: LossScaling, default: LossScaling) -> dict[str, Any]:
    """The constants that every record has, and of the others those that are not as by default."""
    return {
        name: value
        for name, value in asdict(part).items()
        if name in _FIRST_FIELDS or value != getattr(default, name)
    }


def _plain(value: Any) -> Any:
    """An operand without what it leaves open; lists for tuples."""
    if isinstance(value, Operand):
        open_ = Operand(format=value.format)
        said = {f.name: getattr(value, f.name) for f in dataclass_fields(Operand)}
        return {k: _plain(v) for k, v in said.items() if k == "format" or v != getattr(open_, k)}
    return list(value) if isinstance(value, tuple) else value
