"""`floatscope memory`: theory, trace, measure, reconcile, fit, selftest, and bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from floatscope.cli.main import app
from floatscope.errors import FloatscopeError, LedgerError, RecipeError, StudyError
from floatscope.lab.memory import apart, neighbors, witnesses
from floatscope.lab.memory.hugging_face import shrunk
from floatscope.lab.memory.records import read_memory
from floatscope.lab.memory.target import Spec, target_of
from floatscope.lab.memory.witnesses import acceptance, measured_arm, traced_arm
from floatscope.memory import Ledger, Stage, measure
from floatscope.memory.closed_form import GPTNumbers, saved
from floatscope.memory.fit import bookkeeping, count, shape, size, ways
from floatscope.memory.selftest import Check
from floatscope.tables import read_parquet

QUICK = GPTNumbers(
    vocab_size=512, context=64, num_layers=2, width=64, num_heads=4, ff_width=172, batch_size=16
)
STUDY = """
preset = "quick"
[model]
vocab_size = 256
context = 16
width = 32
num_heads = 2
ff_width = 48
[train]
batch_size = 4
"""
MODELS = """
import torch
from torch import nn

class Named(nn.Module):
    def __init__(self, raises=False):
        super().__init__()
        self.layer, self.raises = nn.Linear(4, 1), raises
    def forward(self, x):
        y = self.layer(x)
        if self.raises:
            raise KeyError("halfway")
        return {"loss": y.square().mean()}

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 32)
    def forward(self, x):
        return self.lstm(x)[0].square().mean()

class Reads(Named):
    def forward(self, x):
        y = self.layer(x)
        return y.sum() if y.sum() > 0 else -y.sum()

class Big(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1_000_000, 1_000_000)
    def forward(self, x):
        return self.layer(x).sum()

