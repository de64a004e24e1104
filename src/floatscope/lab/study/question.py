"""What a study is to decide: claim, margin, comparison and stopping rule, stated before its runs.

A verdict's error rates hold only if these were fixed before the first run. So they are part of the
study's plan, and every run records the hash of the plan that it was started under.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

Claim = Literal["not worse", "equivalent", "worse"]
Method = Literal["paired", "pooled", "welch", "dunnett"]


@dataclass(frozen=True, kw_only=True)
class Margin:
    """The largest difference in loss that is still acceptable, stated in one of three ways."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # unknown keys are errors

    compute: float | None = None
    """φ, a share of the training: what φ more steps would gain, φ · T · |dL/dstep| at the end."""
    absolute: float | None = None
    """In nats a token."""
    relative: float | None = None
    """A share of the baseline's mean loss."""

    def __post_init__(self) -> None:
        stated = {k: v for k, v in vars(self).items() if v is not None}
        if len(stated) != 1:
            raise ValueError(
                "question.margin must be stated in one way: { compute = 0.02 }, which is what 2 % "
                "more training would gain, { absolute = 0.01 } or { relative = 0.0025 }"
            )
        ((name, value),) = stated.items()
        most = math.inf if name == "absolute" else 1
        if not 0 < value < most:
            raise ValueError(f"question.margin.{name} must lie between 0 and {most}, not {value}")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is claimed of each arm, and by which rule the runs decide."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    text: str
    """In words, for people."""
    margin: Margin
    claim: Claim = "not worse"
    """What each arm is held to: not worse by the margin, equivalent within it, or worse."""
    baseline: str = "fp32"
    arms: tuple[str, ...] = ()
    """What is compared with the baseline; in a study's record all other recipes, if empty."""
    n: int | None = None
    """Pairs, one a seed; must be the number of seeds, which it is if absent."""
    method: Method = "paired"
    """"paired" by seed, "pooled" over all arms, "welch", or "dunnett" for all arms at once."""
    several: Literal["holm", "in order"] = "holm"
    """How the claims of several arms are tested together: Holm's correction, or one after the other
    in the order of `arms` up to the first that fails. Dunnett's comparisons need neither."""
    last_evaluations: int = 1
    """The endpoint is the validation loss, averaged over so many last evaluations of a run."""
    stopping: Literal["fixed n"] = "fixed n"
    """When the study ends: with all planned runs. Seeds added until a verdict comes make its error
    rates wrong."""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("question.text is empty; say in words what is to be decided")
        if self.baseline in self.arms:
            raise ValueError(f"question.arms names the baseline {self.baseline}")
        if len(set(self.arms)) < len(self.arms):
            raise ValueError(f"question.arms names one twice: {', '.join(self.arms)}")
        if self.last_evaluations < 1:
            raise ValueError(
                f"question.last_evaluations must be at least 1, not {self.last_evaluations}"
            )
