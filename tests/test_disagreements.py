"""The disagreement finder: what it finds between installed libraries, and how it reports.

D1 to D18 are findings about libraries. Those that the installed versions show are found anew here;
those of other libraries are recorded in `tests/data/disagreements.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

import floatscope as fs
from floatscope.errors import FormatError
from floatscope.formats import BlockFormat, FloatFormat, ScaleRule
from floatscope.formats import format as format_called
from floatscope.formats.catalogue import CATALOGUE, MXINT8_ELEMENT
from floatscope.rounding import Rules, round_to, rules_for
from floatscope.rounding.blocks import block_round
from floatscope.rounding.finder.block_causes import block_of_each, reference
from floatscope.rounding.finder.find import disagreements
from floatscope.rounding.finder.findings import Disagreements, Raised, Share
from floatscope.rounding.finder.probe_blocks import block_probes, near_ties
from floatscope.rounding.finder.probe_inputs import scalar_probes

INF, NAN = math.inf, math.nan
DATA = Path(__file__).parent / "data" / "disagreements.json"

Quantizer = Callable[[Tensor], Tensor]


def after(x: float) -> float:
    """The next fp32 number, away from 0."""
    return float(np.nextafter(np.float32(x), np.float32(math.copysign(INF, x))))


def before(x: float) -> float:
    """The next fp32 number, toward 0."""
    return float(np.nextafter(np.float32(x), np.float32(0)))


def same(a: Any, b: Any) -> bool:
    """Equal, with NaN equal to NaN and the sign of zero seen."""
    return repr(a) == repr(b)


def torch_cast(dtype: torch.dtype) -> Quantizer:
    def torch_cast(x: Tensor) -> Tensor:
        return x.to(dtype)

    return torch_cast


def ml_cast(dtype: Any) -> Quantizer:
    def ml_cast(x: Tensor) -> Tensor:
        with np.errstate(all="ignore"):
            return torch.from_numpy(x.numpy().astype(dtype).astype(np.float64))

    return ml_cast


def gfloat_cast(name: str, saturate: bool) -> Quantizer:
    gfloat = pytest.importorskip("gfloat")
    formats = pytest.importorskip("gfloat.formats")
    info = getattr(formats, f"format_info_ocp_{name}")

    def gfloat_cast(x: Tensor) -> Tensor:
        with np.errstate(all="ignore"):
            return torch.from_numpy(gfloat.round_ndarray(info, x.double().numpy(), sat=saturate))

    return gfloat_cast


def by_kind(found: Disagreements) -> dict[Any, int]:
    return dict(found.num_different)


def smallest(found: Disagreements, kind: Any) -> tuple[Any, Any, Any]:
    case = found.of(kind)[0]
    return case.input, case.f, case.g


def results_at(found: Disagreements, value: Any) -> tuple[Any, Any]:
    case = found.at(value)
    assert case is not None, value
    return case.f, case.g


def first(x: Any) -> float:
    return x[0]


# Between the installed libraries, scalars


def test_d1_torch_saturates_e4m3fn_and_ml_dtypes_does_not() -> None:
    x = torch.tensor([500.0, INF, 464.0, 1.0])
    theirs = ml_cast(ml_dtypes.float8_e4m3fn)
    found = disagreements(torch_cast(torch.float8_e4m3fn), theirs, "e4m3fn", x)
    assert same(smallest(found, "overflow"), (after(464.0), 448.0, NAN))
    assert same(smallest(found, "infinity"), (INF, 448.0, NAN))
    assert same(results_at(found, -INF), (-448.0, NAN))
    assert set(by_kind(found)) == {"overflow", "infinity"}
    assert found.share == Share(4, 2, {"overflow": 1, "infinity": 1})


def test_d1_gfloat_has_both() -> None:
    torch_e4m3fn = torch_cast(torch.float8_e4m3fn)
    assert not disagreements(torch_e4m3fn, gfloat_cast("e4m3", True), "e4m3fn")
    theirs = ml_cast(ml_dtypes.float8_e4m3fn)
    assert not disagreements(theirs, gfloat_cast("e4m3", False), "e4m3fn")


def test_d1_torch_overflows_its_other_fp8_formats() -> None:
    found = disagreements(torch_cast(torch.float8_e5m2), "cuda-satfinite", "e5m2")
    assert smallest(found, "overflow") == (61440.0, INF, 57344.0)
    assert smallest(found, "infinity") == (INF, INF, 57344.0)
    form = CATALOGUE["e4m3fnuz"]
    assert isinstance(form, FloatFormat)
    saturating = replace(rules_for(form), overflow="saturate", infinity="saturate")
    x = torch.tensor([448.0])
    found = disagreements(torch_cast(torch.float8_e4m3fnuz), saturating, form, x)
    assert same(smallest(found, "overflow"), (248.0, NAN, 240.0))
    assert found.share == Share(1, 1, {"overflow": 1})


def test_d1_our_presets_are_the_libraries() -> None:
    for dtype, name in (
        (torch.float8_e4m3fn, "e4m3fn"),
        (torch.float8_e5m2, "e5m2"),
        (torch.float8_e4m3fnuz, "e4m3fnuz"),
        (torch.float8_e5m2fnuz, "e5m2fnuz"),
        (torch.float16, "fp16"),
        (torch.bfloat16, "bf16"),
    ):
        assert not disagreements(torch_cast(dtype), "torch-2.13", name), name
    for dtype, name in (
        (ml_dtypes.float8_e4m3fn, "e4m3fn"),
        (ml_dtypes.float8_e3m4, "e3m4"),
        (ml_dtypes.float8_e4m3b11fnuz, "e4m3b11fnuz"),
        (ml_dtypes.float6_e2m3fn, "e2m3fn"),
        (ml_dtypes.float4_e2m1fn, "e2m1fn"),
    ):
        assert not disagreements(ml_cast(dtype), "ml_dtypes", name), name


def test_d2_e8m0() -> None:
    torch_e8m0, theirs = torch_cast(torch.float8_e8m0fnu), ml_cast(ml_dtypes.float8_e8m0fnu)
    tiny = 2.0**-127
    found = disagreements(torch_e8m0, theirs, "e8m0fnu")
    assert same(results_at(found, 0.0), (tiny, NAN))
    assert same(results_at(found, -1.0), (1.0, NAN))
    assert {case.kind for case in found.cases} == {"zero or negative"}
    found = disagreements(torch_e8m0, gfloat_cast("e8m0", False), "e8m0fnu")
    assert results_at(found, 0.0) == (tiny, 0.0)
    assert results_at(found, -1.0) == (1.0, -1.0)
    assert results_at(found, 3.0) == (4.0, 2.0)
    assert found.at(1.5) is found.at(6.0) is None  # 2 and 8, by either
    assert smallest(found, "subnormal")[0] == 2.0**-149
    assert results_at(found, 2.0**-128) == (tiny, 2.0**-128)
    assert {case.input for case in found.of("tie")} >= {3.0, 12.0}


def test_d2_torch_and_ml_dtypes_round_up_just_above_the_smallest_scale() -> None:
    """Not to nearest: from 2^-127 on, where fp32 itself is subnormal, to 2^-126."""
    x = torch.tensor([1.4 * 2.0**-127])
    for theirs in (torch_cast(torch.float8_e8m0fnu), ml_cast(ml_dtypes.float8_e8m0fnu)):
        found = disagreements(theirs, "standard", "e8m0fnu", x)
        assert smallest(found, "other rounding") == (after(2.0**-127), 2.0**-126, 2.0**-127)
        assert found.share == Share(1, 1, {"other rounding": 1})
        assert not found.of("tie")


def test_d3_nan_in_fp4() -> None:
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")

    def torchao_cast(x: Tensor) -> Tensor:
        return kernels.f4_unpacked_to_f32(kernels.f32_to_f4_unpacked(x))

    found = disagreements(torchao_cast, "ml_dtypes", "e2m1fn")
    assert by_kind(found) == {"nan": 2}
    assert same(smallest(found, "nan"), (NAN, 1.5, -0.0))
    found = disagreements(gfloat_cast("e2m1", True), "standard", "e2m1fn")
    case = found.of("nan")[0]
    assert math.isnan(case.f)  # type: ignore[arg-type]
    assert isinstance(case.g, Raised)
    assert case.g.error.startswith("FormatError: e2m1fn has no NaN")


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"])
def test_d15_subnormals_survive_flushing(name: str) -> None:
    dtype = {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "e4m3fn": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
        "e4m3fnuz": torch.float8_e4m3fnuz,
        "e5m2fnuz": torch.float8_e5m2fnuz,
    }[name]
    form = CATALOGUE[name]
    assert isinstance(form, FloatFormat)
    x = torch.tensor([float(form.smallest), -float(form.smallest * 3)])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        theirs, ours = x.to(dtype), round_to(x, form)
        found = disagreements(torch_cast(dtype), "torch-2.13", form, x)
    finally:
        torch.set_flush_denormal(False)
    assert theirs.double().tolist() == ours.double().tolist() == x.double().tolist()
    assert not found
    assert found.share == Share(2, 0, {})


def test_d15_a_cast_that_is_flushed_is_found() -> None:
    def by_arithmetic(x: Tensor) -> Tensor:
        return x.to(torch.bfloat16).float() * 1

    assert not disagreements(by_arithmetic, "torch-2.13", "bf16").of("subnormal")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        found = disagreements(by_arithmetic, "torch-2.13", "bf16")
    finally:
        torch.set_flush_denormal(False)
    assert set(by_kind(found)) == {"subnormal"}
    assert smallest(found, "subnormal") == (after(2.0**-134), 0.0, 2.0**-133)


def test_d17_sign_of_zero() -> None:
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
    libraries = [
        (torch_cast(torch.float8_e4m3fn), "e4m3fn"),
        (ml_cast(ml_dtypes.float8_e4m3fn), "e4m3fn"),
        (gfloat_cast("e4m3", True), "e4m3fn"),
        (lambda x: kernels.f4_unpacked_to_f32(kernels.f32_to_f4_unpacked(x)), "e2m1fn"),
    ]
    for theirs, name in libraries:
        assert not disagreements(theirs, "standard", name).of("sign of zero")
        dropped = disagreements(lambda x, cast=theirs: cast(x).double() + 0.0, "standard", name)
        assert same(smallest(dropped, "sign of zero"), (-0.0, 0.0, -0.0))
    assert same(torch.tensor(-0.0).to(torch.float8_e4m3fnuz).item(), 0.0)


def test_d18_a_native_cast_rounds_the_gradient() -> None:
    def gradient_through(cast: Quantizer) -> Quantizer:
        def gradient(incoming: Tensor) -> Tensor:
            with torch.enable_grad():
                x = torch.zeros_like(incoming, requires_grad=True)
                cast(x).float().backward(incoming)
            assert x.grad is not None
            return x.grad

        return gradient

    native = gradient_through(torch_cast(torch.float8_e4m3fn))
    ours = gradient_through(lambda x: round_to(x, "e4m3fn"))
    x = torch.tensor([1e-4, 0.11, 1000.0])
    assert native(x).tolist() == [0.0, 0.109375, 448.0]
    assert ours(x).tolist() == x.tolist()
    assert not disagreements(native, "torch-2.13", "e4m3fn")
    found = disagreements(native, ours, "e4m3fn", x)
    assert found.share is not None
    assert found.share.by_kind == {"subnormal": 1, "overflow": 1, "other rounding": 1}
    assert smallest(found, "infinity") == (INF, 448.0, INF)
    e5m2 = gradient_through(torch_cast(torch.float8_e5m2))(x)
    assert e5m2.tolist() == [7 * 2.0**-16, 0.109375, 1024.0]


# Between the installed libraries, blocks


@pytest.fixture(scope="module")
def torchao() -> Any:
    """torchao's block formats, as functions from values to values."""
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")

    class Torchao:
        @staticmethod
        def mx(dtype: torch.dtype, rule: str = "floor") -> Quantizer:
            mode = mx.ScaleCalculationMode(rule)

            def torchao_mx(x: Tensor) -> Tensor:
                scales, elements = mx.to_mx(x, dtype, 32, mode)
                return mx.to_dtype(elements, scales, dtype, 32, torch.float32)

            return torchao_mx

        @staticmethod
        def nvfp4(x: Tensor) -> Tensor:
            scale = nvfp4.per_tensor_amax_to_scale(x.abs().amax())
            return nvfp4.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(torch.float32)

    return Torchao


