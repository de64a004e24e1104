"""floatscope: a laboratory bench for the floating point of neural-network training.

    import floatscope as fs

    step = fs.TrainStep(model, optimizer, fs.recipe("fp16-mixed"), clip_norm=1.0)
    result = step(lambda model: loss_fn(model(x), y))

    rounded = fs.round_to(x, "e4m3fn", overflow="saturate")
    values, scales, _ = fs.block_round(x, "mxfp8-e4m3")

Names are imported when first used, so that `import floatscope` itself costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatscope.errors import FloatscopeError as FloatscopeError
    from floatscope.formats import format as format
    from floatscope.lab.compare.run import compare as compare
    from floatscope.recipes import LossScaling as LossScaling
    from floatscope.recipes import Recipe as Recipe
    from floatscope.recipes import recipe as recipe
    from floatscope.recipes.compute import compute as compute
    from floatscope.recipes.train_step import StepResult as StepResult
    from floatscope.recipes.train_step import TrainStep as TrainStep
    from floatscope.rounding import Hadamard as Hadamard
    from floatscope.rounding import Receipt as Receipt
    from floatscope.rounding import Rules as Rules
    from floatscope.rounding import StochasticKey as StochasticKey
    from floatscope.rounding import block_round as block_round
    from floatscope.rounding import decode_from as decode_from
    from floatscope.rounding import disagreements as disagreements
    from floatscope.rounding import encode_to as encode_to
    from floatscope.rounding import pack as pack
    from floatscope.rounding import round_to as round_to
    from floatscope.rounding import rules_for as rules_for
    from floatscope.rounding import unpack as unpack
    from floatscope.spectrum.capture.capture import capture as capture
    from floatscope.spectrum.spectrum import Spectrum as Spectrum

_HOMES = {
    "FloatscopeError": "floatscope.errors",
    "LossScaling": "floatscope.recipes",
    "Recipe": "floatscope.recipes",
    "recipe": "floatscope.recipes",
    "compute": "floatscope.recipes.compute",
    "compare": "floatscope.lab.compare.run",
    "StepResult": "floatscope.recipes.train_step",
    "TrainStep": "floatscope.recipes.train_step",
    "Spectrum": "floatscope.spectrum.spectrum",
    "capture": "floatscope.spectrum.capture.capture",
    "format": "floatscope.formats",
    **dict.fromkeys(
        "Hadamard Receipt Rules StochasticKey block_round decode_from disagreements encode_to pack "
        "round_to rules_for unpack".split(),
        "floatscope.rounding",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'floatscope' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
