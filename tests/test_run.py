"""One run: bit-identical in two processes, and when killed and resumed at any point."""

from __future__ import annotations

import errno
import itertools
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from floatscope.errors import FloatscopeError, StudyError
from floatscope.files import DiskError, disk_errors, owned
from floatscope.lab.run import journal, records
from floatscope.lab.run.batches import Batch
from floatscope.lab.run.observe import zero_gradients
from floatscope.lab.run.plan import RunPlan, TrainConfig
from floatscope.lab.run.train import CHECKPOINT, JOURNAL, WEIGHTS, Run, initial_model
from floatscope.lab.text.corpus import Tokens, encode, read_text
from floatscope.recipes import recipe
from floatscope.spectrum.spectrum import Spectrum
from tests import tiny

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture
def tokens(text_file: Path) -> tuple[Tokens, Path]:
    return encode(read_text(text_file), tiny.MODEL.vocab_size)


def run_process(folder: Path, cache: Path, where: str = "nowhere", count: int = 1) -> int:
    """A run in a process of its own; returns its exit status, negative for a signal."""
    command = [sys.executable, "-m", "tests.killed_run", str(folder), str(cache), where, str(count)]
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode


def outcome(folder: Path) -> dict[str, Any]:
    """All that a finished run leaves, wall-clock fields apart."""
    run = records.load(folder)
    tables = {name: run.table(name) for name in records.COLUMNS}
    for table in tables.values():
        for column in records.WALL_CLOCK:
            table.pop(column, None)
    kept = ("run_id", "plan", "data_sha256", "exit_reason", "steps_done", "num_parameters")
    tables["gradients"] = run.gradients()
    return {**tables, **{k: getattr(run.manifest, k) for k in kept}}


def same_weights(one: Path, two: Path) -> bool:
    a, b = load_file(one / WEIGHTS), load_file(two / WEIGHTS)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def reference(tmp_path: Path, tokens: tuple[Tokens, Path]) -> Path:
    """The same run, undisturbed, in a process of its own."""
    folder = tmp_path / "undisturbed"
    assert run_process(folder, tokens[1]) == 0
    return folder


def test_two_processes_agree_bit_for_bit(
    tmp_path: Path, tokens: tuple[Tokens, Path], reference: Path
) -> None:
    assert run_process(tmp_path / "again", tokens[1]) == 0
    assert outcome(tmp_path / "again") == outcome(reference)
    assert same_weights(tmp_path / "again", reference)


def test_killed_anywhere_and_resumed_is_bit_identical(
    tmp_path: Path, tokens: tuple[Tokens, Path], reference: Path
) -> None:
    """One run, killed inside a step, a record and a checkpoint, twice each, before it may end."""
    folder = tmp_path / "killed"
    spectra = 2 * len([*initial_model(tiny.plan()).parameters()])  # of steps 0 and 3
    deaths = [
        ("step", 3),
        ("record", 1),
        ("checkpoint", 1),
        ("record", 8 + spectra),
        ("step", 2),
        ("checkpoint", 2),
    ]
    for where, count in deaths:
        assert run_process(folder, tokens[1], where, count) == -signal.SIGKILL, (where, count)
        assert not records.is_finished(folder)
    assert run_process(folder, tokens[1]) == 0
    assert outcome(folder) == outcome(reference)
    assert same_weights(folder, reference)
    sessions = records.load(folder).manifest.sessions
    assert [s.from_step for s in sessions] == [0, 0, 0, 0, 4, 4, 8]
    assert sorted(p.name for p in folder.iterdir() if p.name != ".lock") == [
        "evaluations.parquet", "events.parquet", "gradients.parquet", "manifest.json",
        "metrics.parquet", WEIGHTS,
    ]  # fmt: skip


def test_spectra_of_gradients_are_those_of_the_steps(reference: Path) -> None:
    run = records.load(reference)
    spectra, metrics = run.gradients(), run.table("metrics")
    assert [*spectra] == [0, 3, 7, 11]
    sizes = {name: p.numel() for name, p in initial_model(tiny.plan()).named_parameters()}
    for step, by_name in spectra.items():
        assert {name: s.num_elements for name, s in by_name.items()} == sizes
        whole = Spectrum.sum(by_name.values())
        assert whole.zeros / whole.num_elements == metrics["zero_fraction"][step]
        assert whole.sum_of_squares**0.5 == pytest.approx(metrics["grad_norm"][step], rel=2**-12)


