"""What the READMEs show works, and both languages show the same."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import floatscope as fs
from floatscope.lab.model import make_gpt
from floatscope.lab.run.train import batch_loss
from floatscope.lab.study.toml import plan_from
from floatscope.recipes import Recipe
from floatscope.recipes.train_step import TrainStep
from tests import tiny

ROOT = Path(__file__).parent.parent
ENGLISH, CHINESE = (ROOT / name for name in ("README.md", "README.zh.md"))


def blocks(readme: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("language", ["sh", "python", "sql", "text"])
def test_both_languages_show_the_same(language: str) -> None:
    assert blocks(ENGLISH, language) == blocks(CHINESE, language)
    assert blocks(ENGLISH, language)


def test_study_file() -> None:
    (english, _), (chinese, _) = blocks(ENGLISH, "toml"), blocks(CHINESE, "toml")
    plan = plan_from(tomllib.loads(english), "mine")
    assert plan == plan_from(tomllib.loads(chinese), "mine")
    assert plan.recipes == ("fp32", "fp16-mixed")
    assert plan.model.attention == "materialized"
    assert plan.model.width == 64  # from the preset


def test_python_example() -> None:
    code, *_ = blocks(ENGLISH, "python")
    model = torch.nn.Linear(4, 2)
    names = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "loss_fn": torch.nn.functional.mse_loss,
        "batches": [(torch.randn(3, 4), torch.randn(3, 2))]
        * 20,  # enough for the loss scale to settle
    }
    before = model.weight.detach().clone()
    exec(code, names)
    assert not torch.equal(before, model.weight)


def test_recipe_file(tmp_path: Path) -> None:
    found = []
    for number, readme in enumerate((ENGLISH, CHINESE)):
        path = tmp_path / str(number) / "careful.toml"
        path.parent.mkdir()
        path.write_text(blocks(readme, "toml")[1], encoding="utf-8")
        found.append(Recipe.from_toml(path))
    mine, other = found
    assert mine == other
    assert mine.name == "careful"
    assert mine.stored.keep_norms
    model = make_gpt(tiny.MODEL, seed=1)
    step = TrainStep(model, torch.optim.AdamW(model.parameters()), mine, backend="emulated")
    result = step(lambda m: batch_loss(m, tiny.batch()))
    assert result.converted is not None
    assert all(not name.startswith("blocks.0.") for name, _ in result.converted.converted)
    assert any(name.startswith("blocks.0.") for name in result.converted.kept)


def test_recipe_example(capsys: pytest.CaptureFixture[str]) -> None:
    _, code, *_ = blocks(ENGLISH, "python")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    names: dict[str, Any] = {
        "fs": fs,
        "model": model,
        "adamw": torch.optim.AdamW(model[0].parameters()),
        "sgd": torch.optim.SGD(model[1].parameters()),
        "loss_fn": torch.nn.functional.mse_loss,
        "batches": [(torch.randn(6, 4), torch.randn(6, 2))] * 2,
    }
    exec(code, names)
    lines = capsys.readouterr().out.splitlines()
    assert "('0.weight', 'forward'): 2" in lines[0]
    assert "{'1.weight': 'the head'}" in lines[0]
    lost, of, quality = map(float, lines[1].split())
    assert 0 <= lost < of == 58
    assert 0 < quality < 2
    assert names["report"].converted["0.weight", "weight_gradient"] == 1


def test_model_example() -> None:
    _, _, code, *_ = blocks(ENGLISH, "python")
    names: dict[str, Any] = {}
    exec(code, names)
    model, loss_of = names["make"]()
    assert loss_of(model).requires_grad


def test_spectrum_example(capsys: pytest.CaptureFixture[str]) -> None:
    first, _, _, code, _ = blocks(ENGLISH, "python")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    names: dict[str, object] = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "loss_fn": torch.nn.functional.mse_loss,
        "batches": [(torch.randn(3, 4), torch.randn(3, 2))] * 20,
    }
    exec(first, names)
    names["x"] = torch.tensor([1.0, 2.0**-40, 0.0, 480.0])
    capsys.readouterr()
    exec(code, names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{1 / 3} 1"
    assert lines[1].startswith("ScaleWindow(k_min=")
    assert lines[2] == "Share(count=0, of=20)"  # ten gradients in each of steps 0 and 10


def test_rounding_example(capsys: pytest.CaptureFixture[str]) -> None:
    *_, code = blocks(ENGLISH, "python")
    names: dict[str, object] = {"x": torch.tensor([[500.0, 1e-5, 0.1, 1.0]])}
    exec(code, names)
    printed = capsys.readouterr().out
    assert printed.startswith("1 1\n")
    assert "1 of 4" in printed
    assert names["codes"].tolist() == [[0x07, 0x20]]  # type: ignore[attr-defined]


def test_commands_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    seen = 0
    for line in filter(None, "\n".join(blocks(ENGLISH, "sh")).splitlines()):
        words = shlex.split(line)
        if words[0] == "make":
            assert words[1] in targets
            continue
        assert words[0] == ".venv/bin/floatscope"
        verb = [w for w in words[1:3] if not w.startswith("-")]
        shown = subprocess.run(
            [sys.executable, "-m", "floatscope.cli.main", *verb, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200"},
        ).stdout
        for option in (w for w in words if w.startswith("--")):
            assert option in shown, f"{line}: no {option}"
        seen += 1
    assert seen >= 6


def test_continuous_integration_calls_the_readmes_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    for command in ("make lab", "make check", "make test"):
        assert re.search(rf"^{command}$", script, re.MULTILINE)
        assert command in ENGLISH.read_text()


def test_links_lead_somewhere() -> None:
    for readme in (ENGLISH, CHINESE):
        for target in re.findall(r"\]\(([^)#:]+)\)", readme.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{readme.name}: {target}"
