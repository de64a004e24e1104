"""Run demonstrations by number: load what they need, and hand it to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from floatscope.lab.watch import Watch, note_on_stderr, unwatched

if TYPE_CHECKING:
    from torch import Tensor

    from floatscope.lab.base_model import CharGPT
    from floatscope.lab.lecture.records import MasterWeights

NEED_BASE = (3, 4, 5)


@dataclass(frozen=True, kw_only=True)
class Lecture:
    """What the demonstrations share, made when first needed."""

    formats: Sequence[str] = ()
    """Of demonstration 1; its own three if none is named."""
    more: bool = False
    """Whether demonstration 5 trains its further arms too."""
    watch: Watch = unwatched
    note: Callable[[str], None] = note_on_stderr

    def prepare(self, number: int) -> None:
        """Load what a demonstration needs, or train it: so that its own time is its own."""
        if number in NEED_BASE:
            _ = self._base

    def demonstration(self, number: int) -> Any:
        """Run one; its record (see `records.KINDS`)."""
        return (self._formats, self._swallowed, self._gradients, self._scaling, self._master)[
            number - 1
        ]()

    def _formats(self) -> Any:
        from floatscope.lab.lecture.demo1_formats import NAMES, formats

        return formats(self.formats or NAMES)

    def _swallowed(self) -> Any:
        from floatscope.lab.lecture.demo2_swallowed import swallowed

        return swallowed()

    def _gradients(self) -> Any:
        from floatscope.lab.base_model import single_threaded
        from floatscope.lab.lecture.demo3_gradients import gradients

        base, bits, data = self._base
        with single_threaded():
            return gradients(base, bits, data, watch=self.watch)

    def _scaling(self) -> Any:
        from floatscope.lab.base_model import single_threaded
        from floatscope.lab.lecture.demo4_scaling import scaling

        base, _, data = self._base
        with single_threaded():
            return scaling(base, data, watch=self.watch)

    def _master(self) -> Any:
        base, _, _ = self._base
        return master_weights(base, more=self.more, watch=self.watch)

    @cached_property
    def _base(self) -> tuple[CharGPT, float, Tensor]:
        import torch

        from floatscope.lab.base_model import CharTokenizer, build_world, load_or_train_base_model

        world, tok = build_world(), CharTokenizer()
        base, bits = load_or_train_base_model(world, tok, watch=self.watch, note=self.note)
        return base, bits, torch.tensor(tok.encode(world.train_text()))


def master_weights(
    base: CharGPT, *, more: bool = False, steps: int | None = None, watch: Watch = unwatched
) -> MasterWeights:
    """Demonstration 5: what is swallowed on paper, what trainings really lose and pay.

    Args:
        base: the base model.
        more: whether to train the further arms too.
        steps: of each training, if not as many as the demonstration says.
        watch: shows how far the trainings are.
    """
    import torch

    from floatscope.lab.lecture import demo5_master as demo
    from floatscope.lab.lecture.decay import decay
    from floatscope.lab.lecture.parallel import Request, trained_apart
    from floatscope.lab.lecture.records import MasterWeights

    steps = steps or demo.STEPS
    requests = [
        Request(arm=arm.name, beta2=arm.beta2, seed=seed, steps=steps)
        for seed in demo.SEEDS
        for arm in (*demo.ARMS, *(demo.MORE if more else ()))
    ]
    weights = torch.cat([p.detach().flatten() for p in base.parameters()])
    return MasterWeights(
        median_weight=weights.abs().median().item(),
        unmoved=tuple(demo.unmoved(base, u, f) for u in demo.UPDATES for f in ("bf16", "fp16")),
        steps=steps,
        trainings=trained_apart(requests, watch),
        decay=decay() if more else (),
    )