def gfloat_blocks(name: str, dtype: type) -> Quantizer:
    gfloat = pytest.importorskip("gfloat")
    form = getattr(pytest.importorskip("gfloat.formats"), f"format_info_{name}")

    def gfloat_blocks(x: Tensor) -> Tensor:
        with np.errstate(all="ignore"):
            rows = [
                gfloat.quantize_block(form, row, gfloat.compute_scale_amax)
                for row in x.numpy().astype(dtype)
            ]
        return torch.from_numpy(np.stack(rows))

    return gfloat_blocks


def test_d4_logarithms_in_fp32_miss_the_power_of_two(torchao: Any) -> None:
    below = before(256.0)
    theirs = gfloat_blocks("mxfp8_e4m3", np.float32)
    found = disagreements(torchao.mx(torch.float8_e4m3fn), theirs, "mxfp8-e4m3")
    case = found.at((below,))
    assert case is not None
    assert (case.kind, case.f, case.g) == ("block scale", (224.0,), (256.0,))
    exact = gfloat_blocks("mxfp8_e4m3", np.float64)
    found = disagreements(torchao.mx(torch.float8_e4m3fn), exact, "mxfp8-e4m3")
    assert found.at((below,)) is None
    theirs = gfloat_blocks("mxfp8_e5m2", np.float32)
    found = disagreements(torchao.mx(torch.float8_e5m2), theirs, "mxfp8-e5m2")
    case = found.at((before(128.0),))
    assert case is not None
    assert (case.kind, case.f, case.g) == ("block scale", (112.0,), (128.0,))


