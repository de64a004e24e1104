"""Run a study: every run in a process of its own, as many at once as there are cores for.

The study starts workers, watches their journals, and shows how far they are. It can be stopped at
any moment; the same command goes on from each run's last checkpoint.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from floatscope.errors import StudyError
from floatscope.files import owned
from floatscope.lab.run.plan import RunPlan
from floatscope.lab.run.records import JOURNAL
from floatscope.lab.run.worker import Request, command, worker_environment
from floatscope.lab.study.folder import StudyFolder, create, find
from floatscope.lab.study.own import try_out
from floatscope.lab.study.plan import WORLD, StudyPlan
from floatscope.lab.study.progress import Display
from floatscope.lab.study.trust import foreseen
from floatscope.lab.text.corpus import Tokens, check_length, encode, read_text
from floatscope.lab.text.world import world_text
from floatscope.recipes import Recipe, check_backend

POLL_SECONDS = 0.25


def prepare_text(plan: StudyPlan) -> tuple[Tokens, Path]:
    """The plan's text, encoded, and the cache file it is in.

    Raises:
        TextError: it cannot be read or is too short for one batch.
    """
    text = world_text() if plan.text == WORLD else read_text(Path(plan.text))
    tokens, cache = encode(text, plan.model.vocab_size)
    check_length(
        text.name,
        len(tokens.train),
        len(tokens.validation),
        plan.train.batch_size,
        plan.model.context,
    )
    return tokens, cache


def execute(
    plan: StudyPlan,
    out: Path,
    *,
    backend: str = "auto",
    jobs: int | None = None,
    reuse: Path | None = None,
    display: Display,
) -> StudyFolder:
    """Run what is missing of `plan` in the folder `out`.

    Args:
        plan: the study.
        out: its folder; created, or resumed if it holds the same plan.
        backend: "auto", "native" or "emulated", for the 16-bit products.
        jobs: runs at a time; None takes as many as cores and memory allow.
        reuse: another study's folder, from which finished runs are taken over.
        display: shows progress.

    Raises:
        RecipeError: an unknown backend, or a recipe of the plan's own that cannot train its model.
        StudyError: the plan needs more memory than there is, `out` holds another plan, or a run
            failed; all other runs are kept.
        TextError: the text cannot be used.
        FloatscopeError: another process works in `out`.
    """
    check_backend(backend)
    check_memory(plan)
    with display.task("reading the text"):
        tokens, cache = prepare_text(plan)
    found = find(out, plan, tokens.sha256)  # refuses before it touches anything
    if pending := _pending(plan, found):
        with display.task(f"trying {', '.join(recipe.name for recipe in pending)}"):
            try_out(pending, plan, backend)
    with owned(out, "the study in"):
        folder = find(out, plan, tokens.sha256) or create(out, plan, tokens.sha256)
        if reuse is not None:
            display.note(f"{folder.reuse(reuse)} finished runs taken over from {reuse}")
            if folder.has_other_plans():
                display.note(
                    "note: they were started under another plan, so there will be no verdict"
                )
        waiting = [run for run in plan.runs() if not folder.is_finished(run)]
        jobs = jobs or default_jobs(plan)
        display.begin(total=len(plan.runs()), finished=len(plan.runs()) - len(waiting), jobs=jobs)
        for line in foreseen(plan):
            display.note(f"note: {line}")
        with _workers() as running:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_start(waiting.pop(0), folder, cache, backend))
                time.sleep(POLL_SECONDS)
                for worker in list(running):
                    display.progress(worker.run, worker.steps_done())
                    if worker.process.poll() is not None:
                        running.remove(worker)
                        worker.require_success()
                        display.finished(worker.run)
    return folder


def _pending(plan: StudyPlan, folder: StudyFolder | None) -> list[Recipe]:
    """Recipes of the plan's own that have runs before them."""
    runs = plan.runs() if plan.own_recipes else []
    waiting = {run.recipe.name for run in runs if folder is None or not folder.is_finished(run)}
    return [recipe for recipe in plan.own_recipes if recipe.name in waiting]


def check_memory(plan: StudyPlan) -> None:
    """Refuse a plan whose runs cannot fit into this machine.

    Raises:
        StudyError: one run alone needs more than all of the machine's memory.
    """
    import psutil

    needed, there = estimated_bytes(plan), psutil.virtual_memory().total
    if needed > there:
        raise StudyError(
            f"one run of this study needs about {needed / 2**30:,.0f} GiB of memory, and this "
            f"machine has {there / 2**30:.0f} GiB. Make model.width, model.context, "
            "model.vocab_size or train.batch_size smaller."
        )


def default_jobs(plan: StudyPlan) -> int:
    """Runs at a time: one for each `threads` cores, and no more than fit into free memory."""
    import psutil

    cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else 0
    cores = cores or psutil.cpu_count() or 1
    fitting = psutil.virtual_memory().available // estimated_bytes(plan)
    return max(1, min(cores // plan.threads, fitting))


def estimated_bytes(plan: StudyPlan) -> int:
    """A generous estimate of one run's memory.

    It adds up the interpreter, the states, the saved activations and twice the logits.
    """
    model, tokens = plan.model, plan.train.batch_size * plan.model.context
    saved = model.num_layers * (12 * model.width + 4 * model.ff_width)
    if model.attention == "materialized":
        saved += model.num_layers * model.num_heads * model.context
    parameters = model.vocab_size * model.width + model.num_layers * (
        4 * model.width**2 + 3 * model.width * model.ff_width
    )
    return (512 << 20) + 16 * parameters + 5 * tokens * (saved + 3 * model.vocab_size)


@dataclass
class _Worker:
    run: RunPlan
    folder: Path
    process: subprocess.Popen[bytes]
    counted_bytes: int = 0
    counted_steps: int = 0

    def steps_done(self) -> int:
        """Steps in the run's journal so far."""
        try:
            with open(self.folder / JOURNAL, "rb") as file:
                if file.seek(0, os.SEEK_END) < self.counted_bytes:  # cut back to a checkpoint
                    self.counted_bytes = self.counted_steps = 0
                file.seek(self.counted_bytes)
                new = file.read()
        except FileNotFoundError:
            return self.counted_steps
        self.counted_bytes += len(new)
        self.counted_steps += new.count(b'"table": "metrics"')
        return self.counted_steps

    def require_success(self) -> None:
        if self.process.returncode:
            assert self.process.stderr is not None
            message = self.process.stderr.read().decode(errors="replace").strip()
            raise StudyError(
                f"the run {self.run.label} stopped: {message or self.process.returncode}\n"
                "All finished runs and checkpoints are kept; the same command goes on from there."
            )


@contextmanager
def _workers() -> Iterator[list[_Worker]]:
    """A list of workers that are ended when the block is left, however it is left."""
    running: list[_Worker] = []
    try:
        yield running
    finally:
        for worker in running:
            worker.process.kill()
        for worker in running:
            worker.process.wait()


def _start(run: RunPlan, folder: StudyFolder, cache: Path, backend: str) -> _Worker:
    run_folder = folder.run_folder(run)
    request = Request(
        plan=run.to_dict(),
        tokens=str(cache),
        folder=str(run_folder),
        backend=backend,
        study_sha256=folder.asked_sha256,
    )
    process = subprocess.Popen(
        command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=worker_environment(run.threads),
        start_new_session=True,  # Ctrl-C reaches the study alone, which ends its workers
    )
    assert process.stdin is not None
    process.stdin.write(request.to_line())
    process.stdin.flush()
    return _Worker(run, run_folder, process)
