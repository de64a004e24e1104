"""Published figures, digit by digit as they were printed, for the ledger to test itself on.

Numbers are strings, so that trailing zeros count; units are named in each table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One row of the activation table: the paper's model, and what must be printed for it.

    Sequence 2048, vocabulary 51 200, 16-bit. GiB a layer for the six cases; GiB on a device of the
    first stage for three of them, interleaving included.
    """

    name: str
    a: int
    h: int
    L: int
    t: int
    p: int
    m: int
    b: int
    parameters: str
    """Billions."""
    scores: str
    """5 a s / h."""
    per_layer: tuple[str, str, str, str, str, str]
    """None; tensor; tensor + sequence; tensor + selective; all three; full recomputation."""
    percent: tuple[str, str, str, str]
    """Of tensor parallelism alone: with sequence, with selective, with both, full."""
    first_stage: tuple[str, str, str]
    """Tensor; tensor + sequence + selective; full."""
    states: str
    """GiB a device at 16 bytes a parameter."""


KORTHIKANTI = "Korthikanti et al. 2022 (arXiv 2205.05198), tables of models and of memory a layer"
SEQUENCE, VOCAB = 2048, 51_200

CONFIGURATIONS = (
    Configuration(
        name="22B", a=64, h=6144, L=48, t=8, p=1, m=1, b=4,
        parameters="22.07",
        scores="106.67",
        per_layer=("6.5938", "1.2344", "0.8242", "0.6094", "0.1992", "0.0938"),
        percent=("66.8", "49.4", "16.1", "7.6"),
        first_stage=("59.25", "9.56", "4.50"),
        states="41.1",
    ),
    Configuration(
        name="175B", a=96, h=12288, L=96, t=8, p=8, m=3, b=1,
        parameters="174.62",
        scores="80",
        per_layer=("2.6719", "0.5391", "0.3340", "0.3047", "0.0996", "0.0469"),
        percent=("62.0", "56.5", "18.5", "8.7"),
        first_stage=("66.84", "12.35", "5.81"),
        states="40.7",
    ),
    Configuration(
        name="530B", a=128, h=20480, L=105, t=8, p=35, m=3, b=1,
        parameters="529.60",
        scores="64",
        per_layer=("3.8281", "0.8203", "0.4785", "0.5078", "0.1660", "0.0781"),
        percent=("58.3", "61.9", "20.2", "9.5"),
        first_stage=("114.02", "23.08", "10.86"),
        states="28.2",
    ),
    Configuration(
        name="1T", a=160, h=25600, L=128, t=8, p=64, m=1, b=1,
        parameters="1008.04",
        scores="64",
        per_layer=("4.7852", "1.0254", "0.5981", "0.6348", "0.2075", "0.0977"),
        percent=("58.3", "61.9", "20.2", "9.5"),
        first_stage=("131.25", "26.56", "12.50"),
        states="29.3",
    ),
)  # fmt: skip

INTERLEAVING = {"175B": "1.2917", "530B": "1.3238"}
SELECTIVE = {"175B": ("70", "2.7"), "530B": ("65", "1.6")}
"""Percent of activations that selective recomputation removes, and of FLOPs that it adds."""
OUTPUTS_530B = "2.734"
"""GiB that freeing the stages' outputs saves on 530B; the paper says 2.73."""

PER_PARAMETER = {
    "fp32": "16",
    "autocast": "16",
    "fp16-master": "16",
    "megatron-bf16": "18",
    "deepspeed-zero2": "20",
    "bf16-pure": "8",
    "bf16-master": "16",
    "fp8-lm": "6",
}
"""Bytes a parameter, summed over all states."""

ZERO = "Rajbhandari et al. 2020, ZeRO (arXiv 1910.02054), table of memory a device, K = 12"
ZERO_MODELS = {"7.5B": 7_500_000_000, "128B": 128 * 10**9, "1T": 10**12}
ZERO_TABLE: dict[int, dict[str, tuple[str, str, str]]] = {
    1: {
        "7.5B": ("120", "120", "120"),
        "128B": ("2048", "2048", "2048"),
        "1T": ("16000", "16000", "16000"),
    },
    4: {
        "7.5B": ("52.5", "41.3", "30"),
        "128B": ("896", "704", "512"),
        "1T": ("7000", "5500", "4000"),
    },
    16: {
        "7.5B": ("35.6", "21.6", "7.5"),
        "128B": ("608", "368", "128"),
        "1T": ("4750", "2875", "1000"),
    },
    64: {
        "7.5B": ("31.4", "16.6", "1.88"),
        "128B": ("536", "284", "32"),
        "1T": ("4187", "2218", "250"),
    },
    256: {
        "7.5B": ("30.4", "15.4", "0.47"),
        "128B": ("518", "263", "8"),
        "1T": ("4046", "2054", "62.5"),
    },
    1024: {
        "7.5B": ("30.1", "15.1", "0.12"),
        "128B": ("513", "257", "2"),
        "1T": ("4011", "2013", "15.6"),
    },
}
"""GB a device by N: optimizer states split; gradients too; parameters too."""

GPT2 = {"weights": "3", "states": "24", "activations": "60.4"}
"""GB, GPT-2 of 1.5e9 parameters: 48 layers, width 1600, batch 32, sequence 1024 (ZeRO)."""


class Anchor(NamedTuple):
    """A published figure outside the big tables."""

    what: str
    printed: str
    unit: str
    source: str
    within: float = 0.0
    """0 asks for the printed digits. Else the figure came from a measurement on a device and holds
    more than was computed, and this is the share by which ours may differ."""