def named(): return Named(), {"x": torch.ones(8, 4)}
def with_loss(): return Named(), lambda model: model.layer(torch.ones(2, 4)).sum()
def lstm(): return Recurrent(), torch.ones(20, 8, 16)
def reads(): return Reads(), torch.ones(2, 4)
def big(): return Big(), torch.ones(1, 1_000_000)
def raises(): raise ValueError("no such corpus")
def step_raises(): return Named(raises=True), torch.ones(2, 4)
def no_loss(): return nn.Linear(4, 4), torch.ones(2, 4)
"""
WIDTHS = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 16,
          "intermediate_size": 512}  # fmt: skip
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000,
    "num_key_value_heads": 4, "max_position_embeddings": 128, "dtype": "bfloat16", **WIDTHS,
}  # fmt: skip
VIT = {"model_type": "vit", "image_size": 32, "patch_size": 8, **WIDTHS}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A present folder with models of a user's own."""
    (tmp_path / "mine.py").write_text(MODELS)
    (tmp_path / "study.toml").write_text(STUDY)
    for name, values in (("llama", LLAMA), ("vit", VIT), ("bad", {"hidden_size": 3})):
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process, and look for nobody: the processes have a test of their own."""

    def measured(spec: Spec, recipe: str, backend: str = "auto") -> dict[str, Any]:
        found = measure(target_of(spec).workload(recipe, backend))
        return {"measurement": found.to_dict(), "peak_rss_bytes": 0, "device": []}

    monkeypatch.setattr(witnesses, "measure_apart", measured)
    monkeypatch.setattr(neighbors, "WATCH_SECONDS", 0.0)


def run(*args: str, status: int = 0) -> Result:
    done = CliRunner().invoke(app, ["memory", *args])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done


def shown(*args: str, status: int = 0) -> str:
    text = run(*args, status=status).stdout
    assert max(map(len, text.splitlines())) <= 80
    return text


def data(*args: str, status: int = 0) -> Any:
    return json.loads(run(*args, "--json", status=status).stdout)


# Formulas


def test_does_it_fit() -> None:
    found = data("fit", "--params", "27.8B", "--device", "80GB")
    totals = {way["name"]: way["total_bytes"] / 1e9 for way in found["ways"]}
    assert totals["one device"] == pytest.approx(444.8)
    assert totals["ZeRO-1 over 8"] == pytest.approx(8 * 27.8 + 8 * 27.8 / 8)
    assert totals["ZeRO-2 over 8"] == pytest.approx(4 * 27.8 + 12 * 27.8 / 8)
    assert totals["ZeRO-3 = FSDP over 8"] == pytest.approx(55.6)
    least = {way["name"]: way["smallest_number_of_devices"] for way in found["ways"]}
    assert least["ZeRO-3 = FSDP over 8"] == least["tensor parallel 8"] == 6
    assert least["one device"] is least["ZeRO-2 over 8"] is None
    text = shown("fit", "--params", "27.8B", "--device", "80GB")
    for part in ("444.80", "414.25", "5.56", "80.00 GB = 74.51 GiB", "16 bytes", "2 + 2 + 4 + 8"):
        assert part in text


def test_fit_with_a_shape_adds_activations() -> None:
    numbers = "layers=48,width=6144,heads=64,sequence=2048,batch=4,vocab=51200"
    found = data("fit", "--shape", numbers, "--recipe", "fp16-master")
    assert found["parameters"] == pytest.approx(22.07e9, rel=1e-3)
    tensor = next(way for way in found["ways"] if way["name"] == "tensor parallel 8")
    assert tensor["activations_bytes"] / 2**30 == pytest.approx(59.25, rel=0.02)
    text = shown("fit", "--shape", numbers, "--recompute", "full")
    assert "Korthikanti" in text


def test_fit_in_fp32_doubles_activations() -> None:
    numbers = "layers=4,width=256,heads=8,sequence=256,batch=32"
    sizes = {}
    for recipe in ("fp32", "tf32", "bf16-mixed", "fp16-master"):
        found = data("fit", "--shape", numbers, "--recipe", recipe)["ways"][0]
        sizes[recipe] = found["activations_bytes"]
    around = 32 * 256 * 256
    assert sizes["bf16-mixed"] == sizes["fp16-master"] == (592 << 20) + 5 * around
    assert sizes["fp32"] == (1184 << 20) + 9 * around
    assert sizes["tf32"] == sizes["fp32"]
    said = " ".join(shown("fit", "--shape", numbers, "--recipe", "fp32").split())
    assert "the standard block in 32 bits, which doubles its one-byte masks too" in said
    assert "in 16 bits (Kor" in " ".join(shown("fit", "--shape", numbers).split())


def test_fit_tells_what_a_row_needs() -> None:
    text = " ".join(shown("fit", "--params", "27.8B", "--recipe", "megatron-bf16").split())
    assert "never: no number of them is enough" in text
    assert "1 GB = 1e9 bytes, 1 GiB = 2^30" in text


def test_the_least_number_of_devices_is_the_least() -> None:
    for way in ways(bookkeeping("autocast"), 5_000_000_000, size("24GB"), 4):
        if way.smallest is not None and way.smallest > 1 and way.name != "one device":
            for devices, fits in ((way.smallest - 1, False), (way.smallest, True)):
                again = {
                    w.name.rstrip("0123456789"): w
                    for w in ways(
                        bookkeeping("autocast"), 5_000_000_000, size("24GB"), max(devices, 2)
                    )
                }
                found = again[way.name.rstrip("0123456789")]
                assert (found.total <= size("24GB")) is fits or devices == 1


def test_sizes_and_counts() -> None:
    assert [count(t) for t in ("27.8B", "350M", "7e9", "3688704", "1.5 k")] == [
        27_800_000_000, 350_000_000, 7_000_000_000, 3_688_704, 1500,
    ]  # fmt: skip
    assert [size(t) for t in ("80GB", "80 GiB", "1.5tb")] == [
        80 * 10**9, 80 * 2**30, 1_500_000_000_000,
    ]  # fmt: skip
    assert shape("layers=1,width=8,heads=2,sequence=4,batch=3").vocab == 0


def test_published_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown("selftest")
    assert "171 published figures: all agree; 163 are held to the printed digits" in text
    assert text.count("≈") == 8 + 1
    found = data("selftest")
    assert all(check["agrees"] for check in found)
    assert sum(check["within"] > 0 for check in found) == 8
    assert all(check["ours"] == check["published"] for check in found if not check["within"])
    wrong = [Check("a layer", "1", "2", "GiB", "nowhere", False)]
    monkeypatch.setattr("floatscope.memory.selftest.selftest", lambda: wrong)
    assert "1 published figures: 1 differ;" in shown("selftest", status=3)


def test_formulas_need_no_torch() -> None:
    code = (
        "import sys; from floatscope.cli.main import app\n"
        "for args in (['fit', '--params', '7B'], ['selftest']):\n"
        "    app(['memory', *args], standalone_mode=False)\n"
        "assert not {'torch', 'numpy', 'duckdb'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_theory_of_a_preset() -> None:
    found = data("theory", "quick", "--recipe", "bf16-mixed", "--attention", "materialized")
    (arm,) = found["arms"]
    assert sum(row["bytes"] for row in arm["states"]["rows"]) == 16 * 131_904
    numbers = GPTNumbers(**{**vars(QUICK), "attention": "materialized"})
    assert Ledger.from_dict(arm["closed_form"]) == saved(numbers, "bf16-mixed")
    assert set(arm["standard_block"]) >= {"none", "selective", "full"}
    text = shown("theory", "quick")
    for part in ("log-softmax", "131,904 parameters", "bf16-mixed", "16 bytes a parameter"):
        assert part in text


def test_theory_of_weights_in_16_bits() -> None:
    pure, master, kahan = data("theory", "quick", "--recipe", "bf16-pure,bf16-master,bf16-kahan")[
        "arms"
    ]
    sizes = [sum(row["bytes"] for row in arm["states"]["rows"]) for arm in (pure, master, kahan)]
    assert [size / 131_904 for size in sizes] == [8, 16, 16]
    assert pure["closed_form"] == master["closed_form"]
    assert pure["stages"]["build"]["live"] + 4 * 131_904 == master["stages"]["build"]["live"]
    assert (kahan["closed_form"], kahan["stages"]) == (None, {})
    text = shown("theory", "quick", "--recipe", "bf16-kahan")
    assert "trace or measure this one" in " ".join(text.split())


def test_trace_of_weights_in_16_bits_and_of_quantized_operands() -> None:
    found = data("trace", "quick", "--recipe", "bf16-master,fp8-current", "--no-check",
                 "--backend", "native")  # fmt: skip
    master, quantized = found["arms"]
    assert [arm["unexplained_bytes"] for arm in (master, quantized)] == [0, 0]
    assert all(one["holds"] for arm in (master, quantized) for one in arm["acceptance"])
    assert "14 B x 131,904" in master["acceptance"][1]["says"]
    assert "the optimizer holds fp32 masters" in master["notes"][0]
    assert [stage["engine"] for stage in master["stages"]] == [0] * 7
    assert quantized["stages"][1]["engine"] > 0
    (step,) = found["between"]
    sizes = {term["term"]: term["bytes"] for term in step["peak"]}
    assert sizes["master weights"] == -4 * 131_904
    assert sizes["quantized operands"] > 0
    with pytest.raises(LedgerError, match="kept by the laboratory's own step"):
        run("trace", "quick", "--recipe", "bf16-kahan")


def test_theory_of_other_models_and_optimizers(models: Path) -> None:
    (arm,) = data("theory", "mine.py:named", "--recipe", "fp32")["arms"]
    assert (arm["parameters"], arm["closed_form"], arm["stages"]) == (5, None, {})
    (arm,) = data("theory", "quick", "--optimizer", "sgd-momentum", "--recipe", "fp32")["arms"]
    assert sum(row["bytes"] for row in arm["states"]["rows"]) == 12 * 131_904
    (arm,) = data("theory", "quick", "--optimizer", "adagrad", "--recipe", "fp32")["arms"]
    assert (
        "No formula knows what adagrad keeps under fp32: its rows are traced" in arm["states_note"]
    )
    assert sum(row["bytes"] for row in arm["states"]["rows"]) == 12 * 131_904 + 4 * 20
    text = shown("theory", "quick", "--optimizer", "adafactor", "--recipe", "fp32")
    assert "adafactor keeps under fp32, nor can it be traced: it is left out" in " ".join(
        text.split()
    )


# Trace


def test_trace_of_a_study_file(models: Path) -> None:
    found = data("trace", "study.toml", "--recipe", "bf16-mixed", "--backend", "native")
    (arm,) = found["arms"]
    for stage in arm["stages"]:
        assert stage["live_by_formula"] == stage["live_by_trace"]
        assert stage["peak_by_formula"] in (None, stage["peak_by_trace"])
        assert stage["live_by_meter"] is None
    assert arm["unexplained_bytes"] == 0
    assert all(one["holds"] for one in arm["acceptance"])
    assert found["checked"] == [
        "At a tiny shape, trace and meter agree to the byte in every stage."
    ]
    advice = found["advice"]["bf16-mixed"]
    assert advice["duplicate_casts"][0]["consumers"] == [
        f"blocks.0.attention.{name}" for name in "qkv"
    ]
    assert {one["change"] for one in advice["what_if"]} >= {"as it is", "share casts"}


def test_trace_for_the_terminal(models: Path) -> None:
    text = shown("trace", "study.toml", "--recipe", "bf16-mixed", "--backend", "emulated")
    for part in (
        "second backward",
        "Casts made more than once",
        "recompute every block",
        "Emulated: 16-bit products are computed in fp32",
        "█",
        "unexplained 0 bytes",
    ):
        assert part in text.replace("\n", " ").replace("  ", " ") or part in text  # fmt: skip
    text = shown("trace", "mine.py:with_loss", "--no-check")
    assert "At a tiny shape" not in text


def test_models_of_ones_own(models: Path) -> None:
    found = data("trace", "mine:named", "--tiny", "mine.py:with_loss", "--out", "record")
    assert found["kind"] == "factory"
    assert found["checked"][0].startswith("At a tiny shape, trace and meter agree")
    assert json.loads((models / "record" / "memory.json").read_text())["model"] == "mine:named"
    big = shown("trace", "mine.py:big")
    assert "Not held to the meter" in big
    assert "--tiny" in big


def test_a_configuration_of_hugging_face(models: Path) -> None:
    pytest.importorskip("transformers")
    found = data("trace", "llama.json", "--context", "32", "--batch-size", "2")
    assert found["shape"] == {
        "model_type": "llama", "class": "LlamaForCausalLM", "batch_size": 2, "context": 32,
    }  # fmt: skip
    assert found["checked"][0].startswith("At a tiny shape, trace and meter agree to the byte")
    head = 256 * 1000
    layer = 256 * 256 * 2 + 2 * 256 * 64 + 3 * 256 * 512 + 2 * 256
    (arm,) = data("theory", "llama.json", "--recipe", "fp32")["arms"]
    assert arm["parameters"] == 2 * head + 6 * layer + 256
    assert arm["standard_block"]["none"] > 0
    found = data("trace", "vit.json", "--no-check")  # its constructor reads a value
    assert found["shape"]["class"] == "ViTForImageClassification"
    assert target_of(Spec(model="llama.json")).shape["context"] == 128


def test_configurations_that_cannot_be_used(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    (models / "none.json").write_text("{")
    (models / "strange.json").write_text('{"model_type": "nothing"}')
    for name, message in (
        ("bad.json", 'it has no "model_type"'),
        ("none.json", "is no JSON"),
        ("absent.json", "cannot be read: No such file"),
        ("strange.json", "transformers refuses it"),
    ):
        with pytest.raises(LedgerError, match=message):
            run("trace", name)
    with pytest.raises(LedgerError, match="--context 500: llama.json has positions for 128"):
        run("trace", "llama.json", "--context", "500")
    with pytest.raises(LedgerError, match="--context does not go with vit.json: it reads images"):
        run("trace", "vit.json", "--context", "5")
    assert shrunk({"text": {"model_type": "llama"}}) is None
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(LedgerError, match=r"not installed .* pip install 'transformers>=4.50'"):
        run("trace", "llama.json")


# Measure and reconcile


def test_a_measurement_in_a_process_of_its_own(models: Path) -> None:
    found = data("measure", "study.toml", "--recipe", "fp32", "--out", "out")
    (arm,) = found["arms"]
    for stage in arm["stages"]:
        assert stage["live_by_formula"] == stage["live_by_trace"] == stage["live_by_meter"]
        assert stage["peak_by_trace"] == stage["peak_by_meter"]
    assert arm["peak_rss_bytes"] > 1 << 26
    assert arm["alone"] is found["alone"] in (True, False)
    assert arm["neighbors"]["foreign_cores"] >= 0
    kept = json.loads((models / "out" / "memory.json").read_text())
    assert kept["arms"] == found["arms"]
    assert kept["environment"]["backend"] == "native"
    rows = read_parquet(models / "out" / "rows.parquet")
    for witness in ("formula", "trace", "meter"):
        total = sum(
            size
            for size, *where in zip(
                rows["bytes"], rows["witness"], rows["at"], rows["moment"], strict=True
            )
            if where == [witness, "second forward", "live"]
        )
        assert total == arm["stages"][5]["live_by_meter"]
    terms = read_parquet(models / "out" / "terms.parquet")
    assert sum(terms["bytes"]) == arm["saved_bytes"]
    assert [row["live"] for row in arm["allocator"]] == [0] * 7
    assert read_memory(models / "out").arms[0].saved_bytes == arm["saved_bytes"]


@pytest.mark.usefixtures("here")
def test_a_measurement_fills_an_export(models: Path) -> None:
    export = {"schema": 1, "runs": [], "memory": None, "study": "mine"}
    (models / "export.json").write_text(json.dumps(export))
    args = ("measure", "study.toml", "--recipe", "fp32,bf16-mixed", "--backend", "native")
    found = data(*args, "--into", "export.json", "--out", "out")
    filled = json.loads((models / "export.json").read_text())
    assert {key: value for key, value in filled.items() if key != "memory"} == {
        "schema": 1, "runs": [], "study": "mine",
    }  # fmt: skip
    (record,) = filled["memory"]
    assert record["arms"] == found["arms"]
    assert record["between"] == found["between"]
    assert [step["before"] for step in record["between"]] == ["fp32"]
    assert read_memory(models / "out").between[0].after == "bf16-mixed"


@pytest.mark.usefixtures("here")
def test_measure_for_the_terminal(models: Path) -> None:
    text = shown("measure", "study.toml", "--recipe", "fp32,fp16-mixed", "--backend", "native")
    assert "Formula, trace and meter agree to the byte in every stage." in text
    text = " ".join(text.split())
    assert "after first optimizer step" in text
    assert "load " in text
    assert "The highest peak, in the second backward: " in text
    assert "lower, before the optimizer's first step." in text
    assert "Shape: vocab_size 256, context 16" in text


@pytest.mark.usefixtures("here")
def test_an_optimizer_that_no_formula_knows_has_measured_rows(models: Path) -> None:
    found = data("measure", "study.toml", "--recipe", "fp32", "--optimizer", "adafactor")
    build, step, _ = found["arms"][0]["acceptance"]
    assert "no formula knows what adafactor keeps; by meter: parameters" in build["says"]
    assert "other optimizer state" in step["says"]
    assert build["holds"] is step["holds"] is True
    assert "no trace: the workload reads the value" in found["arms"][0]["notes"][0]


@pytest.mark.usefixtures("here")
def test_what_a_trace_lacks_is_said_beside_the_meter(models: Path) -> None:
    """An LSTM's workspace is known to its kernel alone: why, and by how much."""
    for verb in ("measure", "reconcile"):
        text = " ".join(shown(verb, "mine.py:lstm", "--recipe", "fp32").split())
        assert "Meter minus trace: " in text
        assert "trace: an LSTM or GRU computed by oneDNN saves a workspace" in text
    assert "trace minus meter, lstm lstm uint8: -" in text
    text = " ".join(shown("trace", "mine.py:lstm").split())
    assert "At a tiny shape the trace is NOT within 1 % of the meter" in text
    assert "Why: an LSTM or GRU computed by oneDNN" in text
    assert "saved in lstm by lstm, uint8: -" in text


