"""What one run is, before it runs: everything that determines its numbers and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from floatscope.errors import StudyError
from floatscope.lab.gpt_config import LARGEST, GPTConfig
from floatscope.lab.identity import LATER, said
from floatscope.recipes import CATALOGUE, Recipe, recipe


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How every run of a study trains."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # unknown keys are errors

    steps: int = 400
    batch_size: int = 32
    """Sequences a step; each has `model.context` tokens."""
    peak_lr: float = 1e-3
    warmup_steps: int = 40
    """The learning rate rises linearly to its peak over these."""
    final_lr_fraction: float = 0.1
    """The cosine ends at this share of the peak."""
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    """On matrices; the gains of the norms are not decayed."""
    clip_norm: float = 1.0
    """Largest 2-norm of the unscaled gradient."""
    eval_every: int = 50
    """Steps between evaluations, each followed by a checkpoint."""
    eval_windows: int = 128
    """Sequences in the fixed validation set."""
    z_loss: float = field(default=0.0, metadata=LATER)
    """Weight of the mean squared log-normalizer in the training loss; PaLM's is 1e-4."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "eval_every", "eval_windows"):
            if not 1 <= getattr(self, name) <= LARGEST:
                raise ValueError(
                    f"train.{name} must lie between 1 and {LARGEST}, not {getattr(self, name)}"
                )
        for name in ("peak_lr", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"train.{name} must be a positive number, not {getattr(self, name)}"
                )
        for name in ("beta1", "beta2", "weight_decay", "final_lr_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"train.{name} must lie between 0 and 1, not {getattr(self, name)}"
                )
        if not 0 <= self.z_loss < math.inf:
            raise ValueError(f"train.z_loss must be 0 or a positive number, not {self.z_loss}")
        if not 0 <= self.warmup_steps <= self.steps:
            raise ValueError(
                f"train.warmup_steps = {self.warmup_steps} must lie between 0 and "
                f"train.steps = {self.steps}"
            )

    def lr_at(self, step: int) -> float:
        """Learning rate of `step`, counted from 0: linear warm-up, then cosine decay."""
        if step < self.warmup_steps:
            return self.peak_lr * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.steps - 1 - self.warmup_steps)
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return self.peak_lr * (self.final_lr_fraction + (1 - self.final_lr_fraction) * cosine)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """One training: a recipe, a seed, and what all runs of the study share."""

    recipe: Recipe
    seed: int
    """Decides initialization and data order."""
    ulp_rerun: int = 0
    """0: none. k > 0: the k-th repetition with every initial weight moved by at most one ulp."""
    repeat: int = 0
    """0: none. k > 0: the k-th repetition with nothing changed, to see whether it ends the same."""
    watch: bool = False
    """Whether each step also records what announces instability (see `stability.py`)."""
    model: GPTConfig = field(default_factory=GPTConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    threads: int = 1
    """Threads inside operations. Part of the identity: it changes the order of sums."""

    @property
    def label(self) -> str:
        """A name for people, such as "fp16-mixed-s1337", "fp32-s1337-ulp2" or "fp32-s1-lr0.1"."""
        parts = [
            f"{self.recipe.name}-s{self.seed}",
            f"ulp{self.ulp_rerun}" if self.ulp_rerun else "",
            f"rep{self.repeat}" if self.repeat else "",
            f"lr{self.train.peak_lr:g}" if self.watch else "",
            "qknorm" if self.model.qk_norm else "",
            "zloss" if self.train.z_loss else "",
        ]
        return "-".join(filter(None, parts))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; later fields only where they say something (see `identity.py`)."""
        return {
            "recipe": self.recipe.to_dict(),
            "seed": self.seed,
            "ulp_rerun": self.ulp_rerun,
            **({"repeat": self.repeat} if self.repeat else {}),
            **({"watch": True} if self.watch else {}),
            "model": said(self.model),
            "train": said(self.train),
            "threads": self.threads,
        }

    @staticmethod
    def from_dict(plan: dict[str, Any]) -> RunPlan:
        """The plan that `to_dict` wrote; the recipe must still mean the same.

        Raises:
            RecipeError: the recipe is not the catalogue's, and no recipe as this floatscope has
                them.
            StudyError: the recipe of that name now has other constants.
        """
        said = plan["recipe"]
        named = recipe(said["name"]) if said["name"] in CATALOGUE else Recipe.from_dict(said)
        if named.to_dict() != said:
            raise StudyError(
                f"the recipe {named.name} has changed since this run was planned: "
                f"{said} then, {named.to_dict()} now."
            )
        return RunPlan(
            recipe=named,
            seed=plan["seed"],
            ulp_rerun=plan["ulp_rerun"],
            repeat=plan.get("repeat", 0),
            watch=plan.get("watch", False),
            model=GPTConfig(**plan["model"]),
            train=TrainConfig(**plan["train"]),
            threads=plan["threads"],
        )

    def run_id(self, data_sha256: str) -> str:
        """32 hex digits: the hash of plan, data, seed and threads, and of no version."""
        identity = {"plan": self.to_dict(), "data": data_sha256}
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]
