"""The parts of a recipe: operands of products, what is kept out, what is stored.

Data only. `Recipe` holds them; the rooms that carry them out read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from floatscope.errors import RecipeError, unknown
from floatscope.formats import BlockFormat, FloatFormat, Format, IntFormat, ScaleRule
from floatscope.formats import format as format_called

OperandRounding = Literal["nearest-even", "nearest-away", "stochastic"]
Update = Literal["nearest", "stochastic", "kahan"]
UPDATES = get_args(Update)
ACCUMULATORS = ("fp32", "hopper-fp8", "hopper-fp8-promoted", "ada-fp8", "fp16", "kahan")
ProductName = Literal["forward", "input_gradient", "weight_gradient"]
RoleName = Literal["activation", "weight", "gradient"]
PRODUCTS_OF: dict[ProductName, tuple[RoleName, RoleName]] = {
    "forward": ("activation", "weight"),
    "input_gradient": ("gradient", "weight"),
    "weight_gradient": ("gradient", "activation"),
}
"""What each product multiplies."""


@dataclass(frozen=True, kw_only=True)
class Operand:
    """What a product multiplies in place of a tensor: the tensor, quantized.

    Blocks run along the dimension that the product contracts, and are made anew from high
    precision for each product.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    format: str
    """A float, integer or block format. A float format is a plain cast, without a scale."""
    element: str = ""
    """Another element format than the block format's."""
    block: tuple[int, int] | None = None
    """Another block shape."""
    rule: str = ""
    """Another scale rule."""
    rounding: OperandRounding = "nearest-even"
    history: int = 0
    """Steps whose largest magnitudes decide a per-tensor scale (delayed scaling); 0 takes the
    tensor's own."""
    hadamard: int = 0
    """Size of the random Hadamard transform along the contracted dimension; 0 for none. Both
    operands of a product have the same."""

    def __post_init__(self) -> None:
        form = format_called(self.format)
        if self.rounding not in get_args(OperandRounding):
            raise RecipeError(unknown("rounding", str(self.rounding), get_args(OperandRounding)))
        if isinstance(form, BlockFormat):
            self._check_blocks(form)
        elif self.element or self.block or self.rule:
            raise RecipeError(
                f"{self.format} has no blocks, so it takes no element, block or rule of its own."
            )
        if self.history and not (isinstance(form, BlockFormat) and form.block == "tensor"):
            raise RecipeError(f"history is for formats with one scale a tensor, not {self.format}.")
        if min(self.history, self.hadamard) < 0 or self.hadamard & (self.hadamard - 1):
            raise RecipeError(
                f"history counts steps, and hadamard is a power of two; not {self.history} and "
                f"{self.hadamard}."
            )

    def _check_blocks(self, form: BlockFormat) -> None:
        rules = [rule.value for rule in ScaleRule]
        if self.rule and self.rule not in rules:
            raise RecipeError(unknown("scale rule", self.rule, rules))
        if self.element and isinstance(format_called(self.element), BlockFormat):
            raise RecipeError(f"{self.element} has blocks; elements are of a float or int format.")
        if self.block is None:
            return
        if isinstance(form.block, str):
            raise RecipeError(f"{self.format} has one scale a {form.block}, so it takes no block.")
        if len(self.block) != 2 or min(self.block) < 1:
            raise RecipeError(f"a block is (rows, columns), not {self.block}.")

    @property
    def form(self) -> Format:
        """The format with this operand's own element, block and rule."""
        from dataclasses import replace

        form = format_called(self.format)
        if not isinstance(form, BlockFormat) or not self.element:
            return form
        element = format_called(self.element)
        assert isinstance(element, (FloatFormat, IntFormat))
        return replace(form, name=f"{form.name}/{element.name}", element=element)


