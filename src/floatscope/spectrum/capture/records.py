"""What a capture reports: spectra with their places, and what it could not see, with reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from floatscope.spectrum.predict import Share
from floatscope.spectrum.spectrum import Spectrum

Role = Literal["weight", "activation", "activation_gradient", "weight_gradient", "update"]

ROLES: tuple[Role, ...] = (
    "weight", "activation", "activation_gradient", "weight_gradient", "update"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Update:
    """What an optimizer's step did to a parameter, in numbers of elements.

    With before and after, the parameter at both ends of `optimizer.step`, u = after - before.
    """

    moved: int
    """u is not 0; NaN counts."""
    stuck: Share
    """u = 0 although the gradient, as the optimizer found it, was not; of elements with such
    gradients."""
    swallowed: dict[str, Share]
    """By storage format: round(round(before) + u) = round(before), to nearest, ties to even; of
    the elements that moved. A weight that the format rounds to infinity stays infinite, and
    counts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """The spectrum of one tensor in one step."""

    step: int
    module: str
    """Path of the module; "" is the model itself."""
    role: Role
    name: str
    """Of the parameter; or "output", "output[0]", "output['logits']", "output.logits"."""
    spectrum: Spectrum
    """Gradients are unscaled."""
    calls: int
    """How many outputs, or gradients of outputs, were merged; of a weight gradient, how many
    backward passes accumulated into it."""
    aliases: tuple[str, ...] = ()
    """Further full names of a tied parameter or a shared module."""
    update: Update | None = None
    """Numbers of an update, for that role."""

    def labels(self, with_update: bool = False) -> dict[str, str | int]:
        """What the record can be found by, as plain values; `with_update`, also its numbers."""
        labels: dict[str, str | int] = {
            "step": self.step,
            "module": self.module,
            "role": self.role,
            "name": self.name,
            "calls": self.calls,
            "aliases": " ".join(self.aliases),
        }
        if with_update and self.update is not None:
            update = self.update
            labels |= {"stuck": update.stuck.count, "stuck_of": update.stuck.of}
            labels |= {"moved": update.moved}
            labels |= {f"swallowed_{form}": s.count for form, s in update.swallowed.items()}
        return labels


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """Something that was to be watched and was not seen."""

    role: Role
    module: str
    """"" for the model, or where it is of no one module."""
    name: str
    """Of a parameter or an output; may be empty."""
    reason: str
    steps: tuple[int, ...]
    """The measured steps in which this was so."""


class Notes:
    """Collects what was not seen."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Role, str, str, str], list[int]] = {}

    def add(self, step: int, role: Role, module: str, name: str, reason: str) -> None:
        steps = self._steps.setdefault((role, module, name, reason), [])
        if step not in steps[-1:]:
            steps.append(step)

    def all(self) -> list[Unseen]:
        return [
            Unseen(role=role, module=module, name=name, reason=reason, steps=tuple(steps))
            for (role, module, name, reason), steps in self._steps.items()
        ]


def select(
    records: Iterable[Record],
    *,
    step: int | None = None,
    role: Role | None = None,
    pattern: str = "*",
) -> Iterator[Record]:
    """Records of one step, of one role, of modules whose path matches; None is any."""
    for record in records:
        if step is not None and record.step != step:
            continue
        if role is not None and record.role != role:
            continue
        if fnmatchcase(record.module, pattern):
            yield record
