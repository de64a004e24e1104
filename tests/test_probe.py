"""The underflow probe: paper against casts, reality against fp32, and subjects of every kind."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from floatscope.errors import FloatscopeError, StudyError
from floatscope.lab.models import loss_in
from floatscope.lab.probe import backward
from floatscope.lab.probe.answers import answers, bulk, percent, summary, totals
from floatscope.lab.probe.keep import keep
from floatscope.lab.probe.records import StateProbe
from floatscope.lab.probe.run import probe
from floatscope.lab.probe.subject import State, Subject, subject_of_run
from floatscope.lab.run.train import Run, initial_model
from floatscope.lab.text.corpus import encode
from floatscope.lab.text.world import world_text
from floatscope.recipes import recipe
from floatscope.rounding import block_round, round_to
from floatscope.spectrum import storage
from floatscope.spectrum.spectrum import Spectrum
from floatscope.tables import read_parquet
from tests import tiny


class Mlp(nn.Module):
    """Two layers, a branch that is never used, and a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.unused, self.frozen = nn.Linear(3, 3), nn.Linear(4, 4)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(self.second(F.gelu(self.first(x))))


def subject(scale: float = 1.0) -> Subject:
    torch.manual_seed(0)
    model, x, y = Mlp(), torch.randn(32, 8), torch.randint(0, 4, (32,))
    state = State("as given", model, lambda m: F.cross_entropy(m(x), y) * scale)
    return Subject("mlp", (state,))


def found(scale: float = 1.0, **options: Any) -> tuple[Subject, StateProbe]:
    given = subject(scale)
    return given, probe(given, backend="emulated", **options).states[0]


def fp32_gradients(given: Subject) -> dict[str, Tensor]:
    model = given.states[0].model
    loss_in(given.states[0].loss_of(model)).backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return gradients


def test_paper_is_what_casts_of_the_fp32_gradient_do() -> None:
    given, state = found(scale=2.0**-18)
    gradients = fp32_gradients(given)
    assert state.spectra == {name: Spectrum.of(g) for name, g in gradients.items()}
    everything = torch.cat([g.flatten() for g in gradients.values()]).double()
    there = everything[everything != 0]
    assert {p.format for p in state.predictions} == {"fp16", "bf16", "e4m3fn", "e5m2"}
    assert {p.exponent for p in state.predictions} == set(range(25))
    assert any(p.underflow for p in state.predictions)
    for row in state.predictions:
        overflow = "saturate" if row.format == "e4m3fn" else "to_inf"
        cast = round_to(there * 2.0**row.exponent, row.format, overflow=overflow)
        assert row.of == there.numel()
        assert row.underflow == int((cast == 0).sum())
    total = Spectrum.of(everything.float())
    assert state.total == total


def test_block_formats_are_measured() -> None:
    given, state = found(scale=2.0**-18)
    gradients = fp32_gradients(given)
    assert {(m.name, m.format) for m in state.measured} == {
        (name, form) for name in gradients for form in {m.format for m in state.measured}
    }
    for row in state.measured:
        exact = gradients[row.name]
        values = block_round(exact, row.format).values
        assert row.of == int((exact != 0).sum())
        assert row.underflow == int(((values == 0) & (exact != 0)).sum())
        error = (values.double() - exact.double()).norm() / exact.double().norm()
        assert row.error == pytest.approx(error.item(), rel=1e-12)
    mxfp4 = [m for m in state.measured if m.format == "mxfp4"]
    assert sum(m.underflow for m in mxfp4) > 0