def test_d4_we_read_the_exponent(torchao: Any) -> None:
    exact = gfloat_blocks("mxfp8_e4m3", np.float64)
    assert set(by_kind(disagreements(exact, "standard", "mxfp8-e4m3"))) <= {"infinity"}


def test_d4_torchao_misses_the_next_power_of_two_by_rceil(torchao: Any) -> None:
    """Its RCEIL takes log2 in fp32: just above 448 * 2^k it gives the scale 2^k, not 2^(k+1)."""
    form = CATALOGUE["mxfp8-e4m3"]
    assert isinstance(form, BlockFormat)
    rceil = replace(form, rule=ScaleRule.RCEIL)
    found = disagreements(torchao.mx(torch.float8_e4m3fn, "rceil"), "standard", rceil)
    cases = [case for case in found.cases if 2.0**-116 < first(case.input) < INF]
    tops = {after(448 * 2.0**k) for k in range(-124, 120)}
    assert len(cases) > 200
    assert {first(case.input) for case in cases} < tops
    assert {case.kind for case in cases} == {"block scale"}
    amax, small = after(448 * 2.0**8), 1.25 * 2.0**-1
    case = found.at((amax, small))
    assert case is not None
    assert (case.f, case.g) == ((448 * 2.0**8, 0.5), (448 * 2.0**8, 1.0))


