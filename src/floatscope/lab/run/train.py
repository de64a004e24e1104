"""One run, from its first step or its last checkpoint to its records.

A run's folder holds, while it is alive, `journal.jsonl` and `checkpoint.safetensors`; when it has
ended, Parquet files and `manifest.json` (see `records.py`). It may be killed at any moment.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from floatscope.files import owned, write_text_atomically
from floatscope.lab.model import GPT, make_gpt
from floatscope.lab.run import checkpoint, journal, records
from floatscope.lab.run.batches import Batch, training_batch, validation_batches
from floatscope.lab.run.environment import Environment, environment, load_average, peak_rss_bytes
from floatscope.lab.run.observe import ZeroGradients, gradient_spectra, zero_gradients
from floatscope.lab.run.plan import RunPlan, TrainConfig
from floatscope.lab.run.records import JOURNAL
from floatscope.lab.run.stability import Watch
from floatscope.lab.text.corpus import Tokens
from floatscope.recipes.loss_scaling import LossScaleCollapse
from floatscope.recipes.train_step import StepResult, TrainStep
from floatscope.spectrum.spectrum import Spectrum

CHECKPOINT = "checkpoint.safetensors"
SESSIONS = "sessions.jsonl"
WEIGHTS = "weights.safetensors"


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves gains alone.

    It updates one tensor at a time, so that its temporaries stay small.
    """
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    gains = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": gains, "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.peak_lr, betas=betas, foreach=False)


def initial_model(plan: RunPlan) -> GPT:
    """The model of `plan` before its first step.

    A one-ulp rerun moves every weight to its lower neighbor, its upper neighbor or not at all,
    each with probability one third.
    """
    model = make_gpt(plan.model, plan.seed)
    if plan.ulp_rerun:
        generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + plan.ulp_rerun)
        with torch.no_grad():
            for parameter in model.parameters():
                move = torch.randint(-1, 2, parameter.shape, generator=generator)
                toward = torch.where(move > 0, torch.inf, -torch.inf)
                moved = torch.nextafter(parameter, toward)
                parameter.copy_(torch.where(move == 0, parameter, moved))
    return model


def batch_loss(model: nn.Module, batch: Batch, z_loss: float = 0.0) -> Tensor:
    """Mean cross-entropy in nats a token, and `z_loss` times the mean squared log-normalizer.

    The latter keeps the outputs from drifting (Chowdhery et al. 2022, section 5).
    """
    logits_BTV = model(batch.inputs_BT)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets_BT.flatten())
    if z_loss:
        loss = loss + z_loss * logits_BTV.float().logsumexp(-1).square().mean()
    return loss