@dataclass(frozen=True, kw_only=True)
class Operands:
    """The operands of the three products of every weight: forward, input and weight gradient."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    activation: Operand
    weight: Operand
    gradient: Operand
    """Of the output; in the input gradient's product and, unless named apart, the weight's."""
    weight_again: Operand | None = None
    """The weight in the input gradient's product, if it differs."""
    activation_again: Operand | None = None
    """The activation in the weight gradient's product, if it differs."""
    gradient_again: Operand | None = None
    """The output gradient in the weight gradient's product, if it differs."""
    accumulator: str = "fp32"
    """How products add up: `ACCUMULATORS`."""

    def __post_init__(self) -> None:
        if self.accumulator not in ACCUMULATORS:
            raise RecipeError(unknown("accumulator", self.accumulator, ACCUMULATORS))
        for product, roles in PRODUCTS_OF.items():
            one, other = (self.of(product, role).hadamard for role in roles)
            if one != other:
                raise RecipeError(
                    f"in the {product.replace('_', ' ')}, {roles[0]} has hadamard = {one} and "
                    f"{roles[1]} {other}; the transform cancels only if both have the same."
                )

    @property
    def changes_nothing(self) -> bool:
        """Whether every operand is fp32 and sums are too."""
        every = (
            self.activation, self.weight, self.gradient, self.weight_again, self.activation_again,
            self.gradient_again,
        )  # fmt: skip
        plain = all(o is None or o == Operand(format="fp32") for o in every)
        return plain and self.accumulator == "fp32"

    def of(self, product: ProductName, role: RoleName) -> Operand:
        """The operand of a role in one of the three products."""
        if product == "input_gradient" and role == "weight":
            return self.weight_again or self.weight
        if product == "weight_gradient" and role == "activation":
            return self.activation_again or self.activation
        if product == "weight_gradient" and role == "gradient":
            return self.gradient_again or self.gradient
        return {"activation": self.activation, "weight": self.weight, "gradient": self.gradient}[
            role
        ]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Weights whose products stay in the format between products."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    names: tuple[str, ...] = ()
    """Patterns of full parameter names, such as "blocks.0.*"."""
    first: int = 0
    """So many weights from the model's start."""
    last: int = 0
    """So many from its end, the head apart."""
    last_share: float = 0.0
    """Or this share of all weights, rounded up."""
    head: bool = True
    """The weight that is also an embedding's, or else the last one: it makes the logits."""

    def __post_init__(self) -> None:
        if min(self.first, self.last) < 0 or not 0 <= self.last_share <= 1:
            raise RecipeError("first and last count weights, and last_share is between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How parameters, optimizer states and accumulated gradients are kept between steps.

    Values are in these formats; `storage.py` carries it out and says which tensors hold them.

    Raises:
        RecipeError: a format that no fp32 tensor holds or that has no NaN to show a failed step, or
            a way to round that would have no effect.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    weights: str = "fp32"
    master: str = ""
    """Format of a second copy that the optimizer updates; "" for none. Weights are the master,
    rounded to nearest."""
    moments: tuple[str, str] = ("fp32", "fp32")
    """Of the first moment (momentum) and the second; rounded to nearest after each step."""
    gradients: str = "fp32"
    """In which gradients of micro-batches are added up, rounded to nearest after each addition."""
    update: Update = "nearest"
    """How what the optimizer updates is rounded: the master if there is one, else the weights.
    "kahan" keeps the rest in a second tensor of the weights' format."""
    keep: tuple[str, ...] = ()
    """Patterns of parameters to which all this does not apply, by their full name or their
    module's, such as "blocks.0.*": they, their states and gradients stay in fp32."""
    keep_norms: bool = False
    """Whether gains and biases of normalization layers are kept so, too. Gains near 1 are the first
    weights that stall in 16 bits; Apex's O2 keeps those of batch normalization."""

    def __post_init__(self) -> None:
        if len(self.moments) != 2:
            raise RecipeError(
                f"moments are two formats, of the first and the second, not {self.moments}."
            )
        formats = (self.weights, self.master or "fp32", *self.moments, self.gradients)
        for name in formats:
            _check_storable(name)
        if self.update not in UPDATES:
            raise RecipeError(unknown("update", str(self.update), UPDATES))
        if (self.keep or self.keep_norms) and {*formats} == {"fp32"}:
            raise RecipeError("keep and keep_norms change nothing where everything is fp32.")
        if self.master and self.update == "kahan":
            raise RecipeError("a master copy and Kahan sums do the same; choose one.")
        if self.update != "nearest" and (self.master or self.weights) == "fp32":
            what = "an fp32 master" if self.master else "fp32 weights"
            raise RecipeError(
                f'update = "{self.update}" would change nothing, since {what} hold what the '
                'optimizer computes; choose "nearest".'
            )


def _check_storable(name: str) -> None:
    form = format_called(name)
    if not isinstance(form, FloatFormat):
        raise RecipeError(f"{name} is no float format; weights and states are stored in one.")
    if not form.has_nan or not form.zero:
        raise RecipeError(f"{name} cannot store weights or states: it lacks NaN or zero.")
    fp32 = format_called("fp32")
    assert isinstance(fp32, FloatFormat)
    if form.max > fp32.max or min(form.min_octave - fp32.min_octave, 23 - form.fraction_bits) < 0:
        raise RecipeError(f"{name} cannot store weights or states: fp32 tensors hold them.")