def test_d7_torchao_loses_tiny_blocks(torchao: Any) -> None:
    amax = (2.0**-119,)
    found = disagreements(torchao.mx(torch.float8_e4m3fn), "standard", "mxfp8-e4m3")
    case = found.at(amax)
    assert case is not None
    assert (case.kind, case.f, case.g) == ("block scale", (2.0**-120,), amax)
    form = CATALOGUE["mxfp8-e4m3"]
    assert isinstance(form, BlockFormat)
    rceil = replace(form, rule=ScaleRule.RCEIL)
    found = disagreements(torchao.mx(torch.float8_e4m3fn, "rceil"), "standard", rceil)
    case = found.at(amax)
    assert case is not None
    assert (case.kind, case.f, case.g) == ("block scale", (0.0,), amax)


def test_d8_infinity_in_a_block(torchao: Any) -> None:
    given = (INF, 1.0, 2.0, *[0.0] * 29)
    found = disagreements(torchao.mx(torch.float8_e4m3fn), "standard", "mxfp8-e4m3")
    case = found.at(given)
    assert case is not None
    assert same((case.kind, case.f, case.g), ("infinity", (INF, *[0.0] * 31), (NAN,) * 32))
    assert not found.of("nan")  # a NaN makes the block NaN in both
    theirs = gfloat_blocks("mxfp8_e4m3", np.float64)
    case = disagreements(theirs, "standard", "mxfp8-e4m3").at(given)
    assert case is not None
    assert case.f == (448 * 2.0**127, *[0.0] * 31)


