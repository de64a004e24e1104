"""The named recipes."""

from __future__ import annotations

from typing import Any

from floatscope.errors import RecipeError, unknown
from floatscope.recipes.formats_of import Kept, Operand, Operands, Stored
from floatscope.recipes.recipe import Recipe
from floatscope.recipes.scalings import LossScaling

_MIXED = "Micikevicius et al. 2018, Mixed Precision Training (arXiv 1710.03740); torch.autocast"

_TE = "NVIDIA Transformer Engine"


def _same(format: str, **how: Any) -> Operands:
    """All operands alike."""
    operand = Operand(format=format, **how)
    return Operands(activation=operand, weight=operand, gradient=operand)


def _fp8(**how: Any) -> Operands:
    """e4m3 forward, e5m2 for gradients, a scale a tensor."""
    forward = Operand(format="fp8-tensor", **how)
    return Operands(
        activation=forward,
        weight=forward,
        gradient=Operand(format="fp8-tensor", element="e5m2", **how),
    )


def _nvfp4() -> Operands:
    turned = Operand(format="nvfp4", hadamard=16)
    return Operands(
        activation=Operand(format="nvfp4"),
        weight=Operand(format="nvfp4", block=(16, 16)),
        gradient=Operand(format="nvfp4", rounding="stochastic"),
        activation_again=turned,
        gradient_again=Operand(format="nvfp4", hadamard=16, rounding="stochastic"),
    )


def _low(name: str, operands: Operands, summary: str, source: str, **more: Any) -> Recipe:
    """bf16 between products, everything kept in fp32."""
    return Recipe(
        name=name, products="bf16", operands=operands, summary=summary, source=source, **more
    )


