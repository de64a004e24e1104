"""Studies through the command line: real processes, real kills, and every kind of bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from floatscope.lab.run import records
from floatscope.lab.study.folder import open_study
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.presets import NOVEL, PRESETS, QUICK
from floatscope.lab.study.summary import Floor, summarize
from floatscope.lab.study.toml import plan_from
from floatscope.recipes.movement import StoredUpdate
from tests import tiny
from tests.made_study import finish, made_study


def floatscope(
    *args: str | Path, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "floatscope.cli.main", *map(str, args)]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny study file, a text, and the finished study of both in `done`."""
    from floatscope.lab.text.world import build_world

    path = tmp_path_factory.mktemp("place")
    (path / "tiny.toml").write_text(tiny.STUDY_TOML)
    (path / "text.txt").write_text(build_world().val_text()[:60_000])
    run = floatscope(*RUN, "--out", "done", cwd=path)
    assert run.returncode == 0, run.stderr
    return path


RUN = ("study", "run", "tiny.toml", "--text", "text.txt", "--backend", "emulated")


def test_a_study_from_two_commands(place: Path) -> None:
    shown = floatscope("study", "show", "done", cwd=place)
    assert shown.returncode == 0
    assert "fp16-mixed: the claim holds" in shown.stdout
    assert "Screening with n = 2: " in shown.stdout
    assert "5 of 5 runs finished" in shown.stdout
    assert "fp16-mixed*" in shown.stdout
    assert "seed spread" in shown.stdout
    assert "rerun floor" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_json_holds_the_same(place: Path) -> None:
    shown = floatscope("study", "show", "done", "--json", cwd=place)
    result = json.loads(shown.stdout)
    assert [arm["recipe"] for arm in result["arms"]] == ["fp32", "fp16-mixed"]
    fp32, fp16 = result["arms"]
    assert fp32["num_runs"] == fp16["num_runs"] == 2
    runs = {(r["recipe"], r["seed"], r["ulp_rerun"]): r["validation_loss"] for r in result["runs"]}
    base1 = (runs["fp32", 1, 0] + runs["fp32", 1, 1]) / 2
    assert fp16["differences"]["1"] == pytest.approx(runs["fp16-mixed", 1, 0] - base1)
    assert fp16["differences"]["2"] == pytest.approx(runs["fp16-mixed", 2, 0] - runs["fp32", 2, 0])
    assert fp16["difference"] == pytest.approx(sum(fp16["differences"].values()) / 2)
    assert len(result["seed_spread"]["losses"]) == len(result["rerun_floor"]["losses"]) == 2


def test_initialization_and_data_depend_on_the_seed_alone(place: Path) -> None:
    folder = open_study(place / "done")
    first = {
        (plan.recipe.name, plan.seed): (
            run.table("evaluations")["loss"][0], run.table("metrics")["num_absent_rows"]
        )
        for plan, run in folder.finished() if not plan.ulp_rerun
    }  # fmt: skip
    for seed in (1, 2):
        loss32, rows32 = first["fp32", seed]
        loss16, rows16 = first["fp16-mixed", seed]
        assert rows32 == rows16
        assert loss32 == pytest.approx(loss16, rel=1e-3)
    assert first["fp32", 1] != first["fp32", 2]


def test_running_again_changes_nothing(place: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (place / "done").rglob("*.parquet")}
    assert len(before) == 5 * 4
    again = floatscope(*RUN, "--out", "done", cwd=place)
    assert again.returncode == 0
    assert "5 of them finished already" in again.stderr
    assert before == {p: p.stat().st_mtime_ns for p in (place / "done").rglob("*.parquet")}


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_study_resumes_to_the_same_records(
    place: Path, signal_sent: int, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "floatscope.cli.main", *RUN, "--out", str(out), "--jobs", "2"]
    process = subprocess.Popen(
        command,
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # background jobs ignore it
    )
    while not list(out.glob("runs/*/journal.jsonl")):
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal_sent)
    _, stderr = process.communicate()
    assert "Traceback" not in stderr
    if signal_sent == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted; the same command goes on" in stderr
    _wait_until_free(out)
    assert floatscope(*RUN, "--out", out, cwd=place).returncode == 0
    for (plan, run), (_, reference) in zip(
        open_study(out).finished(), open_study(place / "done").finished(), strict=True
    ):
        for table in records.COLUMNS:
            mine, theirs = run.table(table), reference.table(table)
            for column in set(mine) - set(records.WALL_CLOCK):
                assert repr(mine[column]) == repr(theirs[column]), (plan.label, table, column)


