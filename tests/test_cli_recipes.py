"""`floatscope recipes`, and recipes of one's own in TOML."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from floatscope.recipes import CATALOGUE, Recipe
from floatscope.recipes.train_step import TrainStep


def recipes(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "floatscope.cli.main", "recipes", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def written(folder: Path, content: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(textwrap.dedent(content))
    return path


def test_the_list_has_every_recipe_in_80_columns() -> None:
    lines = recipes().stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line[:1].strip()][:-1] == [*CATALOGUE]


def test_a_recipe_is_shown_role_by_role() -> None:
    shown = recipes("nvfp4", "fp16-mixed").stdout
    assert shown == f"{CATALOGUE['nvfp4']}\n\n{CATALOGUE['fp16-mixed']}\n"
    assert max(map(len, shown.splitlines())) <= 80
    for line in (
        "          forward: weight              nvfp4, elements e2m1fn, blocks of 16×16",
        "          weights kept in bf16         the head, the last 15 %",
        "loss      scaling                      dynamic: from 65536, × 0.5 at an",
    ):
        assert line in shown.splitlines()


def test_a_file_of_ones_own_as_the_help_has_it(tmp_path: Path) -> None:
    """And it trains as it says."""
    text = recipes("--help").stdout
    example = text[text.index('base = "mxfp8"') : text.index("Positional")]
    path = written(tmp_path, "\n".join(line.strip() for line in example.splitlines()))
    found = json.loads(recipes("mine.toml", "--json", cwd=tmp_path).stdout)
    mine = Recipe.from_toml(path)
    assert found[0]["recipe"] == mine.to_dict()
    assert found[0]["name"] == "mine"
    table = {(row["part"], row["role"]): row["format"] for row in found[0]["table"]}
    assert table["products", "input gradient: gradient"] == "mxfp8-e5m2"
    assert table["products", "forward: weight"] == "mxfp8-e4m3, scales rounded up"
    assert table["stored", "weights"] == "bf16"
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 4))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), mine)
    result = step(lambda m: m(torch.ones(2, 32)).float().square().mean())
    assert result.converted is not None
    assert result.converted.converted.total() == 2
    assert torch.equal(model[0].weight, model[0].weight.bfloat16().float())


def test_the_difference_of_two(tmp_path: Path) -> None:
    path = written(tmp_path, 'base = "mxfp8"\noperands.weight = "mxfp6-e3m2"\n')
    shown = recipes("mxfp8", str(path), "--diff").stdout
    one, other = "  mxfp8  mxfp8-e4m3, scales rounded up\n", "  mine   mxfp6-e3m2\n"
    assert shown == (
        f"products, forward: weight\n{one}{other}products, input gradient: weight\n{one}{other}"
    )
    assert recipes("mxfp8", "mxfp8", "--diff").stdout == "They do not differ.\n"
    (first, second) = json.loads(recipes("mxfp8", str(path), "--diff", "--json").stdout)
    assert [row["role"] for row in first["table"]] == ["forward: weight", "input gradient: weight"]
    assert [row["format"] for row in second["table"]] == ["mxfp6-e3m2"] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("base = mxfp8", "is not TOML"),
        ('base = "mxfp9"', "unknown base 'mxfp9'. Did you mean 'mxfp8'?"),
        ('basis = "mxfp8"', "unknown key 'basis'. Did you mean 'base'?"),
        ('base = "mxfp8"\nname = "mxfp6"', "mxfp6 is the catalogue's name for another recipe"),
        ('base = "mxfp8"\noperands.gradient = "mxfp5"', "unknown format 'mxfp5'"),
        ('base = "mxfp8"\noperands.gradients = "fp16"', "unknown key 'operands.gradients'"),
        ('base = "fp32"\noperands.gradient = "fp16"', "operands.activation is missing"),
        ('base = "mxfp8"\noperands.weight = {rule = "up"}', "unknown scale rule 'up'"),
        ('base = "mxfp8"\noperands.activation_again = {hadamard = 12}', "power of two"),
        ('base = "mxfp8"\noperands.activation_again = {hadamard = 16}', "transform cancels only"),
        ('base = "mxfp8"\noperands.accumulator = "fp8"', "unknown accumulator 'fp8'"),
        ('base = "bf16-sr"\nstored.update = "up"', "unknown stored.update 'up'"),
        ('base = "bf16-sr"\nstored.master = "fp32"', "would change nothing"),
        ('stored.keep = ["norm"]', "keep and keep_norms change nothing"),
        ("loss_scaling.initial = -1", "initial must be a positive number"),
        ("loss_scaling.initial = true", "loss_scaling.initial = True"),
        ("loss_scaling = 8", "loss_scaling must be a table"),
        ('products = "fp8"', "unknown format of products 'fp8'"),
        ("kept.first = -1", "first and last count weights"),
        ('name = "../x"', "a recipe cannot be called '../x'"),
    ],
)
def test_mistakes_are_one_message(content: str, message: str, tmp_path: Path) -> None:
    done = recipes(str(written(tmp_path, content)))
    assert done.returncode == 1
    assert not done.stdout
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr


def test_names_and_options_that_are_wrong(tmp_path: Path) -> None:
    for args, message in (
        (["mxfp9"], "unknown recipe 'mxfp9'. Did you mean 'mxfp8'?"),
        (["none.toml"], "there is no recipe file none.toml."),
        (["mxfp8", "--diff"], "--diff compares two or more recipes; name them."),
    ):
        done = recipes(*args, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr
