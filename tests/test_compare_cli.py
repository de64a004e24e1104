"""`floatscope compare`: every kind of model, the table, the record, and wrong use."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from floatscope.cli.compare_table import compare_table
from floatscope.errors import FloatscopeError, StudyError
from floatscope.lab.compare.keep import keep, load
from floatscope.lab.compare.records import Comparison
from floatscope.lab.compare.run import compare_subject
from floatscope.lab.compare.subject import subject_called
from floatscope.lab.run.json_files import json_values
from floatscope.lab.run.train import Run, initial_model
from floatscope.lab.schemas import schemas
from floatscope.lab.text.corpus import encode
from floatscope.lab.text.world import world_text
from tests import tiny

NOVEL = Path(__file__).parent.parent / "results" / "novel" / "compare"

MINE = """
import torch
from torch import nn

print("loading")

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.a_layer_with_a_name_that_is_long_enough = nn.Linear(8, 32)
        self.second = nn.Linear(32, 4)
    def forward(self, x):
        hidden = self.a_layer_with_a_name_that_is_long_enough(x).relu()
        return {"loss": self.second(hidden).square().mean()}

def make(): return Mine(), {"x": torch.randn(16, 8)}
def large(): return Mine(), lambda model: model(1e6 * torch.ones(16, 8))["loss"]
def raises(): raise ValueError("no such corpus")
"""


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    tokens, _ = encode(world_text(), tiny.MODEL.vocab_size)
    Run(tiny.plan("fp32"), tokens, folder).execute()
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "tiny.toml").write_text(tiny.STUDY_TOML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def compared(model: str, *recipes: str, **how: Any) -> Comparison:
    return compare_subject(subject_called(model, **how), recipes, backend="emulated")


def shown(found: Comparison, layers: int | None = 1) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(compare_table(found, layers), width=80)
    return console.export_text()


def test_a_run_is_compared_at_both_ends(finished_run: Path) -> None:
    found = compared(str(finished_run), "bf16-mixed", "mxfp8")
    assert [state.name for state in found.states] == ["initialization", "end of training"]
    assert found.states[1].loss < found.states[0].loss
    assert found.origin["run_id"]
    assert all(len(state.arms) == 3 for state in found.states)
    smaller = compared(str(finished_run), batch_size=1)
    assert smaller.states[0].loss != found.states[0].loss


def test_a_study_file_is_compared_before_its_first_step(here: Path, text_file: Path) -> None:
    found = compared("tiny.toml", "mxfp8")
    [state] = found.states
    assert found.label == "tiny, seed 1"
    assert state.arms[0].whole.elements == sum(
        p.numel() for p in initial_model(tiny.plan()).parameters()
    )
    other = compared("tiny.toml", "mxfp8", seed=2, batch_size=2)
    assert other.label == "tiny, seed 2"
    assert other.origin["batch_size"] == 2
    assert other.states[0].loss != state.loss
    of_text = compared("tiny.toml", "mxfp8", text=str(text_file))
    assert of_text.states[0].loss != state.loss
    assert str(text_file) not in json.dumps(json_values(asdict(of_text)))


def test_a_function_makes_the_same_model_each_time(here: Path) -> None:
    first, again, other = (compared("mine:make", "mxfp8", seed=s).states for s in (0, 0, 1))
    assert first == again
    assert first[0].loss != other[0].loss
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    subject_called("mine:make")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_a_config_json_is_compared(here: Path) -> None:
    pytest.importorskip("transformers")
    values = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2,
              "n_positions": 16}  # fmt: skip
    (here / "config.json").write_text(json.dumps(values))
    found = compared("config.json", "mxfp8", batch_size=2)
    [state] = found.states
    assert state.name == "random weights and batch"
    assert state.arms[0].whole.error < 1e-5
    assert state.arm("mxfp8").converted == 12
    assert compared(".", batch_size=2).states[0].loss == state.loss


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("quik", {}, "unknown model 'quik'. Did you mean 'quick'"),
        ("nowhere/run", {}, "unknown model 'nowhere/run'"),
        (".", {}, "holds no finished run"),
        ("absent.toml", {}, "there is no study file absent.toml"),
        ("absent.json", {}, "absent.json cannot be read"),
        ("mine:absent", {}, "there is no function absent"),
        ("mine.py:raises", {}, "the function raised ValueError: no such corpus"),
        ("mine:make", {"batch_size": 4}, "--batch does not go with mine:make"),
        ("mine:make", {"text": "a.txt"}, "--text does not go with mine:make"),
        ("tiny.toml", {"batch_size": 0}, "--batch must lie between 1 and 1048576, not 0"),
        ("tiny.toml", {"seed": -1}, "--seed must lie between 0"),
        ("tiny.toml", {"text": "a.txt"}, "there is no such file"),
        ("tiny.toml", {"batch_size": 1 << 20}, "is too short"),
    ],
)
def test_models_that_cannot_be_used(
    model: str, options: dict[str, Any], message: str, here: Path
) -> None:
    with pytest.raises(FloatscopeError, match=message):
        subject_called(model, **options)


def test_the_table_fits_and_names_what_is_worst(here: Path) -> None:
    found = compared("mine:make", "mxfp8", "fp16-mixed-unscaled", "bf16-pure")
    text = shown(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "…that_is_long_enough.weight" in text
    [state] = found.states
    order = [line.split()[0] for line in text.splitlines() if line.startswith(("fp", "bf", "mx"))]
    assert order[:4] == [arm.recipe for arm in state.arms]
    for answer in state.answers:
        assert answer.split(".")[0][:60] in " ".join(text.split())
    assert len(shown(found, None).splitlines()) > len(text.splitlines()) + 8
    assert "Where each" not in shown(found, 0)


def test_the_table_shows_what_is_not_finite(here: Path) -> None:
    text = shown(compared("mine:large", "fp16-mixed"))
    assert "NaN" in text
    assert "100.0 %" in text


def test_the_record_is_whole_and_has_a_schema(here: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    found = compared("mine:large", "fp16-mixed", "mxfp8", "bf16-pure")
    path = keep(found, here / "records")
    assert path == here / "records" / "compare.json"
    assert json_values(asdict(load(here / "records"))) == json_values(asdict(found))
    content = json.loads(path.read_text())
    assert content["states"][0]["arms"][-1]["whole"]["error"] == "NaN"
    jsonschema.validate(content, schemas()["compare-1"])
    path.write_text(path.read_text()[:500])
    with pytest.raises(StudyError, match="is damaged. Compare again"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(here)


def command(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "floatscope.cli.main", "compare", *args],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip


@pytest.mark.slow
def test_the_command_line(here: Path) -> None:
    done = command(here, "mine.py:make", "--recipes", "bf16-mixed, mxfp8", "--json", "--out", "x")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((here / "x" / "compare.json").read_text())
    assert "loading" in done.stderr
    done = command(here, "tiny.toml", "--recipe", "mxfp8", "--layers", "all")
    assert done.returncode == 0, done.stderr
    assert "blocks.1.ff.down.weight" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("tiny.toml", "--layers", "few"), "error: --layers few: name how many"),
        (("tiny.toml", "--recipes", "mxfp9"), "error: unknown recipe 'mxfp9'"),
        (("tiny.toml", "--scale", "8", "--recipes", "mxfp8"), "error: a loss scale of 8 would"),
        (("tiny.toml", "--out", "mine.py"), "error: "),
    ],
)
def test_wrong_use_is_one_message(args: tuple[str, ...], message: str, here: Path) -> None:
    done = command(here, *args)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