def test_reality_is_a_backward_pass_in_16_bits() -> None:
    given, state = found(scale=2.0**-18, exponents=(0, 18, 60), recipes=("fp16-mixed",))
    exact = fp32_gradients(given)
    for exponent in (0, 18, 60):
        real = backward.run(given.states[0], recipe("fp16-mixed"), exponent, "emulated")
        for name, gradient in real.gradients.items():
            [row] = [r for r in state.backward if (r.name, r.exponent) == (name, exponent)]
            assert row.of == int((exact[name] != 0).sum())
            assert row.zeros == int(((gradient == 0) & (exact[name] != 0)).sum())
            assert row.nans == int(gradient.isnan().sum())
            assert row.infinities == int(gradient.isinf().sum())
            error = (gradient.double() * 2.0**-exponent - exact[name].double()).norm()
            expected = (error / exact[name].double().norm()).item()
            assert row.error == pytest.approx(expected, rel=1e-12, nan_ok=True)
    by_scale = {t.exponent: t for t in totals(state.backward)}
    assert by_scale[0].zeros > by_scale[18].zeros
    assert by_scale[60].infinities + by_scale[60].nans > 0
    assert by_scale[0].median_error > by_scale[18].median_error


def test_gradients_on_the_way_are_those_in_16_bits() -> None:
    _, state = found(scale=2.0**-22, exponents=(0,), recipes=("fp16-mixed",))
    names = {row.name for row in state.on_the_way}
    assert {"first", "second", "frozen"} <= names
    assert all(row.of == 32 * {"first": 16}.get(row.name, 4) for row in state.on_the_way)
    assert sum(row.zeros for row in state.on_the_way) > 0


def test_the_model_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    gradient = torch.ones(8, 4)
    model[0].weight.grad = gradient
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(16, 4)
    state = State("as given", model, lambda m: m(x).square().mean())
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found = probe(Subject("bn", (state,)), exponents=(0,), backend="emulated")
    assert torch.equal(torch.rand(3), expected), "Torch's generator has moved"
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model[0].weight.grad is gradient
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())
    # Dropout draws the same mask in every pass, so 16 bits differ by rounding alone. (The bias
    # before the normalization has no gradient but rounding.)
    last = [row.median_error for row in found.states[0].backward if row.name.startswith("3.")]
    assert len(last) == 4
    assert max(last) < 0.05


def test_what_gets_no_gradient_is_named_and_what_is_frozen_is_not() -> None:
    _, state = found(exponents=(0,))
    assert state.without_gradient == ("unused.weight", "unused.bias")
    assert set(state.spectra) == {"first.weight", "first.bias", "second.weight", "second.bias"}


def test_answers_quote_the_numbers() -> None:
    _, state = found(scale=2.0**-18)
    text = " ".join(answers(state))
    total = state.total
    assert percent(total.below(-24).fraction) in text
    assert percent(total.underflow("fp16").fraction) in text
    assert f"span {len(total.octaves)} octaves" in text
    assert len(bulk(total)) <= len(total.octaves)
    [short] = summary(probe(subject(), exponents=(0,), backend="emulated")).states
    assert short.below_smallest_fp16 == state_below(subject())


def state_below(given: Subject) -> float:
    everything = torch.cat([g.flatten() for g in fp32_gradients(given).values()])
    there = everything[everything != 0].abs()
    return int((there < 2.0**-24).sum()) / there.numel()


def test_records_can_be_read_again(tmp_path: Path) -> None:
    whole = probe(subject(scale=2.0**-18), exponents=(0, 60), backend="emulated")
    keep(whole, tmp_path / "probe")
    data = json.loads((tmp_path / "probe" / "probe.json").read_text())
    assert data["schema"] == 1
    assert data["states"][0]["answers"] == answers(whole.states[0])
    rows = storage.read_parquet(tmp_path / "probe" / "spectra.parquet")
    assert {labels["name"]: s for labels, s in rows} == whole.states[0].spectra
    columns = read_parquet(tmp_path / "probe" / "backward.parquet")
    assert columns["zeros"] == [r.zeros for r in whole.states[0].backward]
    assert any(math.isnan(e) or math.isinf(e) for e in columns["error"])
    for name in ("predictions", "measured", "on_the_way"):
        assert read_parquet(tmp_path / "probe" / f"{name}.parquet")["state"]


