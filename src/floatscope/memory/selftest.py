"""The ledger against published tables: every figure computed again, to the printed digits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from floatscope.memory import formula, published, states
from floatscope.memory.formula import Parallel, Recompute, Transformer
from floatscope.memory.published import ANCHORS, CONFIGURATIONS, KORTHIKANTI, Configuration
from floatscope.memory.units import GB, GIB, MIB, cut, rounded

UNITS = {"GiB": GIB, "MiB": MIB, "GB": GB}

# Elements of the laboratory's parameter tensors: embedding, 7 matrices in 4 layers, 9 gains.
LAB_TENSORS = [2048 * 256, *(4 * 4 * [256 * 256]), *(4 * 3 * [256 * 688]), *(9 * [256])]


class Check(NamedTuple):
    """One published figure and ours."""

    what: str
    published: str
    ours: str
    """With as many decimals as were published, cut off where the publication cut them off."""
    unit: str
    source: str
    agrees: bool
    """To the printed digits, rounded or cut off; a measurement, within its stated share."""
    within: float = 0.0
    """The share, for a figure that was measured on a device; 0 for the printed digits."""


def selftest() -> list[Check]:
    """Every published figure of `published.py`, computed by this room."""
    return [*_activations(), *_per_parameter(), *_zero(), *_anchors()]


def check(
    what: str, printed: str, value: Fraction | int, unit: str, source: str, within: float = 0.0
) -> Check:
    """Compare `value`, in `unit`, with what was printed."""
    value = Fraction(value)
    decimals = len(printed.partition(".")[2])
    ours = rounded(value, decimals)
    agrees = printed in (ours, cut(value, decimals))
    if within:
        agrees = abs(value - Fraction(printed)) <= Fraction(within) * Fraction(printed)
    elif agrees:
        ours = printed
    return Check(what, printed, ours, unit, source, agrees, within)


def _shape(c: Configuration) -> Transformer:
    return Transformer(
        sequence=published.SEQUENCE, batch=c.b, width=c.h, heads=c.a, layers=c.L,
        vocab=published.VOCAB,
    )  # fmt: skip


def _cases(c: Configuration) -> tuple[tuple[str, Parallel, Recompute], ...]:
    tensor = Parallel(tensor=c.t, pipeline=c.p, interleaving=c.m)
    both = replace(tensor, sequence=True)
    return (
        ("no parallelism", Parallel(), "none"),
        ("tensor", tensor, "none"),
        ("tensor + sequence", both, "none"),
        ("tensor + selective", tensor, "selective"),
        ("tensor + sequence + selective", both, "selective"),
        ("full recomputation", both, "full"),
    )


def _activations() -> Iterator[Check]:
    for c in CONFIGURATIONS:
        shape, cases = _shape(c), _cases(c)
        each = [formula.bytes_per_layer(shape, how, kind) for _, how, kind in cases]
        billions = Fraction(shape.num_parameters, 10**9)
        yield check(f"{c.name}: parameters", c.parameters, billions, "1e9", KORTHIKANTI)
        scores = Fraction(5 * c.a * shape.sequence, c.h)
        yield check(f"{c.name}: 5as/h", c.scores, scores, "", KORTHIKANTI)
        for (name, *_), size, printed in zip(cases, each, c.per_layer, strict=True):
            what = f"{c.name}: a layer, {name}"
            yield check(what, printed, size / GIB, "GiB", KORTHIKANTI)
        for (name, *_), size, printed in zip(cases[2:], each[2:], c.percent, strict=True):
            yield check(
                f"{c.name}: {name}, of tensor alone", printed, 100 * size / each[1], "%",
                KORTHIKANTI,
            )  # fmt: skip
        for index, printed in zip((1, 4, 5), c.first_stage, strict=True):
            name, how, kind = cases[index]
            total = formula.activations(shape, how, kind).total
            what = f"{c.name}: first stage, {name}"
            yield check(what, printed, Fraction(total, GIB), "GiB", KORTHIKANTI)
        state = Fraction(16 * shape.num_parameters, c.t * c.p * GIB)
        yield check(f"{c.name}: states at 16 bytes", c.states, state, "GiB", KORTHIKANTI)
        yield from _activation_claims(c, shape, cases[1][1], each)


def _activation_claims(
    c: Configuration, shape: Transformer, tensor: Parallel, each: list[Fraction]
) -> Iterator[Check]:
    if c.name in published.INTERLEAVING:
        printed = published.INTERLEAVING[c.name]
        yield check(f"{c.name}: interleaving", printed, tensor.in_flight, "", KORTHIKANTI)
    if c.name in published.SELECTIVE:
        removed, added = published.SELECTIVE[c.name]
        kept = formula.bytes_per_layer(shape, None, "selective") / each[0]
        yield check(f"{c.name}: selective removes", removed, 100 * (1 - kept), "%", KORTHIKANTI)
        more = 100 * formula.selective_overhead(shape)
        yield check(f"{c.name}: selective adds FLOPs", added, more, "%", KORTHIKANTI)
    if c.name == "530B":
        saved = Fraction(formula.pipeline_outputs(shape, tensor), GIB)
        printed = published.OUTPUTS_530B
        yield check("530B: freeing stage outputs", printed, saved, "GiB", KORTHIKANTI)


def _per_parameter() -> Iterator[Check]:
    for name, printed in published.PER_PARAMETER.items():
        held = states.policy(name)
        yield check(f"{name}: all states", printed, Fraction(held.total), "B a parameter",
                    held.source)  # fmt: skip


def _zero() -> Iterator[Check]:
    for devices, models in published.ZERO_TABLE.items():
        for model, row in models.items():
            for stage, printed in enumerate(row, start=1):
                held = states.states(
                    "fp16-master", published.ZERO_MODELS[model], zero=stage, devices=devices
                )
                what = f"{model} over {devices}, ZeRO-{stage}"
                yield check(what, printed, Fraction(held.total, GB), "GB", published.ZERO)
    weights, count = 2 * 1_500_000_000, 12 * 1600 * 32 * 1024 * 48
    sizes = {
        "weights": weights,
        "states": states.states("fp16-master", weights // 2).total,
        "activations": 2 * count,
    }
    for part, printed in published.GPT2.items():
        yield check(f"GPT-2: {part}", printed, Fraction(sizes[part], GB), "GB", published.ZERO)


def deepspeed_zero2(num_parameters: int, devices: int, *, offload: bool) -> tuple[Fraction, int]:
    """What DeepSpeed's own estimator says for ZeRO-2: bytes on the CPU, bytes on each device."""
    if offload:
        cpu = Fraction(num_parameters * max(4 * devices, 16) * 3, 2)
        return cpu, 2 * num_parameters
    return Fraction(
        num_parameters * 6 * devices
    ), 4 * num_parameters + 16 * num_parameters // devices