_DEEPSPEED = "DeepSpeed documentation, Memory Requirements"
_TORCHAO = "torchao README, low-bit optimizers"
_BITS = "torchao source, low-bit optimizers: codes, and an fp32 scale a block, twice"
_COMPUTED = "the same two differences by arithmetic: parameters x bytes of moments saved"
_TE = "TransformerEngine documentation, memory of one 1024 x 1024 linear, 1024 tokens"
_IN_BACKWARD = "pytorch/tutorials#2568, optimizer step in backward"

ANCHORS: dict[str, Anchor] = {
    "t5-3b-zero2-offload": Anchor("t5-3b, 8 GPUs, ZeRO-2 offloaded", "5.31", "GiB", _DEEPSPEED),
    "t5-3b-zero2": Anchor("t5-3b, 8 GPUs, ZeRO-2", "15.93", "GiB", _DEEPSPEED),
    "t5-3b-zero3": Anchor("t5-3b, 8 GPUs, ZeRO-3", "6.09", "GiB", _DEEPSPEED),
    "t5-3b-zero3-offload": Anchor(
        "t5-3b, 8 GPUs, ZeRO-3, optimizer offloaded", "0.78", "GiB", _DEEPSPEED
    ),
    "t5-3b-cpu": Anchor("t5-3b, ZeRO-2 offloaded, on the CPU", "127.45", "GiB", _DEEPSPEED),
    "t5-large-zero3": Anchor("t5-large, 4 GPUs, ZeRO-3", "3291", "MiB", _DEEPSPEED),
    "t5-large-params-offload": Anchor(
        "t5-large, 4 GPUs, ZeRO-3, all offloaded", "125", "MiB", _DEEPSPEED
    ),
    "t5-large-offload": Anchor(
        "t5-large, 4 GPUs, ZeRO-3, optimizer offloaded", "477", "MiB", _DEEPSPEED
    ),
    "llama2-8bit": Anchor("Llama-2-7B bf16, AdamW minus 8-bit", "12.5", "GiB", _TORCHAO, 0.015),
    "llama2-4bit": Anchor("Llama-2-7B bf16, AdamW minus 4-bit", "18.4", "GiB", _TORCHAO),
    "llama2-8bit-computed": Anchor(
        "Llama-2-7B, 6.738e9 x (4 - 2.03125) B", "12.4", "GiB", _COMPUTED
    ),
    "vit-h-8bit": Anchor("ViT-H AMP, AdamW minus 8-bit", "3.90", "GB", _TORCHAO, 0.035),
    "vit-h-4bit": Anchor("ViT-H AMP, AdamW minus 4-bit", "4.51", "GB", _TORCHAO, 0.035),
    "vit-h-8bit-computed": Anchor("ViT-H, 632e6 x (8 - 2.03125) B", "3.77", "GB", _COMPUTED),
    "vit-h-4bit-computed": Anchor("ViT-H, 632e6 x (8 - 1.0625) B", "4.38", "GB", _COMPUTED),
    "te-bf16": Anchor("linear, bf16", "6.00", "MiB", _TE),
    "te-fp8": Anchor("linear, fp8, weights kept in bf16", "6.02", "MiB", _TE, 0.01),
    "te-fp8-only": Anchor("linear, fp8 alone, inference", "3.02", "MiB", _TE, 0.01),
    "vit-l-parameters": Anchor("ViT-L fp32, parameters", "1.2", "GB", _IN_BACKWARD),
    "vit-l-gradients": Anchor("ViT-L fp32, gradients", "1.2", "GB", _IN_BACKWARD),
    "vit-l-moments": Anchor("ViT-L fp32, moments", "2.4", "GB", _IN_BACKWARD),
    "vit-l-foreach": Anchor("ViT-L fp32, peak with foreach", "6.0", "GB", _IN_BACKWARD, 0.02),
    "vit-l-loop": Anchor("ViT-L fp32, peak tensor by tensor", "4.8", "GB", _IN_BACKWARD, 0.02),
    "cublas": Anchor("cuBLAS workspace before Hopper", "8519680", "B", "pytorch#95668"),
    "cublas-hopper": Anchor("cuBLAS workspace on Hopper", "32", "MiB", "pytorch#182669"),
    "bert-base": Anchor(
        "bert-base-cased, weights loaded in fp32", "413.18", "MiB", "accelerate documentation"
    ),
    "bert-base-measured": Anchor(
        "bert-base-cased, on the device", "413.68", "MiB", "accelerate documentation", 0.002
    ),
    "adam-8bit": Anchor("8-bit Adam, blocks of 256", "2.031", "B a parameter", _BITS),
    "adam-8bit-lab": Anchor(
        "8-bit Adam on the laboratory's model", "2.035", "B a parameter", _BITS
    ),
    "adam-4bit": Anchor("4-bit Adam, blocks of 128", "1.0625", "B a parameter", _BITS),
    "torchtune-bf16": Anchor("Llama-2-7B, bf16 AdamW, states", "54", "GB", "torchtune#389"),
    "bf16-master-between": Anchor("bf16 with masters, between steps", "14", "B a parameter",
                                  "measured"),
    "bf16-master-step": Anchor("bf16 with masters, at the step", "18", "B a parameter", "measured"),
    "megatron-8": Anchor("Megatron bf16 over 8", "7.5", "B a parameter", "6 + 12 / d"),
    "megatron-16": Anchor("Megatron bf16 over 16", "6.75", "B a parameter", "6 + 12 / d"),
}  # fmt: skip
"""Left out: measurements that no arithmetic reaches (pytorch#97712, 5515 and 6802 MiB)."""
