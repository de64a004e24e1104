"""`FullyShardedDataParallel`, which writes gradients without autograd calling a hook."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from floatscope.spectrum.capture.attach import Arrived, Returned
from floatscope.spectrum.capture.clock import Clock, backward_pass
from floatscope.spectrum.capture.leaves import leaves
from floatscope.spectrum.capture.pending import Key
from floatscope.spectrum.capture.weights import Weights, at_the_end_of_the_pass


class Fsdp1:
    """Has the gradients looked at after each backward pass through one of the wrappers.

    Args:
        wrappers: `FullyShardedDataParallel` modules; without any, all this does nothing.
        weights: what is to look.
        clock: the steps.
    """

    def __init__(self, wrappers: list[nn.Module], weights: Weights, clock: Clock) -> None:
        self._wrappers, self._weights, self._clock = wrappers, weights, clock
        self._handles: list[RemovableHandle] = []
        self._on_outputs: list[RemovableHandle] = []
        self._seen = -1

    def attach(self) -> None:
        hook = Returned(self._returned, "")
        self._handles = [module.register_forward_hook(hook) for module in self._wrappers]

    def detach(self) -> None:
        for handle in (*self._handles, *self._on_outputs):
            handle.remove()
        self._handles, self._on_outputs = [], []

    def _returned(self, path: str, output: Any) -> None:
        alive = [handle for handle in self._on_outputs if handle.hooks_dict_ref() is not None]
        hook = Arrived(self._arrived)
        new = [t.register_hook(hook) for _, t in leaves(output) if t.requires_grad]
        self._on_outputs = alive + new

    def _arrived(self, keys: list[Key], gradient: Tensor | None) -> None:
        scale = self._clock.backward()
        if backward_pass() != self._seen:
            self._seen = backward_pass()
            at_the_end_of_the_pass(lambda: self._weights.written_by_fsdp1(scale))
