"""A study: several recipes, several seeds, one thing changed. Fixed before the first run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from floatscope.errors import RecipeError, unknown
from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.run.plan import RunPlan, TrainConfig
from floatscope.lab.study.question import Question
from floatscope.lab.study.stress import Stress, under
from floatscope.recipes import CATALOGUE, Recipe

FOUR_PRECISIONS = ("fp32", "bf16-mixed", "fp16-mixed", "fp16-mixed-unscaled")
BASELINE = "fp32"
WORLD = "world"
MIN_VOCAB, MAX_VOCAB = 256, 65_536


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """Everything that determines the runs of a study, and what they are to decide."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # unknown keys are errors

    name: str
    recipes: tuple[str, ...] = FOUR_PRECISIONS
    """Names, of the catalogue or of `own_recipes`."""
    own_recipes: tuple[Recipe, ...] = ()
    """The whole definitions of those that are not the catalogue's."""
    seeds: tuple[int, ...] = (1337, 1338, 1339)
    ulp_reruns: int = 3
    """Repetitions of the first seed in fp32 with every initial weight moved by at most one ulp:
    how far runs part that differ in nothing that matters."""
    repeats: int = 0
    """Repetitions of the first seed in fp32 with nothing changed: whether runs are deterministic,
    and how far they part if not."""
    text: str = WORLD
    """"world" for the built-in one, or the path of a UTF-8 file."""
    threads: int = 1
    """Threads a run; small models are fastest with one run a core."""
    model: GPTConfig = field(default_factory=GPTConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    question: Question | None = None
    """What the study is to decide; None: nothing, and there is no verdict."""
    stress: Stress | None = None
    """Learning rates and remedies under which every run is made; None: those of `train`."""

    def __post_init__(self) -> None:
        for name in ("recipes", "seeds"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"{name} is empty; name at least one")
            if len(set(values)) < len(values):
                raise ValueError(f"{name} names one twice: {', '.join(map(str, values))}")
        self._check_own_recipes()
        for name in self.recipes:
            self.recipe_called(name)
        if any(not 0 <= seed < 2**63 for seed in self.seeds):
            raise ValueError("seeds must lie between 0 and 2**63 - 1")
        for name in ("ulp_reruns", "repeats"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {self.threads}")
        if not MIN_VOCAB <= self.model.vocab_size <= MAX_VOCAB:
            raise ValueError(
                f"model.vocab_size must lie between {MIN_VOCAB} (one for each byte) and "
                f"{MAX_VOCAB}, not {self.model.vocab_size}"
            )
        self._check_question()

    def _check_own_recipes(self) -> None:
        names = [recipe.name for recipe in self.own_recipes]
        for name in names:
            if name in CATALOGUE or names.count(name) > 1:
                raise ValueError(f"own_recipes: {name} is another recipe's name; give it its own")
            if name not in self.recipes:
                raise ValueError(f"own_recipes: {name} is not among the recipes")

    def recipe_called(self, name: str) -> Recipe:
        """The recipe of the catalogue or of the plan's own.

        Raises:
            RecipeError: neither has one of this name.
        """
        every = {**CATALOGUE, **{recipe.name: recipe for recipe in self.own_recipes}}
        if name not in every:
            raise RecipeError(unknown("recipe", str(name), [*every, "FILE.toml"]))
        return every[name]

    def _check_question(self) -> None:
        question = self.question
        if question is None:
            return
        if self.stress is not None:
            raise ValueError("a study has a question or is a stress study, not both")
        for name in question.arms:
            if name not in self.recipes:
                raise ValueError(
                    f"question.arms names {name!r}, which is not among the recipes "
                    f"{', '.join(self.recipes)}"
                )
        if question.n is not None and question.n != len(self.seeds):
            raise ValueError(
                f"question.n = {question.n}, and seeds names {len(self.seeds)}: one a pair. Change "
                "both, before the first run"
            )

    def resolved(self) -> StudyPlan:
        """The plan with the arms and the number of pairs of its question spelled out."""
        question = self.question
        if question is None:
            return self
        others = tuple(name for name in self.recipes if name != question.baseline)
        stated = replace(question, arms=question.arms or others, n=len(self.seeds))
        return replace(self, question=stated)

    def runs(self) -> list[RunPlan]:
        """Every run, in the order in which they start.

        Seed by seed, all recipes of a seed together, so that what changes with time changes for
        all arms. In a stress study the same within each remedy and learning rate.
        """
        if self.stress is not None:
            return [
                replace(self._run(name, seed), model=model, train=train, watch=True)
                for remedy in self.stress.remedies
                for peak_lr in self.stress.peak_lrs
                for model, train in [under(remedy, peak_lr, self.model, self.train)]
                for seed in self.seeds
                for name in self.recipes
            ]
        plans: list[RunPlan] = []
        for seed in self.seeds:
            plans += [self._run(name, seed) for name in self.recipes]
            if seed == self.seeds[0] and BASELINE in self.recipes:
                plain = self._run(BASELINE, seed)
                plans += [replace(plain, ulp_rerun=k + 1) for k in range(self.ulp_reruns)]
                plans += [replace(plain, repeat=k + 1) for k in range(self.repeats)]
        return plans

    def _run(self, name: str, seed: int) -> RunPlan:
        return RunPlan(
            recipe=self.recipe_called(name),
            seed=seed,
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

    def asked_sha256(self, data_sha256: str) -> str | None:
        """Of all runs, the data and the question; None where nothing is asked."""
        question = self.resolved().question
        if question is None:
            return None
        content = [self.sha256(data_sha256), asdict(question)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
