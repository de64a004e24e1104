"""Ten architectures that are not the laboratory's: the trace against the meter, stage by stage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from floatscope.memory import Ledger, Measurement, Stage, Workload, measure
from floatscope.memory.kernels import RealKernels
from floatscope.memory.trace import trace
from tests.memory_architectures import HUGGING_FACE, hugging_face, ours

RECIPES = ("fp32", "bf16-mixed")


def assert_equal(traced: Measurement, measured: Measurement) -> None:
    """To the byte, row by row. (Promised is 1 %.)"""
    assert traced.saved == measured.saved
    for fake, real in zip(traced.stages, measured.stages, strict=True):
        assert fake == real
        assert real.live.unexplained == 0
    assert traced.notes == measured.notes == ()


def both(job: Workload) -> tuple[Measurement, Measurement]:
    """Traced first: a model that is handed over is trained by the measurement."""
    torch.manual_seed(0)
    traced = trace(job)
    return traced, measure(job)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face(name: str, recipe: str) -> None:
    pytest.importorskip("transformers")
    assert_equal(*both(hugging_face(name, recipe)))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["ResNet", "U-Net", "MLP"])
def test_written_here(name: str, recipe: str) -> None:
    assert_equal(*both(ours(name, recipe)))


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_lstm_is_off_by_its_workspace_and_the_trace_says_so(recipe: str) -> None:
    traced, measured = both(ours("LSTM", recipe))
    assert len(traced.notes) == 1
    assert "oneDNN saves a workspace whose size only the kernel knows" in traced.notes[0]
    missing = measured.saved - traced.saved
    assert {(row.module, row.dtype) for row in missing} == {("lstm", "uint8")}
    assert missing.total > 0
    for fake, real in zip(traced.stages, measured.stages, strict=True):
        apart = real.live - fake.live
        expected = missing if real.stage in (Stage.FORWARD, Stage.FORWARD_2) else Ledger()
        assert apart.project("module") == expected.project("module")


BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "memory.py"


@pytest.mark.slow
def test_llama_3_8b_is_traced_in_ten_seconds_and_one_gigabyte() -> None:
    """Seconds of this process's own work, since others may hold the cores."""
    pytest.importorskip("transformers")
    done = subprocess.run([sys.executable, str(BENCHMARK), "--llama"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["weights"] == 4 * 8_030_261_248
    assert found["unexplained"] == 0
    assert found["forward"] > found["weights"] + found["saved"] - (1 << 20) > 100 * 2**30
    assert found["peak"] < 10**9
    assert found["processor_seconds"] < 10


@pytest.mark.parametrize(
    ("left", "right", "grouped"),
    [
        ((24, 16), (2, 16, 8), True),
        ((2, 16, 8), (8, 24), True),
        ((8, 24), (24, 16), True),
        ((2, 8, 16), (2, 16, 8), False),
    ],
)
def test_grouped_products_have_the_shape_of_real_ones(
    left: tuple[int, ...], right: tuple[int, ...], grouped: bool
) -> None:
    """Torch's own fake kernel takes bf16 alone; the CPU's takes fp32 too."""

    def product() -> Tensor:
        offsets = torch.tensor([8, 24], dtype=torch.int32) if grouped else None
        return torch._grouped_mm(torch.ones(left), torch.ones(right), offs=offsets)

    real = product()
    with FakeTensorMode(), RealKernels():
        fake = product()
    assert (fake.shape, fake.stride()) == (real.shape, real.stride())