def test_d9_torchao_clamps_small_block_scales(torchao: Any) -> None:
    x = torch.zeros(2, 16)
    x[0, 0] = 2688
    x[1, :3] = torch.tensor([0.01, 0.005, 0.00143])
    found = disagreements(torchao.nvfp4, "standard", "nvfp4", x)
    step = 2.0**-9
    assert torchao.nvfp4(x)[1, :3].tolist() == [4 * step, 4 * step, 0]
    assert block_round(x, "nvfp4").values[1, :3].tolist() == [6 * step, 3 * step, step / 2]
    assert found.share == Share(32, 3, {"block scale": 3})
    zeros = (0.0,) * 32
    case = found.at(zeros)
    assert case is not None
    assert same((case.kind, case.f, case.g), ("block scale", (NAN,) * 32, zeros))
    assert not found.of("division")  # both multiply by the reciprocal


def test_d9_little_else_differs_in_nvfp4(torchao: Any) -> None:
    """With a tensor scale of 1 and block scales from 2^-6 on, amax / 6 makes the difference.

    We, like Transformer Engine, multiply by 1/6 in fp32: that reaches two ties of e4m3 from below.
    """
    found = disagreements(torchao.nvfp4, "standard", "nvfp4")
    beside = [case for case in found.cases if first(case.input) == 2688 and len(case.input) > 16]  # type: ignore[arg-type]
    larger = {case.input[16] for case in beside if case.input[16] >= 6 * 2.0**-6}  # type: ignore[index]
    assert beside
    assert larger == {before(6 * 0.0185546875), before(6 * 304.0)}


def test_d9_share_of_a_tensor(torchao: Any) -> None:
    """Block scales differ where magnitudes spread widely, and nowhere on Gaussian numbers.

    There the elements are the same, and their scales are multiplied in another order.
    """
    drawn = torch.randn(32, 256, generator=torch.Generator().manual_seed(0))
    found = set()
    for eighths in range(8, 16):
        share = disagreements(torchao.nvfp4, "standard", "nvfp4", drawn * eighths / 8).share
        assert share is not None
        found |= set(share.by_kind)
    assert found == {"last bits"}
    wide = (3 * drawn).exp() * drawn.sign()
    share = disagreements(torchao.nvfp4, "standard", "nvfp4", wide).share
    assert share is not None
    assert share.by_kind["block scale"] > 0.001 * share.num_elements


def divided(x: Tensor) -> Tensor:
    """NVFP4 with x / scale, as textbooks write it."""
    form = CATALOGUE["nvfp4"]
    assert isinstance(form, BlockFormat)
    _, scales, _ = reference(x, form)
    scale = scales.float()[block_of_each(x, form)]
    quotient = (x / scale).nan_to_num(0)
    return round_to(quotient, form.element, overflow="saturate") * scale


def test_d11_division_and_reciprocal() -> None:
    form = CATALOGUE["nvfp4"]
    assert isinstance(form, BlockFormat)
    assert len(list(near_ties(form))) == 116
    found = disagreements(divided, "standard", "nvfp4")
    scale, x = 7 * 2.0**-9, 0.02392577938735485
    start = (2688.0, *[0.0] * 15, 6 * scale)
    case = found.at((*start, x))
    assert case is not None
    assert case.kind == "division"
    assert case.f == (*start, 1.5 * scale)
    assert case.g == (*start, 2 * scale)
    assert found.num_different["division"] >= 116


def test_d11_torchao_multiplies(torchao: Any) -> None:
    """The same quotient at four times the scale, which torchao does not clamp."""
    scale, x = 7 * 2.0**-7, 4 * 0.02392577938735485
    given = torch.zeros(2, 16)
    given[0, 0], given[1, 0], given[1, 1] = 2688, 6 * scale, x
    assert divided(given)[1, 1] == 1.5 * scale
    assert torchao.nvfp4(given)[1, 1] == block_round(given, "nvfp4").values[1, 1] == 2 * scale
    found = disagreements(divided, torchao.nvfp4, "nvfp4", given)
    assert found.of("division")
    assert found.share == Share(32, 1, {"division": 1})