def test_a_finished_run_is_left_alone(tokens: tuple[Tokens, Path], reference: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in reference.iterdir() if p.name != ".lock"}
    assert run_process(reference, tokens[1]) == 0
    assert before == {p: p.stat().st_mtime_ns for p in reference.iterdir() if p.name != ".lock"}


def partly_run(tmp_path: Path, cache: Path) -> Path:
    """A run that was killed after its first checkpoint."""
    folder = tmp_path / "partly"
    assert run_process(folder, cache, "step", 6) == -signal.SIGKILL
    return folder


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / CHECKPOINT).write_bytes((f / CHECKPOINT).read_bytes()[:-9]), "damaged"),
        (lambda f: _flip(f / CHECKPOINT, -5), "its checksum does not match"),
        (lambda f: (f / CHECKPOINT).write_bytes(b""), "damaged"),
        (lambda f: _flip(f / JOURNAL, 40), "is damaged: its beginning is not"),
        (lambda f: (f / JOURNAL).unlink(), "is damaged"),
    ],
)
def test_damage_is_noticed_and_nothing_is_lost(
    tmp_path: Path, tokens: tuple[Tokens, Path], damage: Any, message: str
) -> None:
    folder = partly_run(tmp_path, tokens[1])
    damage(folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}
    with pytest.raises(StudyError, match=message) as error:
        Run(tiny.plan(), tokens[0], folder, "emulated").execute()
    assert str(folder) in str(error.value)
    assert before == {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))


def test_another_runs_checkpoint_is_refused(tmp_path: Path, tokens: tuple[Tokens, Path]) -> None:
    folder = partly_run(tmp_path, tokens[1])
    with pytest.raises(StudyError, match="belongs to another run"):
        Run(tiny.plan(seed=8), tokens[0], folder, "emulated").execute()


def test_two_processes_on_one_run(tmp_path: Path, tokens: tuple[Tokens, Path]) -> None:
    with (
        owned(tmp_path / "run", "the run"),
        pytest.raises(FloatscopeError, match="another process"),
    ):
        Run(tiny.plan(), tokens[0], tmp_path / "run").execute()


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), ValueError("No space left on device (28)")],
)
def test_a_full_disk_is_recognized_in_every_library(error: Exception) -> None:
    with pytest.raises(DiskError, match="disk is full: here could not"), disk_errors(Path("here")):
        raise error


def test_other_errors_of_the_disk_and_of_others() -> None:
    with (
        pytest.raises(DiskError, match="here could not be written: Read-only"),
        disk_errors(Path("here")),
    ):
        raise OSError(errno.EROFS, "Read-only file system")
    with pytest.raises(ValueError, match="mine"), disk_errors(Path("here")):
        raise ValueError("mine")


def test_a_diverged_run_ends_and_is_marked(tmp_path: Path, tokens: tuple[Tokens, Path]) -> None:
    config = TrainConfig(**{**tiny.TRAIN.__dict__, "peak_lr": 1e30, "warmup_steps": 0})
    plan = RunPlan(recipe=recipe("fp16-mixed-unscaled"), seed=1, model=tiny.MODEL, train=config)
    Run(plan, tokens[0], tmp_path / "run", "emulated").execute()
    run = records.load(tmp_path / "run")
    assert run.manifest.exit_reason == "diverged"
    metrics = run.table("metrics")
    assert len(metrics["step"]) == run.manifest.steps_done < config.steps
    assert math.isnan(metrics["loss"][-1])
    assert run.table("events")["event"] == ["diverged"]