def deepspeed_zero3(
    num_parameters: int, largest_layer: int, devices: int, offload: str = "none"
) -> int:
    """What DeepSpeed's own estimator says for ZeRO-3: bytes on each device.

    Args:
        num_parameters: of the model.
        largest_layer: parameters of its largest layer, gathered in 4 bytes each.
        devices: in one node.
        offload: "none", "optimizer" or "all".
    """
    each = {"none": 18, "optimizer": 2, "all": 0}[offload]
    return 4 * largest_layer + each * num_parameters // devices


def _anchor_values() -> dict[str, Fraction | int]:
    """In bytes, or in bytes a parameter."""
    t5_3b, t5_3b_layer = 2_851_000_000, 32_000_000
    t5_large, t5_large_layer = 737_670_000, 32_128 * 1024
    llama, vit_h, vit_l = 6_738_000_000, 632_000_000, 304_326_632
    bert = 4 * 108_310_272 + 2 * 512 * 8  # fp32 weights; positions and token types in int64
    linear = 1024 * 1024
    master = states.policy("bf16-master")
    megatron = states.policy("megatron-bf16")
    fewer = {8: states.ADAM_8BIT, 4: states.ADAM_4BIT}
    return {
        "t5-3b-zero2-offload": deepspeed_zero2(t5_3b, 8, offload=True)[1],
        "t5-3b-zero2": deepspeed_zero2(t5_3b, 8, offload=False)[1],
        "t5-3b-cpu": deepspeed_zero2(t5_3b, 8, offload=True)[0],
        "t5-3b-zero3": deepspeed_zero3(t5_3b, t5_3b_layer, 8),
        "t5-3b-zero3-offload": deepspeed_zero3(t5_3b, t5_3b_layer, 8, "optimizer"),
        "t5-large-zero3": deepspeed_zero3(t5_large, t5_large_layer, 4),
        "t5-large-offload": deepspeed_zero3(t5_large, t5_large_layer, 4, "optimizer"),
        "t5-large-params-offload": deepspeed_zero3(t5_large, t5_large_layer, 4, "all"),
        **{f"llama2-{k}bit": llama * (4 - v) for k, v in fewer.items()},
        "llama2-8bit-computed": llama * (4 - fewer[8]),
        **{f"vit-h-{k}bit": vit_h * (8 - v) for k, v in fewer.items()},
        **{f"vit-h-{k}bit-computed": vit_h * (8 - v) for k, v in fewer.items()},
        "te-bf16": linear * (2 + 2 + 2),  # weight, input, output
        "te-fp8": linear * (2 + 1 + 1 + 2),  # weight, its fp8 copy, fp8 input, output
        "te-fp8-only": linear * (1 + 2),  # fp8 weight, output
        "vit-l-parameters": 4 * vit_l,
        "vit-l-gradients": 4 * vit_l,
        "vit-l-moments": 8 * vit_l,
        "vit-l-foreach": 20 * vit_l,
        "vit-l-loop": 16 * vit_l,
        "cublas": 4096 * 2 * 1024 + 16 * 8 * 1024,  # ":4096:2:16:8", in KiB
        "cublas-hopper": 32 * MIB,
        "bert-base": bert,
        "bert-base-measured": bert,
        "adam-8bit": fewer[8],
        "adam-8bit-lab": states.quantized_moments(LAB_TENSORS, fewer[8]),
        "adam-4bit": fewer[4],
        "torchtune-bf16": states.states("bf16-pure", 6_740_000_000).total,
        "bf16-master-between": master.total - master.gradients,
        "bf16-master-step": states.with_step_copy(master).total,
        "megatron-8": _per_device(megatron, 8),
        "megatron-16": _per_device(megatron, 16),
    }


def _per_device(held: states.Policy, devices: int) -> Fraction:
    million = states.states(held, 1_000_000, zero=1, devices=devices).total
    return Fraction(million, 1_000_000)


def _anchors() -> Iterator[Check]:
    values = _anchor_values()
    for key, anchor in ANCHORS.items():
        value = Fraction(values[key]) / UNITS.get(anchor.unit, 1)
        yield check(anchor.what, anchor.printed, value, anchor.unit, anchor.source, anchor.within)