def no_loss(output: Any) -> Callable[[nn.Module], Any]:
    return lambda model: output


@pytest.mark.parametrize(
    ("loss_of", "message"),
    [
        (no_loss({"logits": torch.ones(2)}), "a dict with logits was returned"),
        (no_loss(torch.ones(3, requires_grad=True)), r"a tensor of shape \(3,\)"),
        (no_loss(None), "NoneType was returned"),
        (no_loss(torch.ones(())), "does not depend on any parameter"),
        (lambda model: model(torch.ones(2, 8)).sum() * math.nan, "NaN in fp32 already"),
        (lambda model: model(torch.ones(2, 8)).sum() * 0, "zero in fp32 already"),
    ],
)
def test_losses_that_say_nothing_are_refused(
    loss_of: Callable[[nn.Module], Any], message: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(StudyError, match=message):
        probe(Subject("x", (State("as given", Mlp(), loss_of),)), backend="emulated")


def test_a_model_without_trainable_parameters_is_refused() -> None:
    state = State("as given", nn.ReLU(), lambda m: m(torch.ones(1)))
    with pytest.raises(StudyError, match="no parameter requires one"):
        probe(Subject("relu", (state,)))


def test_fp32_alone_is_no_comparison() -> None:
    with pytest.raises(StudyError, match="fp16-mixed"):
        probe(subject(), recipes=["fp32"])


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    tokens, _ = encode(world_text(), tiny.MODEL.vocab_size)
    Run(tiny.plan("fp32"), tokens, folder).execute()
    return folder


def test_a_run_is_probed_at_both_ends(finished_run: Path) -> None:
    given = subject_of_run(finished_run)
    assert [state.name for state in given.states] == ["initialization", "end of training"]
    weights = load_file(finished_run / "weights.safetensors")
    for name, parameter in given.states[1].model.named_parameters():
        assert torch.equal(parameter, weights[name])
    initial = initial_model(tiny.plan("fp32")).state_dict()
    for name, parameter in given.states[0].model.named_parameters():
        assert torch.equal(parameter, initial[name])
    first, last = probe(given, exponents=(0,), backend="emulated").states
    assert last.loss < first.loss


def test_runs_that_cannot_be_probed(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="is no folder"):
        subject_of_run(tmp_path / "nowhere")
    with pytest.raises(StudyError, match="no finished run"):
        subject_of_run(tmp_path)
    other = tmp_path / "text.txt"
    other.write_text(world_text().train[:50_000])
    with pytest.raises(StudyError, match="another text"):
        subject_of_run(finished_run, str(other))
    weights = finished_run / "weights.safetensors"
    content, tensors = weights.read_bytes(), load_file(weights)
    try:
        save_file(tensors, weights, {"run_id": "another"})
        with pytest.raises(StudyError, match="belongs to another run"):
            subject_of_run(finished_run)
        weights.write_bytes(content[:1000])
        with pytest.raises(StudyError, match="damaged"):
            subject_of_run(finished_run)
        weights.unlink()
        with pytest.raises(StudyError, match="without its weights"):
            subject_of_run(finished_run)
    finally:
        weights.write_bytes(content)


FACTORIES = """
import torch
from torch import nn

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def forward(self, x):
        return {"loss": self.layer(x).square().mean(), "logits": x}

def by_keyword(): return Named(), {"x": torch.randn(8, 4)}
def by_position(): return Named(), (torch.randn(8, 4),)
def alone(): return Named(), torch.randn(8, 4)
def with_loss(): return Named(), lambda model: model.layer(torch.ones(2, 4)).sum()
def raises(): raise ValueError("no such corpus")
def nothing(): return None
number = 3
"""


def command(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "floatscope.cli.main", "probe", *args, "--scales", "0"],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip


@pytest.mark.slow
def test_the_command_line_probes_a_model_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FACTORIES)
    for name in ("mine:by_keyword", "mine.py:with_loss"):
        done = command(tmp_path, "--model", name, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["states"][0]["nonzero"] == 5
        assert (tmp_path / "probe" / "probe.json").exists()
    shown = command(tmp_path, "--model", "mine:alone", "--out", "elsewhere")
    assert shown.returncode == 0, shown.stderr
    assert "octaves" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "records in elsewhere" in shown.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine", "name it as package.module:function"),
        ("mine:absent", "there is no function absent"),
        ("mine:number", "there is no function number"),
        ("mine:raises", "the function raised ValueError: no such corpus"),
        ("mine:nothing", "must return .* returned NoneType"),
        ("absent_package:f", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_factories_that_cannot_be_used(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from floatscope.lab.probe.subject import subject_of_factory

    (tmp_path / "mine.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(FloatscopeError, match=message):
        subject_of_factory(name)


def test_batches_of_every_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from floatscope.lab.probe.subject import subject_of_factory

    (tmp_path / "mine.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    for name in ("by_keyword", "by_position", "alone", "with_loss"):
        state = subject_of_factory(f"mine:{name}").states[0]
        assert loss_in(state.loss_of(state.model)).requires_grad


def test_only_numbers_that_fp32_has_are_missed() -> None:
    """Elements that are zero in fp32 and NaN in 16 bits are not counted: shares stay below 1."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(4, 8)
    x[:, 0] = 0
    state = State("as given", model, lambda m: m(x).square().mean())
    found = probe(Subject("x", (state,)), exponents=(30,), backend="emulated").states[0]
    [total] = [t for t in totals(found.backward) if t.format == "fp16"]
    assert 0 < total.infinities + total.nans <= total.of


def test_an_overflow_in_the_forward_pass_is_said() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)), torch.full((4, 8), 1e6)
    state = State("as given", model, lambda m: m(x).mean())
    found = probe(Subject("x", (state,)), backend="emulated").states[0]
    text = " ".join(answers(found))
    assert (
        "100.0 % are infinite or NaN (the loss is not finite: the forward pass overflowed" in text
    )
    assert "they differ most" not in text


def test_what_chooses_its_own_autocast_is_noticed() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(4, 8)

    def loss_of(m: nn.Module) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return m(x).square().mean()

    state = State("as given", model, loss_of)
    found = probe(Subject("x", (state,)), exponents=(0,), backend="emulated").states[0]
    assert "At scale 1 nothing ran in fp16" in " ".join(answers(found))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_that_are_not_fp32_are_refused(dtype: torch.dtype) -> None:
    model = nn.Linear(4, 1).to(dtype)
    state = State("as given", model, lambda m: m(torch.ones(2, 4, dtype=dtype)).sum())
    with pytest.raises(StudyError, match=f"the parameter weight is {dtype}"):
        probe(Subject("x", (state,)))


def test_recipes_that_do_more_than_16_bit_products_are_refused() -> None:
    with pytest.raises(StudyError, match="fp8-current does more than that"):
        probe(subject(), recipes=["fp8-current"])


def test_what_the_users_code_raises_is_one_error() -> None:
    def loss_of(m: nn.Module) -> Tensor:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(StudyError, match="in fp32 at scale 2.0 raised RuntimeError: shapes do not"):
        probe(Subject("x", (State("as given", Mlp(), loss_of),)))


@pytest.mark.slow
def test_scales_of_any_kind_are_shown_and_prints_do_not_disturb_json(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FACTORIES + "print('loading')\n")
    args = [sys.executable, "-m", "floatscope.cli.main", "probe", "--model", "mine.py:alone"]
    done = subprocess.run(
        [*args, "--scales=-5,3", "--json"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout)["states"][0]
    assert {p["exponent"] for p in state["predictions"]} == {-5, *range(25)}
    shown = subprocess.run([*args, "--scales=-5,3"], capture_output=True, text=True, cwd=tmp_path)
    assert "fp16    2^-5" in shown.stdout
    (tmp_path / "file").write_text("")
    refused = subprocess.run([*args, "--out", "file"], capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("error: ")