# Recorded, of libraries that are not installed

RECORDS: list[dict[str, Any]] = json.loads(DATA.read_text())


def numbers(given: list[Any]) -> list[float]:
    return [float.fromhex(v) if isinstance(v, str) and "x" in v else float(v) for v in given]


def named(record: dict[str, Any]) -> str:
    return f"{record['finding']}-{record['library']}"


@pytest.mark.parametrize("record", [r for r in RECORDS if r["finding"] != "D16"], ids=named)
def test_recorded_findings_are_not_ours(record: dict[str, Any]) -> None:
    form = MXINT8_ELEMENT if record["format"] == "mxint8-element" else record["format"]
    dtype = getattr(torch, record.get("dtype", "float32"))
    x = torch.tensor(numbers(record["inputs"]), dtype=dtype)
    rounding = record.get("rounding")
    if record["standard"] == "raises":
        with pytest.raises(FormatError, match="has no NaN"):
            round_to(x, form)
    else:
        ours = round_to(x, form, rounding=rounding)
        assert ours.shape == x.shape
        assert same(ours.double().tolist(), numbers(record["standard"]))
        assert record["results"] != record["standard"]
    if "rules" in record:
        ours = round_to(x, form, record["rules"], dtype=torch.float32)
        assert same(ours.tolist(), numbers(record["results"]))


def test_recorded_findings_are_complete() -> None:
    assert {record["finding"] for record in RECORDS} == {
        "D3", "D5", "D6", "D10", "D12", "D13", "D14", "D16"
    }  # fmt: skip
    for record in RECORDS:
        assert {"library", "version", "source", "what", "results", "standard"} <= set(record)


def test_d16_seeds_are_followed() -> None:
    def rounded(seed: int) -> list[float]:
        torch.manual_seed(seed)
        x = torch.full((256,), 1.0625)
        return round_to(x, "e4m3fn", rounding="stochastic").tolist()

    assert rounded(0) == rounded(0) != rounded(1)


# The finder itself


def rules_of(name: str, **changes: Any) -> Rules:
    form = format_called(name)
    assert isinstance(form, FloatFormat)
    return replace(rules_for(form), name="changed", **changes)


def test_equal_quantizers_do_not_differ() -> None:
    found = disagreements("standard", lambda x: round_to(x, "e4m3fn"), "e4m3fn")
    assert not found
    assert found.cases == ()
    assert found.num_tried == len(scalar_probes(CATALOGUE["e4m3fn"]))  # type: ignore[arg-type]
    assert str(found) == "standard and g in e4m3fn: no difference on 1 568 inputs."


def test_ties_are_found_whole() -> None:
    """Rounding ties away differs at every other tie, and at the largest, which then overflows."""
    found = disagreements("standard", rules_of("e4m3fn", rounding="nearest-away"), "e4m3fn")
    assert by_kind(found) == {"tie": 126, "overflow": 2}
    assert smallest(found, "tie") == (2.0**-10, 0.0, 2.0**-9)
    assert same(smallest(found, "overflow"), (464.0, 448.0, NAN))
    assert [case.input for case in found.of("tie")[:3]] == [2.0**-10, -(2.0**-10), 5 * 2.0**-10]


def test_flushing_is_told_from_ties() -> None:
    found = disagreements("standard", rules_of("e4m3fn", flush_subnormals=True), "e4m3fn")
    assert set(by_kind(found)) == {"subnormal"}
    assert smallest(found, "subnormal") == (after(2.0**-10), 2.0**-9, 0.0)


