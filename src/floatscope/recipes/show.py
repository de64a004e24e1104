"""A recipe in words: which format each role has, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from floatscope.formats import BlockFormat
from floatscope.formats import format as format_called
from floatscope.formats.show import shown as number
from floatscope.recipes.formats_of import (
    PRODUCTS_OF,
    Kept,
    Operand,
    ProductName,
    RoleName,
    Stored,
)
from floatscope.recipes.scalings import LARGEST, LossScaling, Scaling, StaticScaling

if TYPE_CHECKING:
    from floatscope.recipes.recipe import Recipe

WIDTH = 80
Row = tuple[str, str, str]

SUMS = {
    "fp32": "fp32",
    "hopper-fp8": "Hopper's fp8: 32 products at a time, aligned, cut to 13 fraction bits",
    "hopper-fp8-promoted": "Hopper's fp8: 32 products at a time, aligned, cut to 13 fraction bits; "
    "added up in fp32 every 128",
    "ada-fp8": "Ada's fp8: 16 products at a time, aligned, cut to 13 fraction bits",
    "fp16": "fp16, one product at a time",
    "kahan": "fp32 with Kahan's compensation",
}
RULES = {
    "floor": "rounded down", "ceil": "rounded up if amax is no power of two",
    "even": "of amax rounded to the element's precision", "rceil": "rounded up",
    "amax": "amax / largest", "amax-divide": "amax / largest, divided by", "nvfp4": "two levels",
}  # fmt: skip
ROUNDINGS = {"nearest-even": "", "nearest-away": "ties away", "stochastic": "stochastic rounding"}
UPDATES = {
    "nearest": "to nearest even",
    "stochastic": "stochastically, keyed by step, parameter and element",
    "kahan": "to nearest even, with Kahan's compensation",
}


def shown(recipe: Recipe) -> str:
    """The table as text, 80 columns wide."""
    lines = [recipe.name]
    for text in (recipe.summary, f"source: {recipe.source}" if recipe.source else ""):
        lines += textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    table = rows(recipe)
    lines.append("")
    first, second = (max(len(row[i]) for row in table) + 2 for i in (0, 1))
    before = ""
    for part, role, said in table:
        start = f"{part if part != before else '':{first}}{role:{second}}"
        after = " " * len(start)
        lines += textwrap.wrap(said, WIDTH, initial_indent=start, subsequent_indent=after)
        before = part
    return "\n".join(lines)


def rows(recipe: Recipe) -> list[Row]:
    """(part, role, format) in words, from what is stored to how the loss is scaled."""
    return [
        *_stored(recipe.stored),
        *_products(recipe),
        ("loss", "scaling", _scaling(recipe.loss_scaling)),
    ]


def _stored(stored: Stored) -> Iterator[Row]:
    first, second = stored.moments
    yield "stored", "weights", stored.weights
    yield "stored", "master copy", stored.master or "none"
    yield "stored", "first moment", first
    yield "stored", "second moment", second
    yield "stored", "gradient accumulation", stored.gradients
    if stored.keep or stored.keep_norms:
        norms = ("gains and biases of norms",) if stored.keep_norms else ()
        yield "stored", "kept in fp32", ", ".join((*norms, *stored.keep))
    moved = stored.master or stored.weights
    rounded = "none, in fp32" if moved == "fp32" else f"to {moved}, {UPDATES[stored.update]}"
    yield "stored", "rounding of updates", rounded


def _products(recipe: Recipe) -> Iterator[Row]:
    high, operands = recipe.products, recipe.operands
    for product, roles in PRODUCTS_OF.items():
        for role in roles:
            said = high if operands is None else operand_in_words(operands.of(product, role))
            yield "products", _called(product, role), said
    yield "products", "sums", SUMS["fp32" if operands is None else operands.accumulator]
    yield "products", "results", high
    yield "products", "without a weight", f"{high}, attention's among them"
    if operands is not None:
        yield "products", f"weights kept in {high}", kept_in_words(recipe.kept)
    rest = "fp32" if high == "fp32" else f"{high} or fp32, as torch.autocast has it"
    yield "between", "norms, softmax, loss", rest


def _called(product: ProductName, role: RoleName) -> str:
    return f"{product.replace('_', ' ')}: {role}"


def operand_in_words(operand: Operand) -> str:
    """An operand's format, and what is particular about it."""
    form = format_called(operand.format)
    said = [operand.format]
    if isinstance(form, BlockFormat):
        element = operand.element or form.element.name
        if element.removesuffix("fn") not in operand.format:
            said.append(f"elements {element}")
        if operand.block:
            said.append("blocks of {}×{}".format(*operand.block))
        if operand.rule:
            said.append(f"scales {RULES[operand.rule]}")
    said += [
        ROUNDINGS[operand.rounding],
        f"scaled by the amax of {operand.history} steps" if operand.history else "",
        f"Hadamard {operand.hadamard}" if operand.hadamard else "",
    ]
    return ", ".join(filter(None, said))


def kept_in_words(kept: Kept) -> str:
    """Which weights are left alone."""
    said = [
        "the head" if kept.head else "",
        f"the first {kept.first}" if kept.first else "",
        f"the last {kept.last}" if kept.last else "",
        f"the last {100 * kept.last_share:g} %" if kept.last_share else "",
        *kept.names,
    ]
    return ", ".join(filter(None, said)) or "none"


def _scaling(scaling: Scaling | None) -> str:
    if scaling is None:
        return "none; every step is applied, finite or not"
    if isinstance(scaling, StaticScaling):
        return (
            f"static, {_number(scaling.scale)}; a step that overflows is skipped, "
            f"{scaling.skips_in_a_row} in a row end the run"
        )
    return ", ".join(filter(None, _dynamic(scaling)))


def _dynamic(scaling: LossScaling) -> Iterator[str]:
    yield f"dynamic: from {_number(scaling.initial)}"
    yield f"× {_number(scaling.backoff_factor)} at an overflow, which skips the step"
    if scaling.hysteresis > 1:
        yield f"from the {scaling.hysteresis}th since the last growth on"
    yield (
        f"× {_number(scaling.growth_factor)} after {scaling.growth_interval} clean steps in a row"
    )
    if scaling.ceiling < LARGEST:
        yield f"at most {_number(scaling.ceiling)}"
    times = "" if scaling.skips_at_floor == 1 else f" {scaling.skips_at_floor} times"
    yield f"ends when it would fall below {_number(scaling.lowest)}{times}"


def _number(value: float) -> str:
    return number(float(value))
