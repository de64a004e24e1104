"""The studies that come with floatscope."""

from __future__ import annotations

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

PRESETS = {plan.name: plan for plan in (QUICK, NOVEL)}
