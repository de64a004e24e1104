"""Models of a user's own, named as `package.module:function` or `file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from floatscope.errors import StudyError

Factory = Callable[[], tuple[nn.Module, Any]]


def factory_called(name: str) -> Factory:
    """The function called `name`; calling it makes a model and what to call it with.

    The function takes no arguments and returns (model, loss_of) or (model, batch). `loss_of(model)`
    returns the loss. A batch is what the model is called with: a dict by keyword, a tuple or list
    by position, anything else alone; the model then returns its loss, or a mapping or object that
    has one as `loss`.

    Args:
        name: `package.module:function`, looked for in the present folder too, or
            `file.py:function`.

    Returns:
        A function that calls the user's and checks what it returns. It raises a StudyError where
        the user's raised an exception, which is its cause, or returned something else.

    Raises:
        StudyError: there is no such function.
    """
    where, _, function = name.partition(":")
    if not where or not function:
        raise StudyError(f"{name}: name it as package.module:function or file.py:function.")
    factory = getattr(_module(where, name), function, None)
    if not callable(factory):
        raise StudyError(f"{name}: there is no function {function} in {where}.")

    def make() -> tuple[nn.Module, Any]:
        try:
            made: Any = factory()
        except (Exception, SystemExit) as error:
            raise StudyError(
                f"{name}: the function raised {type(error).__name__}: {error}"
            ) from error
        is_pair = isinstance(made, (tuple, list)) and len(made) == 2
        if not (is_pair and isinstance(made[0], nn.Module)):
            raise StudyError(
                f"{name}: the function must return (model, loss_of) or (model, batch), and "
                f"returned {described(made)}."
            )
        return made[0], made[1]

    return make


def output_for(model: nn.Module, given: Any) -> Any:
    """What a model says of what its factory gave with it: a function of the model, or a batch."""
    if callable(given) and not isinstance(given, (Tensor, nn.Module)):
        return given(model)
    if isinstance(given, Mapping):
        return model(**given)
    if isinstance(given, (tuple, list)):
        return model(*given)
    return model(given)


def loss_in(output: Any) -> Tensor:
    """The scalar loss in what a model or a loss function returned.

    Raises:
        StudyError: there is none, or nothing to train depends on it.
    """
    loss = output
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif not isinstance(output, Tensor):
        loss = getattr(output, "loss", None)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise StudyError(
            f"no loss was found: {described(output)} was returned where a scalar tensor, or an "
            "output with a scalar `loss`, is needed."
        )
    if not loss.requires_grad:
        raise StudyError("the loss does not depend on any parameter that requires a gradient.")
    return loss


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model that require a gradient, by name: in fp32, at least one.

    Raises:
        StudyError: there is none, or one of another dtype or without data.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise StudyError("there is no gradient to look at: no parameter requires one.")
    for name, parameter in trained.items():
        if parameter.device.type == "meta":
            raise StudyError(f"the parameter {name} is on the meta device and has no data.")
        if parameter.dtype is not torch.float32:
            raise StudyError(
                f"the parameter {name} is {parameter.dtype}, and gradients are compared with those "
                "of an fp32 model. Convert it with model.float()."
            )
    return trained


def _module(where: str, name: str) -> Any:
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(where)
        finally:
            sys.path.remove(str(Path.cwd()))
    except (Exception, SystemExit) as error:
        raise StudyError(
            f"{name}: {where} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def described(value: Any) -> str:
    """A value in a few words, for messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, (tuple, list)):
        return (
            f"{type(value).__name__} of {', '.join(type(v).__name__ for v in value) or 'nothing'}"
        )
    return f"{type(value).__name__}"