def test_double_rounding_is_other_rounding() -> None:
    found = disagreements(lambda x: round_to(x.half().float(), "e4m3fn"), "standard", "e4m3fn")
    assert smallest(found, "subnormal") == (after(2.0**-10), 0.0, 2.0**-9)
    assert found.at(before(432.0)) is not None
    assert results_at(found, before(432.0)) == (448.0, 416.0)
    assert found.at(before(432.0)) in found.of("other rounding")


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16", "e7m9"])
def test_large_formats_are_sampled_at_every_octave(name: str) -> None:
    form = format_called(name)
    assert isinstance(form, FloatFormat)
    probes = scalar_probes(form).double().abs()
    exponents = set(torch.frexp(probes[probes.isfinite() & (probes > 0)]).exponent.tolist())
    assert set(range(form.min_octave + 1, form.emax + 2)) <= exponents
    found = disagreements("standard", rules_of(name, rounding="toward-zero"), name)
    assert {"tie", "subnormal", "other rounding"} <= set(by_kind(found))
    assert found.of("tie")[0].input == 3 * 2.0 ** (form.min_octave - 1)


def test_integers() -> None:
    lowest = lambda x: round_to(x, MXINT8_ELEMENT).clamp(min=-127 / 64)  # noqa: E731
    found = disagreements("standard", lowest, MXINT8_ELEMENT)
    assert set(by_kind(found)) == {"overflow", "infinity", "nan"} - {"nan"}
    assert smallest(found, "overflow") == (-(127.5 / 64), -2.0, -127 / 64)


def test_what_raises_is_reported_for_its_inputs() -> None:
    def picky(x: Tensor) -> Tensor:
        if (x.abs() > 448).any() or (x == 0.75).any():
            raise ValueError("too large,\n or 0.75")
        return round_to(x, "e4m3fn")

    found = disagreements(picky, "torch-2.13", "e4m3fn", torch.tensor([0.75, 0.5, 1e9, NAN]))
    assert smallest(found, "raises") == (0.75, Raised("ValueError: too large,\n or 0.75"), 0.75)
    assert smallest(found, "overflow")[0] == after(448.0)
    assert smallest(found, "infinity")[0] == INF
    assert found.share == Share(4, 2, {"overflow": 1, "raises": 1})
    assert "raises ValueError: too large, or 0.…" in found.table()
    assert not disagreements(picky, picky, "e4m3fn")


def test_what_raises_everywhere_is_an_error() -> None:
    def broken(x: Tensor) -> Tensor:
        raise KeyError("scale")

    with pytest.raises(FormatError, match="broken raises on every input: KeyError: 'scale'"):
        disagreements("standard", broken, "e2m1fn")


def test_misuse() -> None:
    with pytest.raises(FormatError, match=r"f gave a result of shape \(1,\) for inputs of shape"):
        disagreements(lambda x: x[:1], "standard", "e4m3fn")
    with pytest.raises(FormatError, match="g gave a tensor of torch.int32"):
        disagreements("standard", lambda x: x.int(), "e4m3fn")
    with pytest.raises(FormatError, match="f gave list"):
        disagreements(lambda x: x.tolist(), "standard", "e4m3fn")  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="function of a tensor, rules or their name, not 3"):
        disagreements(3, "standard", "e4m3fn")  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="unknown rules 'standrad'"):
        disagreements("standrad", "standard", "e4m3fn")
    with pytest.raises(FormatError, match='block formats rules have one name, "standard"'):
        disagreements("torch-2.13", "standard", "mxfp4")
    with pytest.raises(FormatError, match="unknown format"):
        disagreements("standard", "standard", "e4n3")


def test_inputs_are_the_finders_own() -> None:
    """A quantizer that overwrites its input does no harm."""
    ours = disagreements(lambda x: x.zero_(), "standard", "e2m1fn")
    assert results_at(ours, 6.0) == (0.0, 6.0)


def test_share() -> None:
    x = torch.tensor([[1.0625, 1.0, NAN], [-1.0625, 500.0, 1.1875]], dtype=torch.float64)
    away = rules_of("e4m3fn", rounding="nearest-away", overflow="saturate")
    found = disagreements("standard", away, "e4m3fn", x)
    assert found.share == Share(6, 3, {"tie": 2, "overflow": 1})
    assert found.share is not None
    assert found.share.fraction == 0.5
    empty = disagreements("standard", away, "e4m3fn", torch.zeros(0, 3)).share
    assert empty == Share(0, 0, {})
    assert empty is not None
    assert empty.fraction == 0
    assert disagreements("standard", away, "e4m3fn").share is None


