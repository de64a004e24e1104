"""What a recipe is: which formats a training step uses, and how its loss is scaled.

A recipe is data. It says nothing about the model or the device; `compute.py` carries it out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from floatscope.errors import RecipeError, unknown
from floatscope.recipes.formats_of import Kept, Operand, Operands, Stored
from floatscope.recipes.scalings import LossScaling, Scaling

if TYPE_CHECKING:
    from torch import nn

    from floatscope.recipes.report import Memory, Report

ProductFormat = Literal["fp32", "bf16", "fp16"]
BACKENDS = ("auto", "native", "emulated")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
"""What a recipe may be called: names of runs, and so of folders, begin with it."""


def check_backend(requested: str) -> None:
    """Refuse a backend that does not exist.

    Raises:
        RecipeError: it is none of "auto", "native", "emulated".
    """
    if requested not in BACKENDS:
        raise RecipeError(unknown("backend", requested, BACKENDS))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one training step computes.

    What is multiplied, how it adds up, what is kept between steps, and how the loss is scaled. What
    is not named is fp32. Recipes are equal if they compute the same and have the same name.

    Raises:
        RecipeError: a name that no folder can have, or another format between products.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

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
    loss_scaling: Scaling | None = None
    """None multiplies the loss by nothing and applies every step, finite or not."""
    summary: str = field(default="", compare=False)
    """In a line, for people."""
    source: str = field(default="", compare=False)
    """Where it is published."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and NAME.fullmatch(self.name)):
            raise RecipeError(
                f"a recipe cannot be called {self.name!r}: letters, digits and . _ + - make a name."
            )
        if self.products not in get_args(ProductFormat):
            raise RecipeError(unknown("format of products", str(self.products), PRODUCTS))

    def __str__(self) -> str:
        """The recipe as a table, role by role, 80 columns wide."""
        from floatscope.recipes.show import shown

        return shown(self)

    def compute(
        self, model: nn.Module, backend: str = "auto", memory: Memory | None = None
    ) -> AbstractContextManager[Report | None]:
        """Inside it, calls of `model` compute as the recipe says (see `fs.compute`)."""
        from floatscope.recipes.compute import compute

        return compute(self, model, backend, memory)

    def table(self) -> list[tuple[str, str, str]]:
        """What is kept or done where, and in which format: (part, role, format), in words."""
        from floatscope.recipes.show import rows

        return rows(self)

    def to_dict(self) -> dict[str, Any]:
        """The fields that determine the arithmetic, as plain JSON values.

        Parts that are as they are by default are left out, so that the identity of a run does not
        change when a recipe could say more.
        """
        said: dict[str, Any] = {"name": self.name, "products": self.products}
        said["loss_scaling"] = None if self.loss_scaling is None else _said(self.loss_scaling)
        if self.operands is not None:
            said["operands"] = {
                f.name: _plain(getattr(self.operands, f.name)) for f in fields(Operands)
            }
        if self.kept != Kept() and self.operands is not None:
            said["kept"] = _said(self.kept)
        if self.stored != Stored():
            said["stored"] = _said(self.stored)
        return said

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Recipe:
        """The recipe that `to_dict` wrote, or that a TOML file describes.

        Args:
            values: fields, whose nested parts are mappings. "base" names a recipe of the catalogue
                from which unnamed fields come, fp32 by default (see `plain.py`).

        Raises:
            RecipeError: an unknown key, format or base, with the nearest; a value of the wrong
                type; a combination that makes no sense; or a name that the catalogue gives to
                another recipe.
        """
        from floatscope.recipes.plain import recipe_from

        return recipe_from(values)

    @staticmethod
    def from_toml(path: Path | str) -> Recipe:
        """The recipe in a TOML file; it is called as the file, unless it says otherwise.

        Raises:
            RecipeError: no such file, no TOML, or see `from_dict`.
        """
        from floatscope.recipes.plain import recipe_in

        return recipe_in(Path(path))


PRODUCTS: tuple[ProductFormat, ...] = get_args(ProductFormat)

_FIRST: dict[type, tuple[str, ...]] = {
    LossScaling: ("initial", "growth_factor", "backoff_factor", "growth_interval", "floor"),
    Kept: ("names", "first", "last", "last_share", "head"),
    Stored: ("weights", "master", "moments", "gradients", "update"),
}
"""Fields that every record has. Later ones are left out where they are as by default."""


def _said(part: Any) -> dict[str, Any]:
    first = _FIRST.get(type(part))
    if first is None:
        return asdict(part)
    default = type(part)()
    return {
        name: _plain(value)
        for name, value in asdict(part).items()
        if name in first or value != getattr(default, name)
    }


def _plain(value: Any) -> Any:
    """An operand without what it leaves open; lists for tuples."""
    if isinstance(value, Operand):
        open_ = Operand(format=value.format)
        said = {f.name: getattr(value, f.name) for f in fields(Operand)}
        return {k: _plain(v) for k, v in said.items() if k == "format" or v != getattr(open_, k)}
    return list(value) if isinstance(value, tuple) else value
