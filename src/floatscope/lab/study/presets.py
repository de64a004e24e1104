"""The studies that come with floatscope."""

from __future__ import annotations

from dataclasses import replace

from floatscope.lab.gpt_config import GPTConfig
from floatscope.lab.run.plan import TrainConfig
from floatscope.lab.study.plan import StudyPlan
from floatscope.lab.study.question import Margin, Question
from floatscope.lab.study.stress import Stress

NO_WORSE = Question(
    text="Which of these recipes train this model no worse than fp32 does?",
    claim="not worse",
    margin=Margin(compute=0.02),
)
"""At most what two percent more training would gain: seed spread at this size is near one."""

QUICK = StudyPlan(
    name="quick",
    ulp_reruns=2,
    repeats=2,
    question=NO_WORSE,
    model=GPTConfig(vocab_size=512, context=64, num_layers=2, width=64, num_heads=4, ff_width=172),
    train=TrainConfig(
        steps=300, batch_size=16, peak_lr=4e-3, warmup_steps=30, eval_every=50, eval_windows=256
    ),
)
"""Sixteen small runs on the built-in world: a few minutes on two cores."""

NOVEL = StudyPlan(name="novel", question=NO_WORSE, train=TrainConfig(peak_lr=2e-3))
"""The course project's baseline, 3.7 M parameters: fifteen runs, about three hours on two cores.
Meant for the novel of `floatscope text novel`, and for any text of its size. The peak learning rate
is the best of a sweep on fp32 alone (docs/studies.md)."""

LOWBIT = replace(
    QUICK,
    name="lowbit",
    repeats=0,
    recipes=(
        "fp32", "bf16-master", "bf16-pure", "bf16-sr", "bf16-kahan",
        "fp8-current", "mxfp8", "mxfp6", "mxfp4", "nvfp4",
    ),
    seeds=(1337, 1338, 1339, 1340, 1341),
)  # fmt: skip
"""Weights stored in 16 bits, and products in 8, 6 and 4: 52 runs of the quick study's size."""

STRESS = replace(
    QUICK,
    name="stress",
    recipes=("fp32", "bf16-mixed", "fp16-mixed"),
    seeds=(1337,),
    ulp_reruns=0,
    repeats=0,
    question=None,
    train=replace(QUICK.train, steps=150, warmup_steps=15),
    stress=Stress(peak_lrs=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)),
)
"""The quick model for half as long, at 2.5 to 250 times its peak learning rate, with and without
normalized q and k and z-loss: 84 runs that record what announces instability."""

PRESETS = {plan.name: plan for plan in (QUICK, NOVEL, LOWBIT, STRESS)}
