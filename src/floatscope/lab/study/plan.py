"""A study: several recipes, several seeds, one thing changed. Fixed before the first run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.run.plan import RunPlan, TrainConfig
from floatscope.recipes import recipe

FOUR_PRECISIONS = ("fp32", "bf16-mixed", "fp16-mixed", "fp16-mixed-unscaled")
BASELINE = "fp32"
WORLD = "world"
MIN_VOCAB, MAX_VOCAB = 256, 65_536


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """Everything that determines the runs of a study."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # unknown keys are errors

    name: str
    recipes: tuple[str, ...] = FOUR_PRECISIONS
    seeds: tuple[int, ...] = (1337, 1338, 1339)
    ulp_reruns: int = 3
    """Repetitions of the first seed in fp32 with every initial weight moved by at most one ulp:
    how far runs part that differ in nothing that matters."""
    text: str = WORLD
    """"world" for the built-in one, or the path of a UTF-8 file."""
    threads: int = 1
    """Threads a run; small models are fastest with one run a core."""
    model: GPTConfig = field(default_factory=GPTConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        for name in ("recipes", "seeds"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"{name} is empty; name at least one")
            if len(set(values)) < len(values):
                raise ValueError(f"{name} names one twice: {', '.join(map(str, values))}")
        for name in self.recipes:
            recipe(name)
        if any(not 0 <= seed < 2**63 for seed in self.seeds):
            raise ValueError("seeds must lie between 0 and 2**63 - 1")
        if self.ulp_reruns < 0:
            raise ValueError(f"ulp_reruns must be 0 or more, not {self.ulp_reruns}")
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {self.threads}")
        if not MIN_VOCAB <= self.model.vocab_size <= MAX_VOCAB:
            raise ValueError(
                f"model.vocab_size must lie between {MIN_VOCAB} (one for each byte) and "
                f"{MAX_VOCAB}, not {self.model.vocab_size}"
            )

    def runs(self) -> list[RunPlan]:
        """Every run, in the order in which they start.

        Seed by seed, all recipes of a seed together, so that what changes with time changes for
        all arms.
        """
        plans: list[RunPlan] = []
        for seed in self.seeds:
            plans += [self._run(name, seed, 0) for name in self.recipes]
            if seed == self.seeds[0] and BASELINE in self.recipes:
                plans += [self._run(BASELINE, seed, k + 1) for k in range(self.ulp_reruns)]
        return plans

    def _run(self, name: str, seed: int, ulp_rerun: int) -> RunPlan:
        return RunPlan(
            recipe=recipe(name),
            seed=seed,
            ulp_rerun=ulp_rerun,
            model=self.model,
            train=self.train,
            threads=self.threads,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, complete."""
        return json.loads(json.dumps(asdict(self)))

    def sha256(self, data_sha256: str) -> str:
        """Of all runs and the data. The study's name and the text's path do not count."""
        runs = [plan.run_id(data_sha256) for plan in self.runs()]
        return hashlib.sha256(json.dumps(runs).encode()).hexdigest()
