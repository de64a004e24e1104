"""Five demonstrations of 16-bit floating point, measured live.

One file each, `demo1_...` to `demo5_...`, to be read and changed.

The lecture's own functions are here too; they load Torch when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floatscope.lab.lecture.by_dtype import train_with_storage as train_with_storage
    from floatscope.lab.lecture.demo3_gradients import fp16_grads as fp16_grads

_HOMES = {"fp16_grads": "demo3_gradients", "train_with_storage": "by_dtype"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