@pytest.mark.usefixtures("here")
def test_the_standard_formula_beside_a_model_without_closed_form(models: Path) -> None:
    pytest.importorskip("transformers")
    text = shown("reconcile", "llama.json", "--context", "32", "--recipe", "fp32,bf16-mixed")
    text = " ".join(text.split())
    assert text.count("The standard block's formula, for blocks alone, says") == 2
    assert "Saved, bf16-mixed minus fp32" in text


@pytest.mark.usefixtures("here")
def test_reconcile(models: Path) -> None:
    found = data("reconcile", "study.toml", "--backend", "native")
    first, second = found["arms"]
    assert [arm["unexplained_bytes"] for arm in (first, second)] == [0, 0]
    assert first["trace_minus_meter"]["rows"] == []
    (between,) = found["between"]
    assert (between["from"], between["to"]) == ("fp32", "bf16-mixed")
    total = Ledger.from_dict(between["terms"]).total
    assert total == Ledger.from_dict(second["terms"]).total
    peaks = Ledger.from_dict(between["peak_terms"])
    assert [row.term for row in peaks][:2] == ["fp32: peak", "saved for backward"]
    text = shown("reconcile", "study.toml", "--backend", "native")
    for part in ("SwiGLU", "one cast a consumer", "from fp32 to bf16-mixed", "░", "highest peak"):
        assert part in text
    text = shown("reconcile", "mine.py:reads")
    assert "no trace: the workload reads the value of a tensor" in " ".join(text.split())


