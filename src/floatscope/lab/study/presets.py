"""The studies that come with floatscope."""

from __future__ import annotations

from dataclasses import replace

from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.run.plan import TrainConfig
from floatscope.lab.study.plan import StudyPlan

QUICK = StudyPlan(
    name="quick",
    ulp_reruns=2,
    model=GPTConfig(vocab_size=512, context=64, num_layers=2, width=64, num_heads=4, ff_width=172),
    train=TrainConfig(
        steps=300, batch_size=16, peak_lr=4e-3, warmup_steps=30, eval_every=50, eval_windows=256
    ),
)
"""Fourteen small runs on the built-in world: a few minutes on two cores."""

NOVEL = StudyPlan(name="novel", train=TrainConfig(peak_lr=2e-3))
"""The course project's baseline, 3.7 M parameters: fifteen runs, about three hours on two cores.
Meant for the novel of `floatscope text novel`, and for any text of its size. The peak learning rate
is the best of a sweep on fp32 alone (docs/studies.md)."""

LOWBIT = replace(
    QUICK,
    name="lowbit",
    recipes=(
        "fp32", "bf16-master", "bf16-pure", "bf16-sr", "bf16-kahan",
        "fp8-current", "mxfp8", "mxfp6", "mxfp4", "nvfp4",
    ),
    seeds=(1337, 1338, 1339, 1340, 1341),
)  # fmt: skip
"""Weights stored in 16 bits, and products in 8, 6 and 4: 52 runs of the quick study's size."""

PRESETS = {plan.name: plan for plan in (QUICK, NOVEL, LOWBIT)}