def _wait_until_free(out: Path) -> None:
    """Workers end by themselves when their study is gone."""
    import fcntl

    deadline = time.monotonic() + 20
    for lock in out.glob("runs/*/.lock"):
        while True:
            with open(lock) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    assert time.monotonic() < deadline, "a worker outlived its study"
                    time.sleep(0.05)


def test_reuse_takes_finished_runs_over(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "more"
    more = floatscope(*RUN, "--seeds", "1,3", "--out", out, "--reuse", "done", cwd=place)
    assert more.returncode == 0, more.stderr
    assert "3 finished runs taken over from done" in more.stderr  # seed 1: two recipes and a rerun
    assert summarize(open_study(out)).num_finished == 5


def test_two_processes_on_one_study(place: Path) -> None:
    from floatscope.files import owned

    with owned(place / "done", "the study in"):
        second = floatscope(*RUN, "--out", "done", cwd=place)
    assert_one_error(second, "another process is working on the study in done")


def assert_one_error(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    flat = " ".join(done.stderr.split())
    assert message in flat, flat
    assert done.stderr.count("error: ") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["study", "run", "quik"], "unknown study 'quik'. Did you mean 'quick'?"),
        (["study", "run", "absent.toml"], "there is no study file absent.toml"),
        (["study", "run", "--recipes", "fp32,fp16-mixt"], "Did you mean 'fp16-mixed'"),
        (["study", "run", "--recipes", "fp32,,fp16-mixed"], "unknown recipe ''"),
        (["study", "run", "--seeds", ""], "--seeds: '' is no whole number"),
        (["study", "run", "--seeds", "1,x"], "--seeds: 'x' is no whole number"),
        (["study", "run", "--seeds", "1,1"], "seeds names one twice"),
        (["study", "run", "--seeds=-1"], "seeds must lie between 0"),
        (["study", "run", "--backend", "gpu"], "unknown backend 'gpu'"),
        (["study", "run", "--text", "absent.txt"], "--text absent.txt: there is no such file"),
        (["study", "run", "--text", "empty.txt"], "empty.txt holds nothing but white space"),
        (["study", "run", "--text", "gb.txt"], "gb.txt is not UTF-8"),
        (["study", "run", "--text", "short.txt"], "the text short.txt is too short"),
        (["study", "show", "absent"], "absent holds no study"),
        (["study", "show", "text.txt"], "text.txt holds no study"),
    ],
)
def test_bad_arguments(place: Path, tmp_path: Path, args: list[str], message: str) -> None:
    (place / "empty.txt").write_text("")
    (place / "gb.txt").write_bytes("三國演義".encode("gb18030"))
    (place / "short.txt").write_text("a short text")
    out = ["--out", str(tmp_path / "out")] if args[1] == "run" else []
    assert_one_error(floatscope(*args, *out, cwd=place), message)
    assert not (tmp_path / "out" / "runs").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("recipez = []", "unknown key 'recipez'. Did you mean 'recipes'?"),
        ("[train]\nstepz = 3", "unknown key 'train.stepz'. Did you mean 'train.steps'?"),
        ("[modell]\nwidth = 3", "unknown key 'modell'. Did you mean 'model'?"),
        ("[train]\nsteps = 'many'", "train.steps = 'many'"),
        ("[train]\nsteps = 0", "train.steps must lie between 1"),
        ("[train]\npeak_lr = -1.0", "train.peak_lr must be a positive number"),
        ("[model]\nnum_heads = 7", "width 256 must split into 7 heads"),
        ("[model]\nvocab_size = 100", "model.vocab_size must lie between 256"),
        ("[model]\nattention = 'flash'", "model.attention = 'flash'"),
        ("[model]\nwidth = 0", "model.width must lie between 1"),
        ("[model]\nwidth = 1000000000", "model.width must lie between 1"),
        ("[train]\nsteps = 99999999999999999999", "train.steps"),
        ("[train]\nclip_norm = -1.0", "train.clip_norm must be a positive number"),
        ("[train]\nsteps = '20'", "train.steps = '20': input should be a valid integer"),
        ("[train]\nsteps = 20.0", "train.steps = 20.0"),
        ("seeds = [true]", "seeds.0 = True"),
        ("seeds = 1", "seeds = 1: must be a list, such as [1, 2]"),
        ("recipes = 'fp32'", "recipes = 'fp32': must be a list"),
        ("recipes = ['fp8']", "unknown recipe 'fp8'"),
        ("preset = 'quik'", "unknown preset 'quik'. Did you mean 'quick'?"),
        ("recipes = ", "is not TOML"),
        ("model = 3", "model must be a table"),
        ("[train]\nprecision = 'fp12'", "unknown train.precision 'fp12'"),
        ("[train]\nloss_scaling = true", "train.loss_scaling needs train.precision"),
        ("[train]\nprecision = 'bf16'\nloss_scaling = true", 'needs train.precision = "fp16"'),
        ("recipes = ['fp32']\n[train]\nprecision = 'fp32'", "recipes or train.precision, not both"),
    ],
)
def test_bad_study_files(tmp_path: Path, content: str, message: str) -> None:
    from floatscope.errors import FloatscopeError
    from floatscope.lab.study.toml import read_study

    path = tmp_path / "study.toml"
    path.write_text(content)
    with pytest.raises(FloatscopeError) as error:
        read_study(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


def test_a_model_larger_than_the_machine_is_refused_before_it_starts(place: Path) -> None:
    (place / "huge.toml").write_text("[model]\nwidth = 1048576\n")
    done = floatscope("study", "run", "huge.toml", "--out", "huge", cwd=place)
    assert_one_error(done, "GiB of memory, and this machine has")
    assert not (place / "huge").exists()


def test_precision_and_loss_scaling_name_recipes() -> None:
    def recipes(train: dict[str, Any]) -> tuple[str, ...]:
        return plan_from({"train": train}, "x").recipes

    assert recipes({"precision": "bf16"}) == ("bf16-mixed",)
    assert recipes({"precision": "fp16", "loss_scaling": False}) == ("fp16-mixed-unscaled",)
    assert recipes({"precision": ["fp32", "fp16"]}) == ("fp32", "fp16-mixed")


def test_presets() -> None:
    assert NOVEL.model.width == 256
    assert (NOVEL.train.steps, NOVEL.train.batch_size, NOVEL.model.context) == (400, 32, 256)
    assert NOVEL.seeds == (1337, 1338, 1339)
    assert len(NOVEL.runs()) == 15
    assert len(QUICK.runs()) == 16
    for name, plan in PRESETS.items():
        assert plan_from({"preset": name}, name) == plan
        assert plan.name == name


def test_another_plan_in_the_folder_is_named(place: Path) -> None:
    before = (place / "done" / "study.json").read_bytes()
    other = floatscope(*RUN, "--out", "done", "--seeds", "1", cwd=place)
    assert_one_error(
        other, "done holds another study: question.n was 2, now 1; seeds was [1, 2], now [1]"
    )
    assert "Nothing was changed" in other.stderr
    assert (place / "done" / "study.json").read_bytes() == before


def test_another_text_is_named(place: Path) -> None:
    other = floatscope("study", "run", "tiny.toml", "--out", "done", cwd=place)
    assert_one_error(other, "the text is another one")


def test_a_folder_with_something_else_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    assert_one_error(floatscope(*RUN, "--out", tmp_path, cwd=place), "holds no study.json")
    assert [p.name for p in tmp_path.iterdir()] == ["photo.jpg"]
    assert_one_error(floatscope(*RUN, "--out", tmp_path / "photo.jpg", cwd=place), "is a file")
    assert (tmp_path / "photo.jpg").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("study.json", b"{", "study.json is damaged"),
        ("study.json", b'{"schema": 99, "plan": {}, "data_sha256": ""}', "has schema 99"),
        ("runs/*/manifest.json", b"[]", "manifest.json is damaged"),
        ("runs/*/metrics.parquet", b"PAR1", "metrics.parquet is missing or damaged"),
        ("runs/*/events.parquet", b"", "events.parquet is missing or damaged"),
        ("runs/*/metrics.parquet", b"PAR1 and more PAR1", "metrics.parquet is missing or damaged"),
        ("runs/*/evaluations.parquet", None, "evaluations.parquet is missing or damaged"),
    ],
)
def test_damaged_records(
    place: Path, tmp_path: Path, file: str, content: bytes | None, message: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(place / "done", copy)
    target = sorted(copy.glob(file))[0]
    target.unlink() if content is None else target.write_bytes(content)
    assert_one_error(floatscope("study", "show", copy, cwd=place), message)


def test_a_damaged_checkpoint_stops_the_study_and_is_named(place: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(place / "done", copy)
    run = sorted(copy.glob("runs/fp16-mixed-s2-*"))[0]
    (run / "manifest.json").unlink()
    (run / "checkpoint.safetensors").write_bytes(b"not a checkpoint")
    stopped = floatscope(*RUN, "--out", copy, cwd=place)
    assert_one_error(stopped, f"the checkpoint {run}/checkpoint.safetensors is damaged")
    assert (run / "checkpoint.safetensors").read_bytes() == b"not a checkpoint"
    assert summarize(open_study(copy)).num_finished == 4
    (run / "checkpoint.safetensors").unlink()
    assert floatscope(*RUN, "--out", copy, cwd=place).returncode == 0


def test_mixed_environments_are_reported(place: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(place / "done", copy)
    manifest_path = sorted(copy.glob("runs/fp16-mixed-s1-*/manifest.json"))[0]
    manifest = json.loads(manifest_path.read_text())
    other = json.loads(json.dumps(manifest["sessions"][0]))
    other["environment"]["processor"] = "another"
    other["environment"]["backend"] = "native"
    manifest["sessions"].append(other)
    manifest_path.write_text(json.dumps(manifest))
    remarks = " ".join(summarize(open_study(copy)).remarks)
    assert "the runs differ in processor" in remarks
    assert "fp16-mixed ran on both backends" in remarks
    assert "resumed after an interruption: fp16-mixed-s1" in remarks


def test_a_diverged_run_enters_no_mean(place: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(place / "done", copy)
    manifest_path = sorted(copy.glob("runs/fp16-mixed-s1-*/manifest.json"))[0]
    manifest = json.loads(manifest_path.read_text())
    manifest["exit_reason"] = "diverged"
    manifest_path.write_text(json.dumps(manifest))
    arm = summarize(open_study(copy)).arms[1]
    assert (arm.num_runs, arm.num_diverged) == (2, 1)
    assert list(arm.differences) == [2]
    assert "1 of 2 runs diverged" in floatscope("study", "show", copy, cwd=place).stdout


def test_floors_say_what_they_hide() -> None:
    floor = Floor(name="seed spread", losses=(1, 2), standard_deviation=0.1, spread=0.2)
    assert floor.hides(0.3) is True
    assert floor.hides(-0.31) is False
    assert floor.hides(float("nan")) is None
    unknown = Floor(name="x", losses=(1,), standard_deviation=float("nan"), spread=float("nan"))
    assert unknown.hides(0.1) is None
    missed = Floor(name="x", losses=(1, 1), standard_deviation=0.0, spread=0.0)
    assert missed.hides(1e-5) is None


def test_a_full_disk_loses_nothing(place: Path, tmp_path: Path) -> None:
    """A study on a file system of its own that is too small for a checkpoint."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        full = floatscope(*RUN, "--out", disk / "study", "--jobs", "1", cwd=place)
        assert_one_error(full, "the disk is full")
        assert "the same command again" in " ".join(full.stderr.split())
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert floatscope(*RUN, "--out", disk / "study", cwd=place).returncode == 0
        assert summarize(open_study(disk / "study")).num_finished == 5
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_plan_hash_ignores_name_and_path_of_the_text() -> None:
    one = StudyPlan(name="a", text="here.txt")
    two = StudyPlan(name="b", text="there.txt")
    assert one.sha256("data") == two.sha256("data")
    assert one.sha256("data") != one.sha256("other data")


def test_help_names_the_verbs() -> None:
    shown = floatscope("--help", cwd=Path.cwd())
    assert shown.returncode == 0
    for word in ("study", "text", "floatscope study run"):
        assert word in shown.stdout


def test_a_full_standard_output_is_one_error(place: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    for args in (["study", "show", "done", "--json"], ["study", "show", "done"], ["formats"]):
        command = [sys.executable, "-m", "floatscope.cli.main", *args]
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                command, cwd=place, stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert_one_error(done, "the output could not be written: No space left on device")


def test_version(place: Path) -> None:
    assert floatscope("--version", cwd=place).stdout.startswith("floatscope 0.")


def test_lost_updates_are_shown_with_the_arm(tmp_path: Path) -> None:
    study = made_study(tmp_path / "study", recipes=("fp32", "bf16-pure"), seeds=(1, 2), finished=0)
    for run in study.plan.runs():
        stored = [
            records.storage(step, StoredUpdate(of=100, lost=lost, quality=quality,
                                               unmoved=lost, weights_quality=quality))
            for step, (lost, quality) in enumerate([(10, 1.0)] * 2 + [(50, None)] * 8
                                                   + [(80 + run.seed, 0.25)] * 2)
        ]  # fmt: skip
        finish(study, run, more=stored if run.recipe.name == "bf16-pure" else ())
    arms = {arm.recipe: arm for arm in summarize(study).arms}
    assert arms["fp32"].stored is None
    stored = arms["bf16-pure"].stored
    assert stored is not None
    assert asdict(stored) == pytest.approx(
        {"lost_first": 0.1, "lost_last": 0.815, "quality_first": 1.0, "quality_last": 0.25}
    )
    shown = " ".join(floatscope("study", "show", study.path, cwd=tmp_path).stdout.split())
    assert "bf16-pure: of its updates 10.00% left no trace in what is stored" in shown
    assert "81.50% over the last; descent quality 1.000, then 0.250." in shown