CATALOGUE: dict[str, Recipe] = {
    r.name: r
    for r in (
        Recipe(
            name="fp32",
            products="fp32",
            summary="everything in fp32: the reference",
            source="IEEE 754-2019 binary32",
        ),
        Recipe(
            name="bf16-mixed",
            products="bf16",
            summary="matrix products in bf16, everything kept in fp32, no loss scaling",
            source="Kalamkar et al. 2019 (arXiv 1905.12322); torch.autocast",
        ),
        Recipe(
            name="fp16-mixed",
            products="fp16",
            loss_scaling=LossScaling(),
            summary="matrix products in fp16, everything kept in fp32, dynamic loss scaling",
            source=f"{_MIXED}; torch.amp.GradScaler",
        ),
        Recipe(
            name="fp16-mixed-unscaled",
            products="fp16",
            summary="fp16-mixed without loss scaling: every step is applied, whatever it holds",
            source=_MIXED,
        ),
        Recipe(
            name="fp16-O2",
            products="fp16",
            stored=Stored(weights="fp16", master="fp32"),
            loss_scaling=LossScaling(),
            summary="fp16-mixed with fp16 weights and an fp32 master copy",
            source="NVIDIA Apex, opt_level O2; Micikevicius et al. 2018, section 3.1",
        ),
        Recipe(
            name="fp16-pure",
            products="fp16",
            stored=Stored(weights="fp16", moments=("fp16", "fp16"), gradients="fp16"),
            loss_scaling=LossScaling(),
            summary="everything in fp16: weights, moments and gradients",
            source="the failure that Micikevicius et al. 2018, section 3.1, repairs",
        ),
        Recipe(
            name="bf16-master",
            products="bf16",
            stored=Stored(weights="bf16", master="fp32"),
            summary="bf16 weights with an fp32 master copy",
            source="Rae et al. 2021, Gopher (arXiv 2112.11446), appendix C",
        ),
        Recipe(
            name="bf16-pure",
            products="bf16",
            stored=Stored(weights="bf16", moments=("bf16", "bf16"), gradients="bf16"),
            summary="everything in bf16: weights, moments and gradients, rounded to nearest",
            source="Zamirai et al. 2020, Revisiting BFloat16 Training (arXiv 2010.06192)",
        ),
        Recipe(
            name="bf16-sr",
            products="bf16",
            stored=Stored(weights="bf16", update="stochastic"),
            summary="bf16 weights without a master, updates rounded stochastically",
            source="Zamirai et al. 2020 (arXiv 2010.06192); Ozkara et al. 2025 (arXiv 2502.20566)",
        ),
        Recipe(
            name="bf16-kahan",
            products="bf16",
            stored=Stored(weights="bf16", update="kahan"),
            summary="bf16 weights without a master, updates added with Kahan's compensation",
            source="Zamirai et al. 2020 (arXiv 2010.06192)",
        ),
        Recipe(
            name="tf32",
            products="fp32",
            operands=_same("tf32", rounding="nearest-away"),
            kept=Kept(head=False),
            summary="operands of weights' products in tf32, ties away from zero; all else fp32",
            source="NVIDIA A100 Tensor Core GPU Architecture, 2020; cvt.rna.tf32.f32",
        ),
        _low(
            "fp8-current",
            _fp8(),
            "e4m3 forward, e5m2 gradients, one scale a tensor from its own largest magnitude",
            f"{_TE}, Float8CurrentScaling, Format.HYBRID",
        ),
        _low(
            "fp8-delayed",
            _fp8(history=1024),
            "as fp8-current, but the scale follows from the largest magnitudes of 1024 steps",
            f"{_TE}, DelayedScaling, amax_history_len=1024, amax_compute_algo='max'",
        ),
        _low(
            "fp8-rowwise",
            _same("fp8-rowwise"),
            "e4m3 for all three, one scale a row along the contraction",
            "torchao, Float8LinearConfig, recipe 'rowwise'",
        ),
        _low(
            "fp8-deepseek",
            Operands(
                activation=Operand(format="fp8-1x128"),
                weight=Operand(format="fp8-128x128"),
                gradient=Operand(format="fp8-1x128"),
                accumulator="hopper-fp8-promoted",
            ),
            "e4m3 for all three: 1x128 tiles, 128x128 weights, sums promoted to fp32 every 128",
            "DeepSeek-V3 Technical Report (arXiv 2412.19437), section 3.3",
        ),
        _low(
            "mxfp8",
            _same("mxfp8-e4m3", rule="rceil"),
            "e4m3 for all three in blocks of 32, scales rounded up to a power of two",
            "Mishra et al. 2025, Recipes for Pre-training LLMs with MXFP8 (arXiv 2506.08027)",
        ),
        _low(
            "mxfp6",
            _same("mxfp6-e3m2"),
            "e3m2 for all three in blocks of 32",
            "Rouhani et al. 2023, Microscaling Data Formats (arXiv 2310.10537), table 5",
        ),
        _low(
            "mxfp4",
            Operands(
                activation=Operand(format="mxfp4"),
                weight=Operand(format="mxfp4"),
                gradient=Operand(format="mxfp4", rounding="stochastic"),
            ),
            "e2m1 for all three in blocks of 32, gradients rounded stochastically",
            "Tseng et al. 2025 (arXiv 2502.20586), without its Hadamard transform",
        ),
        _low(
            "nvfp4",
            _nvfp4(),
            "e2m1 in blocks of 16 (weights 16x16), stochastic gradients, Hadamard before the "
            "weight gradient, the last weights in bf16",
            "NVIDIA 2025, Pretraining LLMs with NVFP4 (arXiv 2509.25149)",
            kept=Kept(last_share=0.15),
        ),
        _low(
            "int8",
            _same("fp8-rowwise", element="int8"),
            "int8 for all three, one scale a row along the contraction",
            "Dettmers et al. 2022, LLM.int8() (arXiv 2208.07339), vector-wise scales",
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe called `name`, such as "bf16-mixed".

    Raises:
        RecipeError: no such recipe; the message offers the nearest name.
    """
    if name not in CATALOGUE:
        raise RecipeError(unknown("recipe", str(name), CATALOGUE))
    return CATALOGUE[name]


def recipe_for(precision: str, loss_scaling: bool | None = None) -> Recipe:
    """The recipe that `train.precision` and `train.loss_scaling` name in a study file.

    Args:
        precision: "fp32", "bf16" or "fp16".
        loss_scaling: for fp16 alone; None means on.

    Raises:
        RecipeError: unknown precision, or loss scaling asked for where no recipe has it.
    """
    names = {"fp32": "fp32", "bf16": "bf16-mixed", "fp16": "fp16-mixed"}
    if precision not in names:
        raise RecipeError(unknown("train.precision", precision, names))
    if precision == "fp16":
        return recipe("fp16-mixed-unscaled" if loss_scaling is False else "fp16-mixed")
    if loss_scaling:
        raise RecipeError(
            f'train.loss_scaling = true needs train.precision = "fp16"; {precision} has the range '
            "of fp32 and is not scaled. Remove the line or set it to false."
        )
    return recipe(names[precision])