def test_share_of_blocks() -> None:
    """Blocks at the end of a row may be incomplete."""
    form = CATALOGUE["mxfp4"]
    assert isinstance(form, BlockFormat)
    ceil = replace(form, rule=ScaleRule.CEIL)
    x = torch.zeros(3, 40)
    x[0, 0], x[1, 33], x[2, 5] = 4.0, 7.9, INF
    found = disagreements("standard", lambda x: block_round(x, ceil).values, form, x)
    assert found.share == Share(120, 1, {"block scale": 1})
    assert set(by_kind(found)) == {"block scale"}


@pytest.mark.parametrize(
    "name", [name for name, form in CATALOGUE.items() if isinstance(form, BlockFormat)]
)
def test_every_block_format_can_be_tried(name: str) -> None:
    form = CATALOGUE[name]
    assert isinstance(form, BlockFormat)

    def away(x: Tensor) -> Tensor:
        rounded, scales, _ = reference(x, form)
        scale = scales[block_of_each(x, form)]
        quotient = (x.double() / scale).nan_to_num(0)
        element = round_to(quotient, form.element, rounding="nearest-away", overflow="saturate")
        return torch.where(x.isfinite() & rounded.isfinite(), element * scale, rounded)

    assert not disagreements("standard", lambda x: block_round(x, name).values, name)
    found = disagreements(away, "standard", name)
    assert found.of("tie")
    probes = block_probes(form)
    assert probes.dtype == torch.float32
    assert (probes.flatten(1).abs().amax(1) == 0).any()


def test_small_blocks() -> None:
    form = CATALOGUE["mxfp4"]
    assert isinstance(form, BlockFormat)
    for block in ((1, 2), (2, 2), "row"):
        small = replace(form, block=block)
        assert not disagreements("standard", lambda x, to=small: block_round(x, to).values, small)


def test_scale_rules_are_told_apart() -> None:
    form = CATALOGUE["mxfp8-e4m3"]
    assert isinstance(form, BlockFormat)
    for rule in (ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.RCEIL):
        other = replace(form, rule=rule)
        found = disagreements("standard", lambda x, other=other: block_round(x, other).values, form)
        assert set(by_kind(found)) == {"block scale"}, rule


def test_flushing_in_blocks() -> None:
    def flushing(x: Tensor) -> Tensor:
        values, scales, _ = block_round(x, "mxfp8-e4m3")
        is_small = (values / scales.view(-1, 1)).abs() < 2.0**-6
        return torch.where(is_small, values * 0, values)

    found = disagreements(flushing, "standard", "mxfp8-e4m3")
    assert set(by_kind(found)) == {"subnormal"}
    case = found.at((256.0, 2.0**-9))
    assert case is not None
    assert (case.f, case.g) == ((256.0, 0.0), (256.0, 2.0**-9))


def test_reading() -> None:
    found = disagreements(
        torch_cast(torch.float8_e4m3fn), "ml_dtypes", "e4m3fn", torch.tensor([500.0, 1, 2, 3])
    )
    assert str(found).splitlines() == [
        "torch_cast and ml_dtypes in e4m3fn: 24 of 1 568 inputs differ.",
        "",
        "class     inputs  smallest    torch_cast  ml_dtypes",
        "overflow  22      ≈464.00003  448         NaN",
        "infinity  2       inf         448         NaN",
        "",
        "Of the tensor given, 1 of 4 elements differ (25.000%): overflow 1.",
    ]
    assert found.table(per_class=2).count("inf ") == 2
    with pytest.raises(FrozenInstanceError):
        found.form = "e5m2"  # type: ignore[misc]


def test_names() -> None:
    away = rules_of("e2m1fn", rounding="nearest-away")
    assert disagreements(away, "standard", "e2m1fn").names == ("changed", "standard")
    assert disagreements(lambda x: x, lambda x: x, "e2m1fn").names == ("f", "g")
    assert disagreements("te", "te", "e2m1fn").names == ("f: te", "g: te")


def test_public_name() -> None:
    from floatscope.rounding import disagreements as from_room

    assert fs.disagreements is from_room is disagreements
