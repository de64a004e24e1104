"""Optimizer states in the formats of moments: which state is a first moment, which a second.

Known by name, as Torch's optimizers call them (torch 2.13). A state that is not in the table is
refused where a moment has a format other than fp32, because rounding it, or not, would be a guess.
"""

from __future__ import annotations

from torch import Tensor

from floatscope.errors import RecipeError
from floatscope.recipes.formats_of import Stored
from floatscope.recipes.optimizers import OneOrTogether, optimizer_of
from floatscope.rounding.cast import Cast, cast_to
from floatscope.rounding.tensors import round_tensor

FIRST = {
    "exp_avg": "mean of gradients (Adam, AdamW, Adamax, NAdam, RAdam)",
    "momentum_buffer": "momentum (SGD, RMSprop, Muon)",
    "grad_avg": "mean of gradients (RMSprop, centered)",
    "prev": "last gradient (Rprop)",
}
"""States that are as large as a gradient."""
SECOND = {
    "exp_avg_sq": "mean of squares (Adam, AdamW, NAdam, RAdam)",
    "max_exp_avg_sq": "its largest so far (Adam and AdamW with amsgrad)",
    "square_avg": "mean of squares (RMSprop, Adadelta)",
    "sum": "sum of squares (Adagrad)",
    "exp_inf": "decayed largest magnitude (Adamax)",
    "acc_delta": "mean of squared updates (Adadelta)",
    "row_var": "mean of squares by row (Adafactor)",
    "col_var": "mean of squares by column (Adafactor)",
    "variance": "mean of squares (Adafactor, vectors)",
}
"""States that are as large as a square of gradients, or stand in for one."""
NUMBERS = ("step", "mu_product", "eta", "mu")
"""One number for a whole parameter; left alone."""


def nearest(name: str) -> Cast | None:
    """The cast to a format as storage does it: to nearest even, overflow as the standard says.

    Overflow must show: it is infinite, or NaN in a format without infinity. None for fp32, in which
    everything is computed.
    """
    return None if name == "fp32" else cast_to(name, None, "nearest-even", None, None)


def round_in_place(x: Tensor, cast: Cast) -> None:
    """Round a tensor by way of another: kernels are several times slower on one and the same."""
    x.copy_(round_tensor(x, cast))


class States:
    """Rounds the states of an optimizer as a recipe says, but for parameters in `kept`, by id."""

    def __init__(
        self, stored: Stored, optimizer: OneOrTogether, kept: frozenset[int] = frozenset()
    ) -> None:
        self._optimizer, self._kept = optimizer, kept
        first, second = map(nearest, stored.moments)
        self._casts = {**dict.fromkeys(FIRST, first), **dict.fromkeys(SECOND, second)}
        self._rounds = first is not None or second is not None

    def of(self, parameter: Tensor) -> dict[str, Tensor]:
        """The states of a parameter that are tensors, by name."""
        state = self._optimizer.state.get(parameter, {})
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def widen(self, parameter: Tensor) -> None:
        """Put states that an optimizer made or loaded in 16 bits into fp32 tensors."""
        for name, value in self.of(parameter).items():
            if value.is_floating_point() and value.element_size() < 4:
                self._optimizer.state[parameter][name] = value.float()

    def check(self, parameter: Tensor, called: str) -> None:
        """Refuse states of which it is not known what they are.

        Raises:
            RecipeError: a moment is to be rounded, and there is a state that is not in the table.
        """
        if not self._rounds or id(parameter) in self._kept:
            return
        for name, value in self.of(parameter).items():
            is_number = value.ndim == 0 and (parameter.ndim > 0 or name in NUMBERS)
            if name not in self._casts and not is_number:
                owner = optimizer_of(self._optimizer, parameter)
                raise RecipeError(
                    f"{type(owner).__name__} keeps a state {name!r} for {called}, and it is not "
                    "known whether it is a first or a second moment; only fp32 moments can "
                    f"be kept with it. Known are {', '.join(self._casts)}."
                )

    def round(self, parameter: Tensor) -> None:
        """Round the moments of a parameter, in place."""
        if id(parameter) in self._kept:
            return
        for name, value in self.of(parameter).items():
            cast = self._casts.get(name)
            if cast is not None:
                round_in_place(value, cast)