@pytest.mark.usefixtures("here")
def test_an_unexplained_byte_is_exit_status_3(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fewer(numbers: GPTNumbers, recipe: str, measured: Ledger, backend: str) -> Ledger:
        stray = "unexplained"
        return Ledger.from_dict({"unit": "bytes", "rows": [
            {"term": "stray", "category": stray, "bytes": 7}]})  # fmt: skip

    monkeypatch.setattr(witnesses, "reconcile", fewer)
    shown("reconcile", "study.toml", "--recipe", "fp32", status=3)
    shown("measure", "study.toml", "--recipe", "fp32", status=3)


def test_acceptance_tells_what_does_not_hold(models: Path) -> None:
    target = target_of(Spec(model="study.toml"))
    arm = traced_arm(target, "fp32")
    assert [one.holds for one in acceptance(arm, target)] == [True, True, True]
    other = target_of(Spec(model="quick"))
    assert not acceptance(arm, other)[0].holds
    assert arm.best is not None
    assert arm.best[Stage.BUILD].live.total > 0


def test_a_step_that_raises_says_where(models: Path) -> None:
    with pytest.raises(LedgerError, match=r"KeyError.*halfway.*Raised in the stage forward"):
        run("measure", "mine.py:step_raises", "--recipe", "fp32")
    with pytest.raises(LedgerError, match="raised KeyError on tensors without data: 'halfway'"):
        run("trace", "mine.py:step_raises")
    with pytest.raises(StudyError, match="the function raised ValueError: no such corpus"):
        run("trace", "mine.py:raises")
    with pytest.raises(StudyError, match="no loss was found"):
        run("trace", "mine.py:no_loss")


def test_a_model_larger_than_memory_is_traced_alone(models: Path) -> None:
    with pytest.raises(LedgerError, match=r"needs .* GiB at its peak.*free: it is not measured"):
        measured_arm(target_of(Spec(model="mine.py:big")), "fp32", spare=1 << 34)
    assert "the system killed" in apart._reason("fp32", -9, "")
    assert apart._reason("fp32", 1, "noise\nthe cause") == "fp32: the cause"
    assert apart._reason("fp32", 5, "") == "fp32: exit status 5"


@pytest.mark.parametrize(
    ("args", "kind", "message"),
    [
        (["trace", "quik"], StudyError, "unknown model 'quik'. Did you mean 'quick'"),
        (["trace", "quick", "--recipe", "bf17"], RecipeError, "unknown recipe 'bf17'"),
        (["trace", "quick", "--optimizer", "adamv"], LedgerError, "unknown optimizer 'adamv'"),
        (["trace", "quick", "--attention", "fussed"], LedgerError, "Did you mean 'fused'"),
        (["trace", "quick", "--context", "0"], LedgerError, "--context must lie between 1"),
        (["trace", "quick", "--batch-size", "99999999"], LedgerError, "--batch-size must lie"),
        (["trace", "quick", "--device", "warp"], LedgerError, "no such kind of device"),
        (["trace", "absent.py:f"], StudyError, "cannot be imported"),
        (["trace", "mine.py:named", "--context", "3"], LedgerError, "has the shape that its fun"),
        (["trace", "quick", "--out", ""], LedgerError, "--out is empty"),
        (["trace", "quick", "--out", "mine.py"], LedgerError, "there is a file of this name"),
        (["measure", "quick", "--out", ""], LedgerError, "--out is empty"),
        (["reconcile", "quick", "--out", "mine.py"], LedgerError, "there is a file of this name"),
        (["measure", "quick", "--into", "absent.json"], StudyError, "no file of `floatscope expo"),
        (["measure", "quick", "--backend", "fast"], RecipeError, "unknown backend 'fast'"),
        (["fit"], LedgerError, "name --params"),
        (["fit", "--params", "27.8X"], LedgerError, "'27.8X' is no number of parameters"),
        (["fit", "--params", "0"], LedgerError, "must lie between 1 and 1e18"),
        (["fit", "--params", "1e30"], LedgerError, "must lie between 1 and 1e18"),
        (["fit", "--params", "7B", "--device", "80"], LedgerError, "name the unit"),
        (["fit", "--params", "7B", "--recipe", "autocat"], LedgerError, "mean 'autocast'"),
        (["fit", "--params", "7B", "--recompute", "no"], LedgerError, "unknown recomputation"),
        (["fit", "--params", "7B", "--recompute", "full"], LedgerError, "give the model's --shape"),
        (["fit", "--shape", "layers=2,layers=2"], LedgerError, "'layers=2' is not one of"),
        (["fit", "--shape", "layers=2"], LedgerError, "--shape lacks sequence"),
    ],
)  # fmt: skip
def test_bad_input(
    models: Path, args: list[str], kind: type[FloatscopeError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        run(*args)
    assert message in str(caught.value)


def test_shapes_that_do_not_fit_together(models: Path) -> None:
    (models / "odd.toml").write_text('preset = "quick"\n[model]\nnum_heads = 7\n')
    with pytest.raises(StudyError, match="width 64 must split into 7 heads"):
        run("trace", "odd.toml")


def test_neighbors(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([{(1, "idle"): 1.0, (2, "busy"): 5.0}, {(1, "idle"): 1.0, (2, "busy"): 6.0}])
    monkeypatch.setattr(neighbors, "_used", lambda own: next(readings))
    seen = neighbors.neighbors(seconds=0.01)
    assert not seen.alone
    assert len(seen.busy) == 1
    assert seen.busy[0].startswith("busy (")
    assert seen.foreign_cores > 1
    monkeypatch.setattr(neighbors, "_used", lambda own: {})
    assert neighbors.neighbors(seconds=0.0).alone