class Run:
    """A run under way.

    Args:
        plan: what to train.
        tokens: on what.
        folder: the run's own.
        backend: "auto", "native" or "emulated".
        study_sha256: of the study's plan, for the record.
    """

    def __init__(
        self,
        plan: RunPlan,
        tokens: Tokens,
        folder: Path,
        backend: str = "auto",
        study_sha256: str | None = None,
    ) -> None:
        torch.set_num_threads(plan.threads)
        torch.use_deterministic_algorithms(True)
        self.plan, self.tokens, self.folder = plan, tokens, folder
        self.run_id, self.study_sha256 = plan.run_id(tokens.sha256), study_sha256
        self.model = initial_model(plan)
        self.optimizer = make_optimizer(self.model, plan.train)
        self.train_step = TrainStep(
            self.model,
            self.optimizer,
            plan.recipe,
            clip_norm=plan.train.clip_norm,
            backend=backend,
        )
        self.watch = Watch(self.model, self.optimizer) if plan.watch else None
        self.validation = list(
            validation_batches(
                tokens.validation,
                num_windows=plan.train.eval_windows,
                size=plan.train.batch_size,
                context=plan.model.context,
            )
        )

    def execute(self) -> None:
        """Train from where the folder's checkpoint stands, and leave finished records.

        Raises:
            StudyError: a damaged or foreign checkpoint or journal.
            DiskError: the disk is full.
            FloatscopeError: another process works in this folder.
        """
        with owned(self.folder, "the run"):
            if records.is_finished(self.folder):
                return
            step, self.journal = self._resume()
            with closing(self.journal):
                self._note_session(step)
                step, exit_reason = self._train_from(step)
                self.journal.sync()
            self._finish(step, exit_reason)

    def _train_from(self, step: int) -> tuple[int, str]:
        """Train from `step` to the end; returns the number of steps done and the exit reason."""
        config = self.plan.train
        if step == 0:
            self._evaluate(0)
        while step < config.steps:
            exit_reason = self._one_step(step)
            step += 1
            if exit_reason != "finished":
                return step, exit_reason  # without a checkpoint: a resumed run must end here again
            if self._is_evaluated_after(step - 1):
                self._evaluate(step)
                self._checkpoint(step)
        return step, "finished"

    def _is_evaluated_after(self, step: int) -> bool:
        done, config = step + 1, self.plan.train
        return done % config.eval_every == 0 or done == config.steps

    def _resume(self) -> tuple[int, journal.Journal]:
        path = self.folder / JOURNAL
        if not (self.folder / CHECKPOINT).exists():
            return 0, journal.Journal(path, keep=0)
        progress = checkpoint.load(
            self.folder / CHECKPOINT, self.run_id, self.model, self.optimizer, self.train_step
        )
        journal.check(path, progress.journal_bytes, progress.journal_sha256)
        return progress.step, journal.Journal(path, keep=progress.journal_bytes)

    def _one_step(self, step: int) -> str:
        """Train one step and record it; returns the exit reason, "finished" while all is well."""
        config = self.plan.train
        started = time.perf_counter()
        lr = self._set_lr(step)
        batch = training_batch(
            self.tokens.train,
            seed=self.plan.seed,
            step=step,
            size=config.batch_size,
            context=self.plan.model.context,
        )
        seen: list[ZeroGradients] = []
        spectra: dict[str, Spectrum] = {}

        def observe(model: nn.Module) -> None:
            seen.append(zero_gradients(model, self.model.embedding.weight, batch))
            if step == 0 or self._is_evaluated_after(step):
                spectra.update(gradient_spectra(model))
            if self.watch is not None:
                self.watch.see_gradients()

        try:
            result = self.train_step(lambda model: batch_loss(model, batch, config.z_loss), observe)
        except LossScaleCollapse as error:
            self.journal.append(records.event(step, "loss_scale_collapsed", str(error)))
            return "loss scale collapsed"
        self.journal.append(
            records.step(
                step,
                lr,
                result,
                seen[0],
                seconds=time.perf_counter() - started,
                load=load_average(),
            )
        )
        for name, spectrum in spectra.items():
            self.journal.append(records.gradient(step, name, spectrum))
        self._note_optional(step, result)
        return self._note_events(step, result)

    def _set_lr(self, step: int) -> float:
        lr = self.plan.train.lr_at(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _note_optional(self, step: int, result: StepResult) -> None:
        """What only some runs record at each step."""
        if self.watch is not None:
            signs = self.watch.signs(result.grad_norm, self.plan.train.clip_norm)
            self.journal.append(records.stability(step, signs))
        if result.stored is not None:
            self.journal.append(records.storage(step, result.stored))

    def _note_events(self, step: int, result: StepResult) -> str:
        if result.skipped:
            why = f"{result.num_nonfinite} elements not finite at scale {result.loss_scale:g}"
            self.journal.append(records.event(step, "skipped", why))
        scale = self.train_step.loss_scale
        if scale > result.loss_scale:
            self.journal.append(records.event(step, "scale_grew", f"to {scale:g}"))
        if not result.finite_weights:
            self.journal.append(records.event(step, "diverged", "weights became non-finite"))
            return "diverged"
        return "finished"

    def _evaluate(self, step: int) -> None:
        started = time.perf_counter()
        weighted = [
            self.train_step.evaluate(lambda model, b=batch: batch_loss(model, b))
            * len(batch.inputs_BT)
            for batch in self.validation
        ]
        loss = sum(weighted) / sum(len(batch.inputs_BT) for batch in self.validation)
        self.journal.append(records.evaluation(step, loss, seconds=time.perf_counter() - started))

    def _checkpoint(self, step: int) -> None:
        length, sha256 = self.journal.sync()
        progress = checkpoint.Progress(
            run_id=self.run_id, step=step, journal_bytes=length, journal_sha256=sha256
        )
        checkpoint.save(
            self.folder / CHECKPOINT, progress, self.model, self.optimizer, self.train_step
        )

    def _note_session(self, step: int) -> None:
        """Append this process to the run's sessions: a resumed run may have changed machines."""
        session = records.Session(
            from_step=step,
            started=_now(),
            environment=environment(self.train_step.backend),
            study_sha256=self.study_sha256,
        )
        lines = [json.dumps(asdict(s)) for s in (*self._sessions(), session)]
        write_text_atomically(self.folder / SESSIONS, "".join(line + "\n" for line in lines))

    def _sessions(self) -> tuple[records.Session, ...]:
        path = self.folder / SESSIONS
        lines = path.read_text().splitlines() if path.exists() else []
        return tuple(
            records.Session(**{**s, "environment": Environment(**s["environment"])})
            for s in map(json.loads, lines)
        )

    def _finish(self, step: int, exit_reason: str) -> None:
        checkpoint.save_weights(self.folder / WEIGHTS, self.model, {"run_id": self.run_id})
        manifest = records.Manifest(
            run_id=self.run_id,
            label=self.plan.label,
            plan=self.plan.to_dict(),
            data_sha256=self.tokens.sha256,
            num_parameters=sum(p.numel() for p in self.model.parameters()),
            tokens_per_step=self.plan.train.batch_size * self.plan.model.context,
            validation_chars_per_token=self.tokens.validation_chars_per_token,
            exit_reason=exit_reason,
            steps_done=step,
            peak_rss_bytes=peak_rss_bytes(),
            ended=_now(),
            sessions=self._sessions(),
        )
        records.finish(self.folder, journal.read(self.folder / JOURNAL), manifest)
        for name in (JOURNAL, SESSIONS, CHECKPOINT):
            (self.folder / name).unlink(missing_ok=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