def test_skipped_steps_and_scale_changes_are_events(
    tmp_path: Path, tokens: tuple[Tokens, Path]
) -> None:
    from floatscope.recipes import LossScaling, Recipe

    scaling = LossScaling(initial=2.0**34, growth_interval=3)
    rec = Recipe(name="test", products="fp16", loss_scaling=scaling, summary="", source="")
    config = TrainConfig(**{**tiny.TRAIN.__dict__, "steps": 40, "eval_every": 40})
    plan = RunPlan(recipe=rec, seed=1, model=tiny.MODEL, train=config)
    Run(plan, tokens[0], tmp_path / "run", "emulated").execute()
    run = records.load(tmp_path / "run")
    metrics, events = run.table("metrics"), run.table("events")
    skipped = [s for s, was in zip(metrics["step"], metrics["skipped"], strict=True) if was]
    assert skipped
    assert skipped == [
        s for s, e in zip(events["step"], events["event"], strict=True) if e == "skipped"
    ]
    scales = metrics["loss_scale"]
    for step, (now, then) in enumerate(itertools.pairwise(scales)):
        assert then == (now / 2 if metrics["skipped"][step] else then)
        assert then in (now / 2, now, now * 2)
    grown = events["event"].count("scale_grew")
    # One growth may follow the last step's scale; the identity holds for the scale after it.
    assert math.log2(scales[-1] / scales[0]) in {
        grown - len(skipped), grown - len(skipped) + 1, grown - len(skipped) - 1,
    }  # fmt: skip


def test_one_ulp_rerun_moves_every_weight_by_at_most_one_ulp() -> None:
    base = initial_model(tiny.plan())
    plan = RunPlan(recipe=recipe("fp32"), seed=7, ulp_rerun=1, model=tiny.MODEL, train=tiny.TRAIN)
    moved = initial_model(plan)
    up = down = same = 0
    for a, b in zip(base.parameters(), moved.parameters(), strict=True):
        inf = torch.tensor(math.inf)
        is_up, is_down = b == torch.nextafter(a, inf), b == torch.nextafter(a, -inf)
        assert bool((is_up | is_down | (a == b)).all())
        up, down = up + int(is_up.sum()), down + int(is_down.sum())
        same += int((a == b).sum())
    total = up + down + same
    for part in (up, down, same):  # each one third, within five standard deviations
        assert abs(part - total / 3) < 5 * math.sqrt(total * 2 / 9)


def test_run_id_is_of_plan_data_seed_and_threads() -> None:
    plan = tiny.plan()
    assert RunPlan.from_dict(plan.to_dict()) == plan
    ids = {
        plan.run_id("a"),
        plan.run_id("b"),
        tiny.plan(seed=8).run_id("a"),
        tiny.plan("fp32").run_id("a"),
        RunPlan(**{**plan.__dict__, "threads": 2}).run_id("a"),
        RunPlan(**{**plan.__dict__, "ulp_rerun": 1}).run_id("a"),
    }
    assert len(ids) == 6


def test_learning_rate_warms_up_and_decays_to_its_share() -> None:
    config = TrainConfig(steps=100, peak_lr=1.0, warmup_steps=10)
    rates = [config.lr_at(s) for s in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def test_zero_gradients_are_counted_inside_and_outside_absent_rows() -> None:
    model = torch.nn.Embedding(6, 2)
    other = torch.nn.Linear(2, 2, bias=False)
    both = torch.nn.ModuleList([model, other])
    model.weight.grad = torch.ones(6, 2)
    model.weight.grad[4] = 0  # absent
    model.weight.grad[5, 1] = -0.0  # absent
    model.weight.grad[0, 0] = 0  # present
    other.weight.grad = torch.tensor([[0.0, 1.0], [math.nan, 1.0]])
    batch = Batch(torch.tensor([[0, 1]]), torch.tensor([[1, 2]]))
    zeros = zero_gradients(both, model.weight, batch)
    assert zeros.num_absent_rows == 3
    assert zeros.total == 5 / 16
    assert zeros.absent_rows == 3 / 6
    assert zeros.elsewhere == 2 / 10


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1, -0.0, 3, "text", None, True])
def test_journal_lines_keep_every_value(value: Any) -> None:
    line = journal.to_line({"x": value})
    assert "NaN" not in line.replace('"NaN"', "")
    back = journal.from_line(line)["x"]
    assert repr(back) == repr(value)


def test_damaged_manifest_and_newer_schema(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(StudyError, match="is damaged"):
        records.load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": 1, "run_id": 3}')
    with pytest.raises(StudyError, match="is damaged at 'run_id'"):
        records.load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": 99}')
    with pytest.raises(StudyError, match="schema 99.*Update"):
        records.load(tmp_path)
