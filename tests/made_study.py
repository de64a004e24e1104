"""Studies whose records are made up, quickly, to see what a page makes of them; nothing trains."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from floatscope.lab.run import records
from floatscope.lab.run.environment import environment
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.study.folder import StudyFolder, create
from floatscope.lab.study.plan import StudyPlan
from floatscope.spectrum.spectrum import Spectrum
from tests import tiny

DATA = "0" * 64
RECIPES = ("fp32", "bf16-mixed", "fp16-mixed", "fp16-mixed-unscaled")


def made_study(
    path: Path,
    *,
    recipes: Sequence[str] = RECIPES,
    seeds: Sequence[int] = (1, 2, 3),
    ulp_reruns: int = 1,
    finished: int | None = None,
    diverged: Sequence[str] = (),
    name: str = "made",
    text: str = "world",
) -> StudyFolder:
    """A study folder with the records of its first `finished` runs; of all if None."""
    plan = StudyPlan(name=name, recipes=tuple(recipes), seeds=tuple(seeds), text=text,
                     ulp_reruns=ulp_reruns, model=tiny.MODEL, train=tiny.TRAIN)  # fmt: skip
    folder = create(path, plan, DATA)
    for run in plan.runs()[:finished]:
        finish(folder, run, is_diverged=run.recipe.name in diverged)
    return folder


def finish(
    folder: StudyFolder,
    run: RunPlan,
    *,
    is_diverged: bool = False,
    gradients: dict[int, dict[str, Spectrum]] | None = None,
    more: Sequence[records.Record] = (),
) -> None:
    """Write the records of a run; `gradients` are spectra by step and parameter."""
    manifest = records.Manifest(
        run_id=run.run_id(folder.data_sha256),
        label=run.label,
        plan=run.to_dict(),
        data_sha256=folder.data_sha256,
        num_parameters=12_345,
        tokens_per_step=64,
        validation_chars_per_token=1.0,
        exit_reason="diverged" if is_diverged else "finished",
        steps_done=run.train.steps,
        peak_rss_bytes=1 << 28,
        ended="2026-11-30T00:00:00Z",
        sessions=(
            records.Session(from_step=0, started="2026-11-30T00:00:00Z",
                            environment=environment("native")),
        ),
    )  # fmt: skip
    spectra = [
        records.gradient(step, name, spectrum)
        for step, by_name in (gradients or {}).items()
        for name, spectrum in by_name.items()
    ]
    records.finish(folder.run_folder(run), [*rows(run, is_diverged), *spectra, *more], manifest)


def rows(run: RunPlan, is_diverged: bool = False) -> list[dict[str, Any]]:
    """Steps, evaluations and events of a run, the same for the same run."""
    draw = random.Random(run.label)
    steps = run.train.steps
    made: list[dict[str, Any]] = []
    is_scaled = run.recipe.loss_scaling is not None
    for step in range(steps):
        loss = 5 - 2 * step / steps + draw.gauss(0, 0.05)
        lost = is_diverged and step > steps // 2
        skipped = is_scaled and step == 3
        made.append({
            "table": "metrics", "step": step, "loss": math.nan if lost else loss, "lr": 1e-3,
            "grad_norm": math.inf if skipped else 1.0,
            "loss_scale": 65536.0 / (2 if step > 3 else 1) if is_scaled else 1.0,
            "skipped": skipped, "num_nonfinite": 5 * skipped,
            "zero_fraction": 0.01 * ("unscaled" in run.label), "zero_fraction_absent_rows": 0.2,
            "zero_fraction_elsewhere": 0.001, "num_absent_rows": 3, "seconds": 0.1, "load": 0.5,
        })  # fmt: skip
        if skipped:
            made.append(records.event(step, "skipped", "5 elements not finite"))
    for step in range(0, steps + 1, run.train.eval_every):
        lost = is_diverged and step > steps // 2
        loss = math.nan if lost else 5 - 2 * step / steps + draw.gauss(0, 0.02)
        made.append(records.evaluation(step, loss, seconds=0.1))
    return made
