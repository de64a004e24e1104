"""floatscope: a laboratory bench for the floating point of neural-network training.

    import floatscope as fs

    step = fs.TrainStep(model, optimizer, fs.recipe("fp16-mixed"), clip_norm=1.0)
    result = step(lambda model: loss_fn(model(x), y))

Names are imported when first used, so that `import floatscope` itself costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatscope.errors import FloatscopeError as FloatscopeError
    from floatscope.recipes import LossScaling as LossScaling
    from floatscope.recipes import Recipe as Recipe
    from floatscope.recipes import recipe as recipe
    from floatscope.recipes.compute import compute as compute
    from floatscope.recipes.train_step import StepResult as StepResult
    from floatscope.recipes.train_step import TrainStep as TrainStep

_HOMES = {
    "FloatscopeError": "floatscope.errors",
    "LossScaling": "floatscope.recipes",
    "Recipe": "floatscope.recipes",
    "recipe": "floatscope.recipes",
    "compute": "floatscope.recipes.compute",
    "StepResult": "floatscope.recipes.train_step",
    "TrainStep": "floatscope.recipes.train_step",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'floatscope' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
