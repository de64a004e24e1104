"""Steps: when one begins, when it ends, and whether it is measured.

A step ends

1. when the optimizer has stepped;
2. when a loss scaler has withheld the optimizer's step, which is noticed as soon as the model is
   called or differentiated again: by a `GradScaler`'s own notes, or by a loss scale that fell;
3. when told so by `next_step()`. Right after an end of the first kind that does nothing. So it is
   correct at the end of every iteration, whatever the optimizer did in it.

It begins with the first thing that happens in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from floatscope.spectrum.capture.scales import UNSCALED, LossScale, Scale


def backward_pass() -> int:
    """A number for the backward pass that runs in this thread; -1 without."""
    return torch._C._current_graph_task_id()


class Clock:
    """Knows the step.

    Args:
        every: measure steps whose number is a multiple of it.
        step: number of the first step.
        loss: where loss scales come from.
        on_begin: called when a measured step begins.
        on_end: called when a measured step ends, with whether the optimizer stepped.
    """

    def __init__(
        self,
        every: int,
        step: int,
        loss: LossScale,
        on_begin: Callable[[], None],
        on_end: Callable[[bool], None],
    ) -> None:
        self.step = step
        self._first, self._every = step, every
        self._loss, self._on_begin, self._on_end = loss, on_begin, on_end
        self._is_on = False  # between opening and closing, and not paused
        self.is_watching = False
        """Whether what happens now is to be measured."""
        self._just_stepped = False  # the optimizer ended the last step, and no backward came since
        self._reset()

    def _reset(self) -> None:
        self._has_begun = False
        self._pass: int | None = None
        self._scale = UNSCALED
        self._mark: Any = None
        self._is_marked = self._was_differentiated = False
        self._look()

    def _look(self) -> None:
        self.is_watching = self._is_on and self.step % self._every == 0

    def switch(self, on: bool) -> bool:
        """Begin or stop to watch; returns what was before."""
        before, self._is_on = self._is_on, on
        self._look()
        return before

    def touch(self) -> bool:
        """Something happens in the step; returns whether to look."""
        if self.is_watching and not self._has_begun:
            self._has_begun = True
            self._on_begin()
        return self.is_watching

    def forward(self) -> bool:
        """A module was called; returns whether to look."""
        if self._was_differentiated and self._is_on:
            self._was_differentiated = False
            self._end_if_withheld()
        return self.touch()

    def backward(self) -> Scale | None:
        """A gradient arrived; returns its scale, or None if it is not to be looked at."""
        if not self._is_on:
            return None
        this = backward_pass()
        if this != self._pass:
            self._end_if_withheld()
            self._pass = this
            self._mark, self._is_marked = self._loss.mark(), True
            self._was_differentiated, self._just_stepped = True, False
            if self.is_watching:
                self._scale = self._loss.read()
        return self._scale if self.touch() else None

    def stepped(self) -> None:
        """The optimizer has stepped."""
        self._end(True)

    def next_step(self) -> None:
        """The iteration is over."""
        if self._just_stepped:
            self._just_stepped = False
        else:
            self._end(False)

    def close(self) -> None:
        """End the last step, if anything happened in it or there was no other, and stop."""
        if self._has_begun or (self.step == self._first and self.is_watching):
            self._end(False)
        self.switch(False)

    def _end_if_withheld(self) -> None:
        if self._is_marked and self._loss.was_withheld(self._mark):
            self._end(False)

    def _end(self, by_optimizer: bool) -> None:
        if self._has_begun or self.is_watching:
            self.touch()
            self._on_end(by_optimizer)
        self.step += 1
        self._just_stepped = by_optimizer
        self._reset()
